"""Where the downtime went: the stages from the injection to normal service, and the steps of a GPU reset."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from drills.checks import measures
from drills.evidence import at
from drills.lang import mark, t
from drills.model import Event
from drills.report import impact
from drills.report.facts import Facts, earliest, lines_of
from drills.report.source import find


@dataclass(frozen=True)
class Stage:
    """A stage that was reached: mono seconds (None: not seen), and the source of the figure (inert Markdown).

    Its name and its meaning are messages that are not said yet.
    """

    name: str
    meaning: str
    at: float | None
    source: str


def downtime(facts: Facts) -> list[Stage]:
    """Return the stages of the way back; of several victims the slowest counts. Empty where no effect is claimed.

    Held faults end nobody's process, so nobody has to start again; with all of a route hit nobody takes over either.
    """
    hit = facts.hit
    if hit is None or facts.control:
        return []
    split, restarts = measures.split(facts.evidence), [measures.restart(facts.evidence, name) for name in facts.victims]
    moved = measures.failover(facts.evidence)
    last = moved.last_arrival if moved else None

    def stage(name: str, meaning: str, key: str, source: str) -> Stage:
        after_s = split.get(key)
        return Stage(name, meaning, None if after_s is None else hit + after_s, source if after_s is not None else "—")

    rerouted = f"requests.ndjson arrival {last}" if last is not None else t("requests.ndjson: no arrival was hurt")
    started = lines_of(*(r.started for r in restarts if r))
    ready = lines_of(*(r.ready for r in restarts if r))
    served = lines_of(*(r.completion for r in restarts if r))
    moves = [
        stage(
            mark("detect"),
            mark("the router counted fewer healthy replicas"),
            "detect_s",
            "samples.ndjson, probe router",
        ),
        stage(mark("reroute"), mark("last arrival that the fault still hurt (failover)"), "reroute_s", rerouted),
    ]
    starts = [
        stage(mark("reschedule"), mark("a new process was started"), "reschedule_s", started),
        stage(mark("ready"), mark("the victim was ready again"), "ready_s", ready),
        stage(mark("first good completion"), mark("asked for straight from it"), "first_completion_s", served),
    ]
    off = facts.evidence.last("proof.off")
    lifted = [Stage(mark("fault off"), mark("proven by what it did"), at(off) if off else None, lines_of(off))]
    in_band = stage(
        mark("p99 back in band"), mark("every 10 s window in the SLA from here on"), "in_band_s", "requests.ndjson"
    )
    if measures.never_out(facts.evidence):
        in_band = Stage(mark("p99 back in band"), mark("never left it"), None, "requests.ndjson")
    return [*([] if facts.route else moves), *_opened(facts), *(lifted if facts.held else starts), in_band]


def _opened(facts: Facts) -> list[Stage]:
    """Return when degradation opened; nothing where nobody asked for it."""
    if not any(check.get("check") == "degraded" for check in facts.checks):
        return []
    seen = impact.opening(facts)
    source = f"requests.ndjson arrival {seen.arrival}, verdict.json: `degraded`" if seen else "verdict.json: `degraded`"
    meaning = mark("first request that got a degraded answer in time")
    return [Stage(mark("degradation open"), meaning, seen.at if seen else None, source)]


def gpu_reset(facts: Facts) -> list[Stage]:
    """Return the steps of a GPU reset; empty when the run had none."""
    hit = facts.hit
    if hit is None or "gpu-reset" not in facts.faults:
        return []
    ways = (way for told, way in _WAYS if _step(facts, told) is not None)
    before, after, starts, answered = next(ways, _CRASH)
    steps = [(*named, _step(facts, step)) for step, *named in (*before, *_RESET, *after)]
    start, token = (*starts, _change(facts, "started", hit)), (*answered, _completion(facts, hit))
    return [_from_journal(*step) for step in (*steps, start, token)]


#: step of the journal, name, meaning
_RESET = (
    ("holders.gone", mark("holders gone"), mark("no process held the device")),
    ("reset.begin", mark("reset begin"), mark("nvidia-smi --gpu-reset was called")),
    ("reset.end", mark("reset end"), mark("it returned")),
    ("device.verified", mark("device verified"), mark("same UUID and boot, uptime dropped")),
)
#: what comes before and after these; then the start of the replica, and its first token
_CRASH = (
    (("engine.killed", mark("stop"), mark("the engine was killed")),),
    (("gate.opened", mark("gate opened"), mark("the restart was allowed to go on")),),
    (mark("start"), mark("the supervisor started the replica")),
    (mark("first token"), mark("the replica answered from that GPU")),
)
_PLANNED = (
    (
        ("node.cordoned", mark("cordon"), mark("the node takes no new pods")),
        ("evicted", mark("stop"), mark("the replica was evicted")),
        ("telemetry.paused", mark("pause"), mark("what watches the GPU was told to go")),
    ),
    (
        ("allocatable.back", mark("allocatable"), mark("the node offers its GPUs again")),
        ("node.uncordoned", mark("uncordon"), mark("the node takes pods again")),
    ),
    (mark("start"), mark("the controller's new replica started")),
    (mark("first token"), mark("the new replica answered")),
)
_STOPPED = (
    (
        ("unit.stopped", mark("stop"), mark("the replica's unit was stopped")),
        ("units.paused", mark("pause"), mark("the units that watch the GPU were stopped")),
    ),
    (
        ("units.restored", mark("restore"), mark("the units that watch the GPU run again")),
        ("unit.started", mark("unit start"), mark("the replica's unit was started again")),
    ),
    (mark("start"), mark("the replica's new process started")),
    (mark("first token"), mark("the replica answered from that GPU")),
)
#: by a step that only this way has
_WAYS = (("node.cordoned", _PLANNED), ("unit.stopped", _STOPPED))


@dataclass(frozen=True)
class Uptime:
    """A GPU's uptime before and after the reset in seconds, and whether the boot id stayed."""

    before_s: float | None
    after_s: float | None
    same_boot: bool | None
    source: str


def uptime(facts: Facts) -> Uptime | None:
    """Return the proof of the reset; None when the run had none."""
    verified = _step(facts, "device.verified")
    written = facts.receipt("gpu-reset")
    if written is None:
        return None
    event, data = written
    boots = (find(data.get("prior"), "boot_id"), find(verified.data, "boot_id") if verified else None)
    return Uptime(
        find(data.get("prior"), "uptime_s"),
        find(verified.data, "uptime_s") if verified else None,
        None if None in boots else boots[0] == boots[1],
        lines_of(event, verified),
    )


def _from_journal(name: str, meaning: str, event: Event | None) -> Stage:
    return Stage(name, meaning, at(event) if event else None, lines_of(event))


def _first(facts: Facts, name: str, hit: float, test: Callable[[Event], bool]) -> Event | None:
    return earliest(event for event in facts.of(name) if at(event) >= hit and test(event))


def _change(facts: Facts, change: str, hit: float) -> Event | None:
    victims = facts.victims
    return _first(facts, "replica", hit, lambda e: e.data.get("change") == change and e.data.get("replica") in victims)


def _completion(facts: Facts, hit: float) -> Event | None:
    started = _change(facts, "started", hit)
    victims, since = facts.victims, at(started) if started else hit
    return _first(facts, "completion", since, lambda e: e.data.get("ok") is True and e.data.get("replica") in victims)


def _step(facts: Facts, step: str) -> Event | None:
    return facts.first("inject.step", lambda event: event.data.get("step") == step)
