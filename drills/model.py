"""The nouns of drills, nothing else. Read this first.

    experiment.yaml + target ──► Plan ──► Run ──► Journal (+ request records) ──► Verdict ──► report

A stage takes only the value before it. Times are seconds: `mono` is CLOCK_MONOTONIC of the machine that
drives the run, wall times are UTC. Units come last in names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, ClassVar, Protocol, runtime_checkable

from drills.plain import Completed as Completed
from drills.plain import Json as Json

if TYPE_CHECKING:
    import urllib3

    from drills.custody import Custody
    from drills.nodes import GpuNode, UnitHost


class Verdict(StrEnum):
    """What a check, or a whole run, says; merged pessimistically."""

    PASS = "pass"  # noqa: S105 - a verdict, not a password
    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"
    NOT_JUDGED = "not judged"  # listed with its reason, outside the merge


class Restored(StrEnum):
    """Whether everything the drill changed is put back."""

    CLEAN = "clean"
    DIRTY = "dirty"
    UNKNOWN = "unknown"


class Left(StrEnum):
    """How the service is at the end of the run, by completions of its own replicas."""

    HEALTHY = "healthy"
    DEGRADED = "degraded"
    UNKNOWN = "unknown"  # nobody looked


class Phase(StrEnum):
    """The phases of a run, in order."""

    WARMUP = "warmup"
    BASELINE = "baseline"
    FAULT = "fault"
    RECOVERY = "recovery"


class Outcome(StrEnum):
    """How an arrival ended; every arrival has exactly one."""

    OK = "ok"
    DEGRADED = "degraded"  # served by a fallback model or from a cache
    TRUNCATED = "truncated"  # ended early: no finish reason, no [DONE], too few tokens, finish_reason abort
    ERROR = "error"  # see the record's `error` class
    HUNG = "hung"  # no byte for idle_timeout and still open when the client gave up
    SHED = "shed"  # the generator was at its cap and did not send it
    CANCELLED = "cancelled"  # still open when the load was told to stop


GOOD = frozenset({Outcome.OK, Outcome.DEGRADED})


# ---- what is drilled ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Bound:
    """A quantile of a latency and the most it may be, in seconds."""

    quantile: float
    value_s: float


@dataclass(frozen=True)
class Sla:
    """What users were promised. `errors` is a share of arrivals (0.01 = 1 %)."""

    ttft: Bound
    e2e: Bound
    max_gap: Bound
    errors: float


@dataclass(frozen=True)
class Replica:
    """One serving replica as it is now. `uid` names this incarnation, not the slot."""

    name: str
    uid: str
    role: str  # primary | fallback
    url: str  # of the engine itself, past the router, without /v1
    ready: bool
    started_wall: float | None = None
    restarts: int = 0
    host: str = "local"
    pid: int | None = None
    pid_start: int | None = None  # /proc/PID/stat field 22: pid + start name one process for ever
    engine_pid: int | None = None
    engine_start: int | None = None
    gpus: tuple[str, ...] = ()  # UUIDs
    gate: str | None = None  # lock file that a restart waits for
    labels: Mapping[str, str] = field(default_factory=dict)
    state: str = ""  # the target's own word for it
    health_url: str | None = None  # the endpoint that the router asks; None: the engine's own /health
    spared: str = ""  # why it is never a victim, in words that follow its name; empty: it may be one


class Host(Protocol):
    """A machine on which commands run and files land. Every call has a deadline of its own."""

    name: str
    python: str  # a Python there that knows this package

    def run(self, argv: Sequence[str], *, timeout_s: float, stdin: str | None = None) -> Completed:
        """Run a command to its end; a timeout is a result (`timed_out`), not an exception."""

    def spawn(self, argv: Sequence[str], *, log: str) -> None:
        """Start a command that outlives the driver and its link; its output goes to the file `log`."""

    def read(self, path: str) -> str | None:
        """Return a file's text, None when it is not there."""

    def write(self, path: str, text: str, *, mode: int = 0o600) -> None:
        """Write a file in one step (temporary file, fsync, rename)."""

    def remove(self, path: str) -> None:
        """Remove a file; one that is not there is no error."""

    def list(self, folder: str) -> list[str]:
        """Return the names in a folder, sorted; a folder that is not there is empty."""

    def signal(self, pid: int, pid_start: int, signal: str) -> bool:
        """Signal the process that pid + start name; False when that process is gone."""

    def alive(self, pid: int, pid_start: int) -> bool:
        """Whether that very process still runs (a zombie does not)."""

    def tree(self, pid: int, pid_start: int) -> Sequence[Json]:
        """Return {pid, start, title} of every live descendant of that very process, nearest first; none: it is gone."""


class Target(Protocol):
    """What is drilled, as the run sees it: facts and where things are. Abilities are separate (below)."""

    name: str
    kind: str  # lab | kubernetes | hosts
    sla: Sla
    custody: Custody  # who drills it, and what must be put back there
    endpoint: str  # where users send requests, with /v1
    model: str
    fallback_models: tuple[str, ...]
    expected_replicas: int  # primaries
    capacity_per_replica: float | None  # requests per second; None: not known
    prometheus: str | None
    alertmanager: str | None
    router_metrics: str | None

    def replicas(self) -> list[Replica]:
        """Return all replicas, fallbacks included, as they are now (bounded wait; raises DrillError)."""

    def control_host(self) -> Host:
        """Return the host that carries what belongs to no replica."""

    def host(self, name: str) -> Host:
        """Return the host of that name."""

    def state_dir_of(self, host: str) -> str:
        """Return the folder on that host in which drills keep what they write there."""

    def receipts_dir_of(self, host: str) -> str:
        """Return the folder on that host in which a receipt lies for as long as it is not put back."""

    def facts(self) -> Json:
        """Return what the header of the journal should know: versions, addresses, notes."""


@runtime_checkable
class Embedded(Protocol):
    """The target lives on the driver's machine, for drills alone: it ends by itself when no driver touches it."""

    def keep_alive(self) -> None:
        """Tell it that somebody still needs it (raises DrillError)."""

    def load_core(self) -> int | None:
        """Return the core that is left to the load, None when any will do."""


@runtime_checkable
class CanDelete(Protocol):
    """A controller replaces replicas it is told to delete (Kubernetes, the lab's supervisor)."""

    def delete_replica(self, replica: Replica, *, grace_s: float | None) -> None:
        """Delete that incarnation (its uid must still match); the controller makes a new one. None: its own grace."""


@runtime_checkable
class CanEvict(Protocol):
    """A controller replaces replicas, and budgets say how many may be taken away (Kubernetes)."""

    def evict_replica(self, replica: Replica, *, grace_s: float | None, dry: bool = False) -> str | None:
        """Evict that incarnation; returns None, or what refuses it: the disruption budget in its own words.

        With `dry` it only says whether it would be evicted now.
        """


@runtime_checkable
class HasRights(Protocol):
    """What may be done there is for somebody to grant."""

    def rights_refusals(self, faults: Sequence[Fault]) -> list[str]:
        """Return what these faults need and we may not do, a sentence each. Reads only."""


@runtime_checkable
class Shared(Protocol):
    """Others may change it meanwhile: people, rollouts, autoscalers, drains."""

    def others_at_work(self) -> list[str]:
        """Return what others are doing to it now, a sentence each. Changes count from what is seen here. Reads only."""

    def changes_by_others(self, ours: Sequence[Receipt]) -> list[Json]:
        """Return what is not as it was: {what, subject, was, now, by: others | autoscaler}, none for what `ours` did.

        Raises DrillError.
        """


@runtime_checkable
class SharesMonitoring(Protocol):
    """Its Prometheus watches other services too."""

    alert_labels: Mapping[str, str]  # an alert with another value of one of these is of another service


@runtime_checkable
class HasHttp(Protocol):
    """Its replicas are reached in a way of its own, not by a plain connection."""

    def http(self) -> urllib3.PoolManager:
        """Return a pool of connections that reaches every replica's `url`; for one thread."""


@runtime_checkable
class HasTokens(Protocol):
    """Its Prometheus and Alertmanager may want to know who asks."""

    def bearer(self, of: str) -> str | None:
        """Return the token for `prometheus` or `alertmanager`, None where there is none. Never written anywhere."""


@runtime_checkable
class HasLedger(Protocol):
    """Ledger proxies stand in front of the engines and log every attempt."""

    clock_error_s: float  # by how much the times of the attempts may be wrong, either way

    def collect_ledger(self, since_mono: float) -> list[Json] | None:
        """Return the attempts that began since then, on the driver's clock, those still open included.

        None when there are no proxies in this run.
        """


@runtime_checkable
class HasEvents(Protocol):
    """The target tells what happened to its replicas, and takes alert notifications for us."""

    def replica_events(self, after: int) -> list[Json]:
        """Return numbered events (n, mono, replica, change, uid, pid, by, ...) after number `after`."""

    def notifications(self, after: int) -> list[Json]:
        """Return numbered webhook receipts (n, mono, status, alert, labels) after number `after`."""


@runtime_checkable
class NodeAccess(Protocol):
    """The processes of replicas can be seen, and signalled, where they run."""

    def reach(self, replicas: Sequence[Replica], tell: Callable[[str, Json], None]) -> list[Replica]:
        """Make their machines ready for what is to be done there; returns the replicas with their processes.

        Called before anything is touched, within its own deadline; what it makes for that it tells the journal first.
        Raises Refused.
        """


@runtime_checkable
class HasGpus(Protocol):
    """Replicas hold GPUs and `nvidia-smi` is there to reset them."""

    def nvidia_smi(self, host: str) -> list[str]:
        """Return the command prefix that runs nvidia-smi on that host."""

    def gpu_device(self, uuid: str) -> str:
        """Return the device file of the GPU (a holder is a process that has it open)."""

    def clock_lock(self, replica: str) -> tuple[int, ...] | None:
        """Return what the site itself has locked the clocks of that replica's GPUs to, lowest and highest MHz.

        () where it has locked none; None where nobody has said, and nobody can read it.
        """


@runtime_checkable
class HasGpuNodes(Protocol):
    """Replicas hold GPUs of nodes that can be cordoned, and a job there can reset them."""

    def gpu_node(self, name: str, run: str | None = None) -> GpuNode:
        """Return the node of that name, through the helper of that run (None: the present one). Raises Refused."""


@runtime_checkable
class HasUnits(Protocol):
    """Replicas are units of their hosts' service manager, which can be stopped there and started again."""

    def unit_host(self, name: str) -> UnitHost:
        """Return the host of that name with its units."""


@runtime_checkable
class HasProxies(Protocol):
    """A ledger proxy stands in front of each engine and takes faults as files."""

    def proxy(self, replica: Replica) -> Json | None:
        """Return {listen, control, faults_dir} of the replica's proxy: two URLs and a folder on its host.

        With `host` and a `folder` of ours on it where that is not the driver's machine: from there it is reached, and
        there its folder is. None while there is none: a run puts it up before its load (`BringsProxies`).
        """


@runtime_checkable
class BringsProxies(Protocol):
    """Ledger proxies are put in front of its engines for the time of a run. A spot says where one stands."""

    def wants_proxies(self, faults: Sequence[Fault]) -> bool:
        """Whether a run with these faults needs them, or the target's file asks for them."""

    def aim_proxies(self, replicas: Sequence[Replica], tag: str) -> list[Json]:
        """Return the spots for these replicas. Changes nothing; Refused when one cannot have a proxy."""

    def put_up_proxies(self, spots: Sequence[Json]) -> list[Json]:
        """Put them up; returns for each what was done, or {"error"}."""

    def look_at_proxies(self, spots: Sequence[Json]) -> list[Json]:
        """Return for each {lives, rules, through, beside, changed}, or {"error"}."""

    def undo_of_proxies(self, spots: Sequence[Json]) -> Sequence[Json]:
        """Return the undo steps."""

    def without_proxy(self, now: Sequence[Replica]) -> list[Replica]:
        """Return those of the replicas that could have one and have none yet."""


@runtime_checkable
class HasNetwork(Protocol):
    """Replicas have a network that rules can shape without harm to anybody else."""

    def network(self, replica: Replica) -> Json | None:
        """Return where to shape what reaches the replica, None when this target has no such network (else Refused).

        {"netns": {pid, start, inode}, or None for the host's own; "port": on which the router reaches it;
        "peers": {name: [IPv4 addresses]}, the router among them; "management": [addresses that no rule may hit];
        "bystanders": {name: netns} of everybody near; "redirected": {port: port}, optional, where packets to a port
        arrive at another one}.
        """


# ---- faults -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Receipt:
    """Everything needed to undo a fault, as plain data, written before the fault.

    `holds` are lock files the on-target timer keeps locked until the fault is off; `undo` are steps of
    `drills.undo`, carried out by the timer at the deadline, by revert, or by `drill recover`.
    """

    id: str
    run: str
    fault: str
    target: str
    host: str
    victims: tuple[Json, ...]  # Replica fields pinned at aim time: name, uid, pid, pid_start, gpus, ...
    prior: Json
    holds: tuple[str, ...]
    undo: tuple[Json, ...]
    deadline_s: float  # from arming
    params: Json = field(default_factory=dict)


@dataclass(frozen=True)
class Observation:
    """What could be seen of a fault. `on` is None when nothing could be proven either way."""

    on: bool | None
    evidence: tuple[Json, ...]
    bystanders_ok: bool | None = None


@dataclass
class Context:
    """What a fault may use while it works: a way to tell the journal, the clock, and the stop flag."""

    tell: Callable[[str, Json], None]  # event name, data: journalled and fsynced before it returns
    sleep: Callable[[float], None]
    mono: Callable[[], float]
    stopping: Callable[[], bool]
    timeout_s: float = 120.0


class Fault(Protocol):
    """preflight → aim → inject → observe → revert. One file each in `drills/faults/`.

    One that aims at the route to all primaries, whom nobody can replace, says so with `route: ClassVar[bool] = True`;
    it takes no parameter `victims`. One whose proof takes its time says how much in `proof_s`, seconds: a fault phase
    that is over sooner is refused. What people must know before they run one is its `warning`; what one stands for
    without being it, its `emulates`. Whoever waits asks the context whether the run stops.
    """

    name: ClassVar[str]
    held: ClassVar[bool]  # stays on until reverted; False: a one-shot deed
    effect: ClassVar[bool]  # False only for the control

    def needs(self) -> frozenset[str]:
        """Return the abilities the target must have (names of the protocols above)."""

    def preflight(self, target: Target, victims: Sequence[Replica]) -> list[str]:
        """Read only. Return the reasons to refuse, each one sentence."""

    def aim(self, target: Target, victims: Sequence[Replica], *, run: str, receipt: str, deadline_s: float) -> Receipt:
        """Note the prior state and return the receipt. Changes nothing."""

    def inject(self, target: Target, receipt: Receipt, ctx: Context) -> None:
        """Do it. Tells `inject.hit` right before the first mutation and a step for each later one."""

    def observe(self, target: Target, receipt: Receipt, ctx: Context) -> Observation:
        """Prove that the fault is on, or (after revert) off, and only where aimed."""

    def revert(self, target: Target, receipt: Receipt, ctx: Context) -> Restored:
        """Put everything back. Needs target and receipt only, may run twice, from any process."""


@runtime_checkable
class CountsSwallowed(Protocol):
    """A fault that swallows packets, and knows how many."""

    def counts(self, target: Target, receipt: Receipt) -> Json | None:
        """Return {"new", "packets"} swallowed so far, None when it is not on (yet, or any more). Raises DrillError.

        `new` are attempts to connect that came to nothing, each counted once, the router's health checks among them.
        """


# ---- what was seen, and what it means -----------------------------------------------------------------


@dataclass(frozen=True)
class Event:
    """One numbered line of the journal."""

    n: int
    time: str  # UTC, ISO 8601 with microseconds and Z
    mono: float
    event: str
    data: Json


@dataclass(frozen=True)
class CheckResult:
    """A check's answer with its evidence; becomes one row of verdict.json."""

    check: str
    verdict: Verdict
    value: float | str | None = None
    bound: float | str | None = None
    unit: str = ""  # s | ratio | count | "" for words
    n: int | None = None
    interval: tuple[float | None, float | None] | None = None
    reason: str = ""
    events: tuple[int, ...] = ()
    params: Json = field(default_factory=dict)
    detail: Json = field(default_factory=dict)


@dataclass(frozen=True)
class RunVerdict:
    """verdict.json: the merged verdict, and beside it, apart from it, how things were left."""

    run: str
    verdict: Verdict
    restored: Restored
    left: Left
    exit_code: int
    checks: tuple[CheckResult, ...]
    reason: str = ""
