"""Whether a run may be judged at all. One broken gate makes the whole run inconclusive, with the reason.

A measurement that is not to be trusted is neither a pass nor a fail of the service.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import polars as pl

from drills import records, stats
from drills.checks import whole
from drills.checks.accounted import mismatch
from drills.checks.base import named
from drills.checks.watching import PROBE_GAP_S, blind, deeds, looks
from drills.evidence import Evidence
from drills.model import Event, Json, Phase, Verdict
from drills.strictjson import is_number, is_text

ON_TIME_SHARE = 0.98
LAG_OF_SLA = 0.05
CPU_MAX = 0.80
CPU_WINDOW_S = 10  # heartbeats; a busy second alone shows in the lag, if it matters


@dataclass(frozen=True)
class Gate:
    """One gate: `broken` is the reason, empty when it holds."""

    name: str
    broken: str
    value: float | None = None
    bound: float | None = None


def gates(ev: Evidence) -> list[Gate]:
    """Return all gates, in the order in which they matter."""
    return list(ev.once("gates", lambda: [_guarded(name, gate, ev) for name, gate in _GATES.items()]))


def reasons(ev: Evidence) -> list[str]:
    """Return why the run may not be judged; empty when it may."""
    return [gate.broken for gate in gates(ev) if gate.broken]


def _guarded(name: str, gate: Callable[[Evidence], Gate | str], ev: Evidence) -> Gate:
    """A gate that cannot be evaluated does not hold."""
    try:
        found = gate(ev)
    except Exception:
        return Gate(name, f"'{name}' cannot be told from these files")
    return found if isinstance(found, Gate) else Gate(name, found)


def _completed(ev: Evidence) -> str:
    end = ev.last("end")
    if end is None:
        return "the journal ends before the run did"
    if end.data.get("status") != "completed":
        return f"the run did not complete: {end.data.get('status')}: {end.data.get('reason') or 'no reason given'}"
    broken = ev.last("broken")
    return f"{broken.data.get('step')} failed: {broken.data.get('error')}" if broken else ""


def _undisturbed(ev: Evidence) -> str:
    changed = ev.of("changed_by_others")
    return f"changed by others: {change_words(changed[0].data)}" if changed else ""


def change_words(data: Json) -> str:
    """Say what others changed: of an object, of a replica, or of the lock."""
    if "subject" in data:
        return f"{data['subject']}: {data.get('what')} {data.get('was')} → {data.get('now')}"
    if "replica" in data:
        return f"{data['replica']}: {data.get('change')} before the fault, by {data.get('by') or 'nobody known'}"
    return str(data.get("lock") or data)


def _files(ev: Evidence) -> str:
    if ev.problems:
        return "; ".join(ev.problems)
    if not ev.numbered:
        return "the journal has a hole: its events are not numbered 1, 2, 3, ..."
    if any(later.mono < earlier.mono for earlier, later in pairwise(_until_end(ev))):
        return "the journal's times run backwards"
    said = [e.data for e in ev.of("collected") if e.data.get("file") == "ledger.ndjson"]
    if said and said[-1].get("lines") != ev.ledger.height:
        return f"ledger.ndjson has {ev.ledger.height} lines, {said[-1].get('lines')} were collected"
    return whole.samples(ev) or whole.ledger(ev)


def _until_end(ev: Evidence) -> list[Event]:
    """Return the events of the run itself; a recovery may come after a reboot, with another clock."""
    end = next((i for i, event in enumerate(ev.events) if event.event == "end"), len(ev.events))
    return list(ev.events[: end + 1])


def _consistent(ev: Evidence) -> str:
    count = records.contradictions(ev.requests)
    return f"{count} {'record contradicts itself' if count == 1 else 'records contradict themselves'}" if count else ""


def _load_alive(ev: Evidence) -> str:
    stopped = ev.last("load.stopped")
    if stopped is None:
        return "the load process never reported its end"
    return f"the load process died: {stopped.data.get('reason')}" if stopped.data.get("died") else ""


def _accounted(ev: Evidence) -> str:
    return mismatch(ev)


def _on_time(ev: Evidence) -> Gate:
    """Arrivals sent, or shed, before their own delay alone would have broken the SLA."""
    name = "handled on time"
    stopped = ev.last("load.stopped")
    drawn = stopped.data.get("drawn") if stopped else None
    if drawn is None:
        return Gate(name, "the generator never said how many arrivals it drew")
    if drawn <= 0:
        return Gate(name, "no arrivals were drawn")
    share = ev.requests.filter(pl.col("lag") <= ev.sla.ttft.value_s).height / drawn
    broken = f"the generator handled {share:.1%} of the arrivals on time, {ON_TIME_SHARE:.0%} are needed"
    return Gate(name, "" if share >= ON_TIME_SHARE else broken, round(share, 6), ON_TIME_SHARE)


def _lag(ev: Evidence) -> Gate:
    name, bound = "schedule lag", LAG_OF_SLA * ev.sla.ttft.value_s
    baseline = ev.phase(Phase.BASELINE)
    judged = ev.requests if baseline is None else ev.requests.filter(pl.col("intended") >= baseline.begin)
    p99 = stats.nearest_rank(array("d", judged["lag"].drop_nulls().sort()), 0.99)
    if p99 is None:
        return Gate(name, "no schedule lag was recorded")
    broken = f"the generator's schedule lag p99 is {1000 * p99:.0f} ms, at most {1000 * bound:.0f} ms may be"
    return Gate(name, "" if p99 <= bound else broken, round(p99, 6), round(bound, 6))


def _cpu(ev: Evidence) -> Gate:
    if missing := _cpu_unseen(ev):
        return Gate("generator CPU", missing)
    cpu = _busiest(ev)
    if cpu is None:
        return Gate("generator CPU", "the generator's CPU was not measured")
    broken = f"the generator used {cpu:.0%} of a core, less than {CPU_MAX:.0%} may be"
    return Gate("generator CPU", "" if cpu < CPU_MAX else broken, round(cpu, 6), CPU_MAX)


def _cpu_unseen(ev: Evidence) -> str:
    """Say where the heartbeats of baseline and fault do not tell the CPU; empty when they do."""
    begun, fault = ev.phase(Phase.BASELINE), ev.phase(Phase.FAULT)
    if begun is None:
        return ""
    beats = [s for s in ev.samples if s["probe"] == "load" and s["ok"]]
    without = sum(1 for s in beats if not is_number(s["values"].get("cpu")))
    if without:
        return f"{without} of {len(beats)} heartbeats of the generator do not tell its CPU"
    low, high = blind(looks(ev, "load"), begun.begin, (fault or begun).end, deeds(ev))
    if high - low <= PROBE_GAP_S:
        return ""
    return (
        f"the generator's CPU was not measured for {high - low:.1f} s of baseline and fault, {PROBE_GAP_S:g} s may be"
    )


def _busiest(ev: Evidence) -> float | None:
    """Return the largest mean over ten heartbeats from the baseline on; without heartbeats the largest second."""
    baseline = ev.phase(Phase.BASELINE)
    begin = baseline.begin if baseline else 0.0
    beats = [s["values"]["cpu"] for s in ev.samples if s["probe"] == "load" and s["ok"] and s["mono"] >= begin]
    last: deque[float] = deque(maxlen=CPU_WINDOW_S)
    means = []
    for cpu in beats:
        last.append(float(cpu))
        if len(last) == CPU_WINDOW_S:
            means.append(sum(last) / CPU_WINDOW_S)
    if means:
        return max(means)
    stopped = ev.last("load.stopped")
    value = stopped.data.get("cpu_max") if stopped else None
    return float(value) if isinstance(value, int | float) else None


def _baseline(ev: Evidence) -> str:
    """The SLA already broken before the fault leaves nothing to be learnt about the fault."""
    before = ev.cohort("baseline")
    n = before.height
    if n == 0:
        return "there is no baseline"
    slow, failed = int(before["violation"].sum()), n - int(before["good"].sum())
    if stats.judge_share(failed, n, ev.sla.errors) is Verdict.FAIL:
        return f"the SLA was broken before the fault: {failed} of {n} baseline arrivals were not answered"
    if stats.judge_share(slow, n, 1.0 - ev.sla.ttft.quantile) is Verdict.FAIL:
        return f"the SLA was broken before the fault: {slow} of {n} baseline arrivals were over the TTFT bound"
    return ""


def _proven(ev: Evidence) -> str:
    """Each fault that was put on is proven on, and later off; a one-shot one leaves nothing in place."""
    if not ev.receipts:
        return "no fault was put on"
    if ev.t_inject is None:
        return "nothing was injected"
    for receipt in ev.receipts:
        for proof, word in (("proof.on", "on"), ("proof.off", "off")):
            seen = [e.data for e in ev.of(proof) if e.data.get("receipt") == receipt["id"]]
            if why := _unproven(seen) or _others(ev, seen, proof):
                return f"{receipt['fault']} is not proven {word}: {why}"
        if why := _astray(ev, receipt):
            return f"{receipt['fault']} is not proven on: {why}"
    return ""


def _unproven(seen: list[Json]) -> str:
    """Say why the last look proves nothing; empty when it does."""
    if not seen:
        return "nobody looked"
    last = seen[-1]
    if last.get("ok") is not True:
        return "it was seen not to be" if last.get("ok") is False else "nothing could be seen"
    found = last.get("evidence") or []
    if not found or not all(is_text(item.get("what")) and len(item) > 1 for item in found):
        return "there is no evidence with that word"
    return "nobody looked at the others" if last.get("bystanders_ok") is None else ""


def _others(ev: Evidence, seen: list[Json], proof: str) -> str:
    """Say that others were hit as well, which `untouched` finds where it is asked, and which voids the run where not.

    What hurt them later on shows in the way back's proof, and only `untouched` tells it.
    """
    if proof != "proof.on" or seen[-1].get("bystanders_ok") or "untouched" in _asked(ev):
        return ""
    return "others were hit as well"


def _asked(ev: Evidence) -> set[str]:
    """Return the names of the checks that the experiment asks for."""
    return {named(item)[0] for item in ev.plan.get("experiment", {}).get("checks", ())}


def _astray(ev: Evidence, receipt: Json) -> str:
    """Say that the deeds are not those that the receipt announced; empty when they are."""
    aimed = {str(victim["name"]) for victim in receipt["victims"]}
    hits = [e for e in ev.hits if e.data.get("receipt") == receipt["id"]]
    hit = {str(name) for event in hits for name in event.data["victims"]}
    if not hits:
        return "nobody told of the deed"
    if hit != aimed or not aimed or not all(event.data["victims"] for event in hits):
        return f"{', '.join(sorted(aimed)) or 'nobody'} was aimed at, {', '.join(sorted(hit)) or 'nobody'} was hit"
    return ""


_GATES: dict[str, Callable[[Evidence], Gate | str]] = {
    "run completed": _completed,
    "undisturbed": _undisturbed,
    "files whole": _files,
    "load process alive": _load_alive,
    "fault proven on and off": _proven,
    "all arrivals accounted for": _accounted,
    "records agree with themselves": _consistent,
    "handled on time": _on_time,
    "schedule lag": _lag,
    "generator CPU": _cpu,
    "baseline in the SLA": _baseline,
}
