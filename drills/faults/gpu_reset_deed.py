"""The deed of the planned gpu-reset, step by step; each is in the journal, and every wait is bounded.

    node.cordoned → evicted → telemetry.paused → holders.gone → reset.begin → reset.end → device.verified →
    settings.restored → telemetry.restored → allocatable.back → node.uncordoned

A stop is heard until a reset has begun; then the reset ends by itself, and the way back follows either way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, cast

from drills.access import nodemarks
from drills.errors import DrillError, NotRestored, Refused
from drills.faults import reset_outcome
from drills.faults.common import still_the_one
from drills.faults.eviction import await_budget
from drills.faults.gpu_deed import RESET_TIMEOUT_S, TEXT_LIMIT, GpuDeed
from drills.model import CanEvict, Context, Json, Receipt, Replica, Target
from drills.nodes import GpuNode
from drills.probes import gpu_host

TEARDOWN_TIMEOUT_S: Final = 300.0  # from the eviction until nobody holds the GPU; also bounded by the run
RESET_SLACK_S: Final = 90.0  # until the job's pod starts, and its end is told
SETTINGS_TIMEOUT_S: Final = 60.0
LOOK_AGAIN_S: Final = 1.0  # a look at the node is a command in the helper


class Deed(GpuDeed):
    """One injection."""

    after = "the eviction"
    teardown_s = TEARDOWN_TIMEOUT_S
    look_again_s = LOOK_AGAIN_S

    def __init__(self, target: Target, node: GpuNode, receipt: Receipt, ctx: Context, budget_timeout_s: float) -> None:
        super().__init__(target, node.host, receipt, ctx)
        self.node, self.budget_timeout_s = node, budget_timeout_s
        self.back = next(step for step in receipt.undo if step["do"] == "node")
        self.jobs: dict[str, list[str]] = receipt.prior["jobs"]
        self._began: dict[str, Json] = {}  # the last reset of each GPU

    def go(self) -> None:
        """Go through all steps.

        Raises Refused before the deed; after it Stopped or DrillError while the GPU is as it was, and NotRestored
        when nobody knows how it is.
        """
        victims = self._last_look()
        self._await_budget(victims)
        self.ctx.tell("inject.hit", {"receipt": self.receipt.id, "victims": [v.name for v in victims]})
        self.node.cordon(self.back)
        self.step("node.cordoned", ok=True, node=self.node.name, by_us=self.back["cordon"])
        self._evict(victims)
        self.node.pause(self.back)
        self.step("telemetry.paused", ok=True, labels=self.back["labels"])
        self.wait_until_gone()
        for uuid in self.jobs:
            self._one_gpu(uuid)
        if not self.ctx.stopping():  # else revert, which does the same, is next
            self._let_back_in()

    # ---- the replica leaves ----------------------------------------------------------------------------

    def _last_look(self) -> list[Replica]:
        """Refuse when anything changed since the aim: this is the last moment at which nothing was touched."""
        replicas = self.target.replicas()
        found = [still_the_one(v, replicas) for v in self.receipt.victims]
        for victim, replica in zip(self.receipt.victims, found, strict=True):
            if replica is None:
                raise Refused(f"{victim['name']}: is no longer the replica that was aimed at; nothing was touched")
        for name in (name for names in self.jobs.values() for name in names):
            if self.node.reset(name) is not None:
                raise Refused(f"job {name}: this reset was begun before; it is never repeated")
        victims = [replica for replica in found if replica is not None]
        if refusals := self.node.refusals(victims):
            raise Refused(f"{'; '.join(refusals)}; nothing was touched")
        return victims

    def _await_budget(self, victims: Sequence[Replica]) -> None:
        """Wait until the budgets let all replicas go."""

        def refused(name: str, reason: str) -> None:
            self.step("evict.refused", ok=False, replica=name, reason=reason)

        await_budget(self.target, victims, self.ctx, self.budget_timeout_s, refused)

    def _evict(self, victims: Sequence[Replica]) -> None:
        for victim in victims:
            refusal = cast("CanEvict", self.target).evict_replica(victim, grace_s=None)
            self.step("evicted", ok=refusal is None, replica=victim.name, uid=victim.uid, reason=refusal)
            if refusal:
                raise DrillError(f"{victim.name}: its eviction was refused at the last moment: {refusal}")

    def holders(self) -> list[Json]:
        """Return who has the GPUs open now, but the daemon that leaves by itself."""
        survey = self.node.survey()
        if survey["errors"]:
            raise DrillError(f"gpu-reset: the GPU was not reset: {'; '.join(survey['errors'])}")
        return [h for h in survey["holders"] if h["gpu"] in self.jobs and not gpu_host.is_daemon(h)]

    # ---- the reset -------------------------------------------------------------------------------------

    def _one_gpu(self, uuid: str) -> None:
        first, second = self.jobs[uuid]
        outcome = self._attempt(uuid, first)
        if outcome in ("in_use", "in_use_old"):  # it changed nothing: look again who it was, and try once more
            outcome = self._attempt(uuid, second)
        if outcome in reset_outcome.NEEDS_HUMAN:
            raise self.needs_human(uuid, f"its reset ended as '{outcome}': {reset_outcome.OUTCOMES[outcome]}")
        if outcome == "ok":
            self.verify(uuid)
        self.node.progress(self.back, nodemarks.JUDGED)
        if outcome != "ok":
            raise DrillError(f"gpu-reset: GPU {uuid} was not reset: {reset_outcome.OUTCOMES[outcome]}")

    def _attempt(self, uuid: str, job: str) -> str:
        self.quiet()
        self.node.progress(self.back, nodemarks.BEGUN)
        self.step("reset.begin", ok=None, gpu=uuid, command=self.node.command_of_reset(uuid), job=job)
        self.node.begin_reset(job, uuid, run=self.receipt.run, limit_s=RESET_TIMEOUT_S)
        found = wait_for_end(self.node, job, self.ctx) or {"rc": None, "text": "", "began_s": None}
        self._began[uuid] = found
        outcome = reset_outcome.classify(found["rc"], found["text"], self.prior["gpus"][uuid]["pci"])
        text = found["text"][:TEXT_LIMIT]
        self.step("reset.end", ok=outcome == "ok", gpu=uuid, outcome=outcome, rc=found["rc"], text=text)
        return outcome

    def look(self) -> Json:
        """Return how node and GPUs are now."""
        return self.node.look()

    def since_reset_s(self, now: Json, uuid: str) -> float:
        """Return how long ago the reset began by the node's own clock."""
        return elapsed_s(now, self._began.get(uuid))

    def needs_human(self, uuid: str, sentence: str) -> NotRestored:
        """Leave a note on the node that keeps everybody from uncordoning it, and say what to do."""
        name = self.node.name
        self.node.progress(self.back, nodemarks.JUDGED, f"GPU {uuid}: {sentence}")
        return NotRestored(
            f"node {name}: GPU {uuid}: {sentence}. It stays cordoned; look at it (nvidia-smi -q -i {uuid}; dmesg | "
            f"grep NVRM); it may need a power cycle. When it is well: kubectl annotate node {name} {nodemarks.HUMAN}-, "
            "then `drill recover`"
        )

    # ---- everybody comes back --------------------------------------------------------------------------

    def _let_back_in(self) -> None:
        """Settings, watchers, then the cordon: the new replica must find its GPU offered."""
        for uuid in self.jobs:
            argv = command_of_settings(self.node, uuid, self.prior["gpus"][uuid])
            done = self.host.run(argv, timeout_s=SETTINGS_TIMEOUT_S)
            self.step("settings.restored", ok=done.rc == 0, gpu=uuid, text=done.err.strip()[:TEXT_LIMIT])
        self.node.unpause(self.back)
        self.step("telemetry.restored", ok=True)
        before, now = self.back["offers"], self.node.offers_again(self.back, self.ctx.stopping)
        if self.ctx.stopping():  # revert, which does the rest, is next
            return
        self.step("allocatable.back", ok=now == before, before=before, now=now)
        why = self.node.put_back(self.back)
        self.step("node.uncordoned", ok=why is None, node=self.node.name, reason=why)
        if why:
            raise DrillError(why)


def wait_for_end(node: GpuNode, job: str, ctx: Context) -> Json | None:
    """Wait for the end of a reset, which nothing cuts short; returns what is known of it, None when none was begun."""
    deadline = ctx.mono() + RESET_TIMEOUT_S + RESET_SLACK_S
    while (found := node.reset(job)) is not None and found["active"] and ctx.mono() < deadline:
        ctx.sleep(LOOK_AGAIN_S)
    return found


def elapsed_s(now: Json, job: Json | None) -> float:
    """Return seconds since the reset began, on the node's own clock; 0, which proves nothing, when not known."""
    if job is None or job["began_s"] is None or now["host_uptime_s"] is None:
        return 0.0
    return float(now["host_uptime_s"]) - float(job["began_s"])


def command_of_settings(node: GpuNode, uuid: str, gpu: Json) -> list[str]:
    """Return the command that puts the GPU's settings back, which a reset drops; runs in the helper."""
    base = f"/run/drill/gpu-reset/{uuid}"  # of notes that the planned way does not take
    argv = [node.host.python, "-m", "drills.access.gpu_restore", "--base", base, "--uuid", uuid]
    if gpu["persistence"] is not None:
        argv += ["--persistence", "1" if gpu["persistence"] else "0"]
    if gpu["power_limit_w"] is not None and gpu["power_default_w"] is not None:
        argv += ["--power-limit", f"{gpu['power_limit_w']:.2f}", "--default-limit", f"{gpu['power_default_w']:.2f}"]
    return [*argv, "--smi", *node.smi]
