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
from drills.checks.base import named, several
from drills.checks.watching import PROBE_GAP_S, blind, deeds, looks
from drills.evidence import Evidence
from drills.lang import mark, spoken, t
from drills.model import Event, Json, Phase, Verdict
from drills.strictjson import is_number, is_text

ON_TIME_SHARE = 0.98
LAG_OF_SLA = 0.05
CPU_MAX = 0.80
CPU_WINDOW_S = 10  # heartbeats; a busy second alone shows in the lag, if it matters


@dataclass(frozen=True)
class Gate:
    """One gate: `broken` is the reason, empty when it holds."""

    name: str  # marked: said by `t`
    broken: str
    value: float | None = None
    bound: float | None = None


def gates(ev: Evidence) -> list[Gate]:
    """Return all gates, in the order in which they matter."""
    found = ev.once(f"gates {spoken()}", lambda: [_guarded(name, gate, ev) for name, gate in _GATES.items()])
    return list(found)


def reasons(ev: Evidence) -> list[str]:
    """Return why the run may not be judged; empty when it may."""
    return [gate.broken for gate in gates(ev) if gate.broken]


def _guarded(name: str, gate: Callable[[Evidence], Gate | str], ev: Evidence) -> Gate:
    """A gate that cannot be evaluated does not hold."""
    try:
        found = gate(ev)
    except Exception:
        return Gate(name, t("'{gate}' cannot be told from these files", gate=t(name)))
    return found if isinstance(found, Gate) else Gate(name, found)


def _completed(ev: Evidence) -> str:
    end = ev.last("end")
    if end is None:
        return t("the journal ends before the run did")
    if end.data.get("status") != "completed":
        why = end.data.get("reason") or t("no reason given")
        return t("the run did not complete: {status}: {reason}", status=end.data.get("status"), reason=why)
    broken = ev.last("broken")
    if broken is None:
        return ""
    return t("{step} failed: {error}", step=broken.data.get("step"), error=broken.data.get("error"))


def _undisturbed(ev: Evidence) -> str:
    changed = ev.of("changed_by_others")
    return t("changed by others: {change}", change=change_words(changed[0].data)) if changed else ""


def change_words(data: Json) -> str:
    """Say what others changed: of an object, of a replica, or of the lock."""
    if "subject" in data:
        return f"{data['subject']}: {data.get('what')} {data.get('was')} → {data.get('now')}"
    if "replica" in data:
        return t(
            "{replica}: {change} before the fault, by {who}",
            replica=data["replica"],
            change=data.get("change"),
            who=data.get("by") or t("nobody known"),
        )
    return str(data.get("lock") or data)


def _files(ev: Evidence) -> str:
    if ev.problems:
        return t("; ").join(ev.problems)
    if not ev.numbered:
        return t("the journal has a hole: its events are not numbered 1, 2, 3, ...")
    if any(later.mono < earlier.mono for earlier, later in pairwise(_until_end(ev))):
        return t("the journal's times run backwards")
    said = [e.data for e in ev.of("collected") if e.data.get("file") == "ledger.ndjson"]
    if said and said[-1].get("lines") != ev.ledger.height:
        return t(
            "ledger.ndjson has {n} lines, {collected} were collected",
            n=ev.ledger.height,
            collected=said[-1].get("lines"),
        )
    return whole.samples(ev) or whole.ledger(ev)


def _until_end(ev: Evidence) -> list[Event]:
    """Return the events of the run itself; a recovery may come after a reboot, with another clock."""
    end = next((i for i, event in enumerate(ev.events) if event.event == "end"), len(ev.events))
    return list(ev.events[: end + 1])


def _consistent(ev: Evidence) -> str:
    count = records.contradictions(ev.requests)
    if count == 1:
        return t("1 record contradicts itself")
    return t("{n} records contradict themselves", n=count) if count else ""


def _load_alive(ev: Evidence) -> str:
    stopped = ev.last("load.stopped")
    if stopped is None:
        return t("the load process never reported its end")
    return t("the load process died: {reason}", reason=stopped.data.get("reason")) if stopped.data.get("died") else ""


def _accounted(ev: Evidence) -> str:
    return mismatch(ev)


def _on_time(ev: Evidence) -> Gate:
    """Arrivals sent, or shed, before their own delay alone would have broken the SLA."""
    name = mark("handled on time")
    stopped = ev.last("load.stopped")
    drawn = stopped.data.get("drawn") if stopped else None
    if drawn is None:
        return Gate(name, t("the generator never said how many arrivals it drew"))
    if drawn <= 0:
        return Gate(name, t("no arrivals were drawn"))
    share = ev.requests.filter(pl.col("lag") <= ev.sla.ttft.value_s).height / drawn
    broken = t(
        "the generator handled {share:.1%} of the arrivals on time, {needed:.0%} are needed",
        share=share,
        needed=ON_TIME_SHARE,
    )
    return Gate(name, "" if share >= ON_TIME_SHARE else broken, round(share, 6), ON_TIME_SHARE)


def _lag(ev: Evidence) -> Gate:
    name, bound = mark("schedule lag"), LAG_OF_SLA * ev.sla.ttft.value_s
    baseline = ev.phase(Phase.BASELINE)
    judged = ev.requests if baseline is None else ev.requests.filter(pl.col("intended") >= baseline.begin)
    p99 = stats.nearest_rank(array("d", judged["lag"].drop_nulls().sort()), 0.99)
    if p99 is None:
        return Gate(name, t("no schedule lag was recorded"))
    broken = t(
        "the generator's schedule lag p99 is {ms:.0f} ms, at most {most:.0f} ms may be",
        ms=1000 * p99,
        most=1000 * bound,
    )
    return Gate(name, "" if p99 <= bound else broken, round(p99, 6), round(bound, 6))


def _cpu(ev: Evidence) -> Gate:
    name = mark("generator CPU")
    if missing := _cpu_unseen(ev):
        return Gate(name, missing)
    cpu = _busiest(ev)
    if cpu is None:
        return Gate(name, t("the generator's CPU was not measured"))
    broken = t("the generator used {cpu:.0%} of a core, less than {bound:.0%} may be", cpu=cpu, bound=CPU_MAX)
    return Gate(name, "" if cpu < CPU_MAX else broken, round(cpu, 6), CPU_MAX)


def _cpu_unseen(ev: Evidence) -> str:
    """Say where the heartbeats of baseline and fault do not tell the CPU; empty when they do."""
    begun, fault = ev.phase(Phase.BASELINE), ev.phase(Phase.FAULT)
    if begun is None:
        return ""
    beats = [s for s in ev.samples if s["probe"] == "load" and s["ok"]]
    without = sum(1 for s in beats if not is_number(s["values"].get("cpu")))
    if without:
        return t("{n} of {total} heartbeats of the generator do not tell its CPU", n=without, total=len(beats))
    low, high = blind(looks(ev, "load"), begun.begin, (fault or begun).end, deeds(ev))
    if high - low <= PROBE_GAP_S:
        return ""
    return t(
        "the generator's CPU was not measured for {seconds:.1f} s of baseline and fault, {allowed:g} s may be",
        seconds=high - low,
        allowed=PROBE_GAP_S,
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
        return t("there is no baseline")
    slow, failed = int(before["violation"].sum()), n - int(before["good"].sum())
    if stats.judge_share(failed, n, ev.sla.errors) is Verdict.FAIL:
        return t(
            "the SLA was broken before the fault: {n} of {total} baseline arrivals were not answered",
            n=failed,
            total=n,
        )
    if stats.judge_share(slow, n, 1.0 - ev.sla.ttft.quantile) is Verdict.FAIL:
        return t(
            "the SLA was broken before the fault: {n} of {total} baseline arrivals were over the TTFT bound",
            n=slow,
            total=n,
        )
    return ""


_NOT_PROVEN = {
    "proof.on": mark("{fault} is not proven on: {reason}"),
    "proof.off": mark("{fault} is not proven off: {reason}"),
}


def _proven(ev: Evidence) -> str:
    """Each fault that was put on is proven on, and later off; a one-shot one leaves nothing in place."""
    if not ev.receipts:
        return t("no fault was put on")
    if ev.t_inject is None:
        return t("nothing was injected")
    for receipt in ev.receipts:
        for proof in _NOT_PROVEN:
            seen = [e.data for e in ev.of(proof) if e.data.get("receipt") == receipt["id"]]
            if why := _unproven(seen) or _others(ev, seen, proof):
                return t(_NOT_PROVEN[proof], fault=receipt["fault"], reason=why)
        if why := _astray(ev, receipt):
            return t(_NOT_PROVEN["proof.on"], fault=receipt["fault"], reason=why)
    return ""


def _unproven(seen: list[Json]) -> str:
    """Say why the last look proves nothing; empty when it does."""
    if not seen:
        return t("nobody looked")
    last = seen[-1]
    if last.get("ok") is not True:
        return t("it was seen not to be") if last.get("ok") is False else t("nothing could be seen")
    found = last.get("evidence") or []
    if not found or not all(is_text(item.get("what")) and len(item) > 1 for item in found):
        return t("there is no evidence with that word")
    return t("nobody looked at the others") if last.get("bystanders_ok") is None else ""


def _others(ev: Evidence, seen: list[Json], proof: str) -> str:
    """Say that others were hit as well, which `untouched` finds where it is asked, and which voids the run where not.

    What hurt them later on shows in the way back's proof, and only `untouched` tells it.
    """
    if proof != "proof.on" or seen[-1].get("bystanders_ok") or "untouched" in _asked(ev):
        return ""
    return t("others were hit as well")


def _asked(ev: Evidence) -> set[str]:
    """Return the names of the checks that the experiment asks for."""
    return {named(item)[0] for item in ev.plan.get("experiment", {}).get("checks", ())}


def _astray(ev: Evidence, receipt: Json) -> str:
    """Say that the deeds are not those that the receipt announced; empty when they are."""
    aimed = {str(victim["name"]) for victim in receipt["victims"]}
    hits = [e for e in ev.hits if e.data.get("receipt") == receipt["id"]]
    hit = {str(name) for event in hits for name in event.data["victims"]}
    if not hits:
        return t("nobody told of the deed")
    if hit != aimed or not aimed or not all(event.data["victims"] for event in hits):
        return t(
            "{aimed} was aimed at, {hit} was hit",
            aimed=several(sorted(aimed)) or t("nobody"),
            hit=several(sorted(hit)) or t("nobody"),
        )
    return ""


_GATES: dict[str, Callable[[Evidence], Gate | str]] = {
    mark("run completed"): _completed,
    mark("undisturbed"): _undisturbed,
    mark("files whole"): _files,
    mark("load process alive"): _load_alive,
    mark("fault proven on and off"): _proven,
    mark("all arrivals accounted for"): _accounted,
    mark("records agree with themselves"): _consistent,
    mark("handled on time"): _on_time,
    mark("schedule lag"): _lag,
    mark("generator CPU"): _cpu,
    mark("baseline in the SLA"): _baseline,
}
