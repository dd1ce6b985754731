"""Who noticed: the alerts of a run, expected or not, and the router."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from drills.checks import measures
from drills.evidence import at
from drills.lang import mark, t
from drills.model import Event, Json
from drills.report import words
from drills.report.escape import code
from drills.report.facts import Facts, earliest, lines_of
from drills.strictjson import is_number

#: Severities that wake nobody, as preflight reads them: whatever else an alert says of itself, or nothing, is a page.
WAKES_NOBODY = frozenset({"ticket", "warning", "info", "none"})
STATES = ("pending", "firing", "notified", "inactive", "resolution notified")
NOT_SEEN: Final = mark("not seen")
OPEN = ("pending", "firing")


def expected(facts: Facts) -> list[str]:
    """Return the names of the alerts that a check waits for."""
    named = [(check.get("params") or {}).get("name") for check in facts.checks if check.get("check") == "alert"]
    planned = [item["params"].get("name") for item in facts.planned("checks") if item["name"] == "alert"]
    return list(dict.fromkeys(str(name) for name in [*named, *planned] if name))


def unexpected_pages(facts: Facts) -> list[str]:
    """Return the names of pages that no check waits for and that fired after the zero, in order of their firing."""
    pages = [e for e in facts.of("alert") if _wakes(e.data.get("labels") or {}) and _of_service(facts, e)]
    firing = [e for e in pages if e.data.get("state") == "firing"]
    names = {str(e.data.get("alert")) for e in firing} - set(expected(facts))
    fired = {name: moment for name in sorted(names) if (moment := fired_at(facts, name))}
    return sorted(fired, key=lambda name: fired[name][0])


def _wakes(labels: Json) -> bool:
    return labels.get("severity") not in WAKES_NOBODY and labels.get("alertname") != "Watchdog"


def _of_service(facts: Facts, event: Event) -> bool:
    """Whether an alert may be of this service: one with another value of one of its labels is of another."""
    service = (facts.target.get("alerts") or {}).get("service") or {}
    labels = event.data.get("labels") or {}
    return all(labels.get(key, value) == value for key, value in service.items())


def when(facts: Facts, alert: str, state: str) -> Event | None:
    """Return the first event after the zero in which an alert came into a state."""
    status = {"notified": "firing", "resolution notified": "resolved"}.get(state)
    name, key, word = ("notified", "status", status) if status else ("alert", "state", state)
    return earliest(e for e in _said(facts, name, alert) if at(e) >= facts.zero and e.data.get(key) == word)


def _said(facts: Facts, event: str, alert: str) -> list[Event]:
    """Return what was said of an alert; that it fires is Prometheus' word, Alertmanager only passes it on."""
    return [e for e in facts.of(event) if e.data.get("alert") == alert and e.data.get("source") != "alertmanager"]


def _seen(facts: Facts) -> list[str]:
    """Return the names of all alerts of which anything was seen, those that were expected first; no announcement."""
    ours = {str(event.data.get("alert")) for event in facts.of("announced")}
    told = sorted({str(event.data.get("alert")) for event in facts.of("alert", "notified")} - ours)
    return list(dict.fromkeys([*(expected(facts) if told else []), *told]))


def shown(facts: Facts) -> list[str]:
    """Return the alerts that have a row: those expected, and others of which something was seen after the zero."""
    wanted = expected(facts)
    return [name for name in _seen(facts) if name in wanted or any(moment(facts, name, state) for state in STATES)]


def alert_rows(facts: Facts) -> list[list[str]]:
    """Return each alert with when it was pending, firing, notified and resolved."""
    wanted = expected(facts)
    return [
        [code(name), t("yes") if name in wanted else t("no"), *(_state(facts, name, state) for state in STATES)]
        for name in shown(facts)
    ]


def moment(facts: Facts, alert: str, state: str) -> tuple[float, Event] | None:
    """Return when an alert came into a state (mono) and the event that says so; None when that was not seen."""
    if state == "firing":
        return fired_at(facts, alert)
    event = when(facts, alert, state)
    if state == "inactive" and event is not None:  # what was inactive before it fired did not resolve
        fired = fired_at(facts, alert)
        later = [e for e in _said(facts, "alert", alert) if fired and at(e) > fired[0]]
        event = earliest(e for e in later if e.data.get("state") == state)
    return (at(event), event) if event else None


def _state(facts: Facts, alert: str, state: str) -> str:
    found = moment(facts, alert, state)
    return _offset(facts, found[0]) + words.in_brackets(lines_of(found[1])) if found else t(NOT_SEEN)


def _offset(facts: Facts, mono: float) -> str:
    return words.offset(mono - facts.zero)


def fired_at(facts: Facts, alert: str) -> tuple[float, Event] | None:
    """Return when an alert was first known to fire (mono) and the event that says so.

    The probe looks now and then; a notification that came before its next look proves that it had fired by then.
    """
    seen = when(facts, alert, "firing")
    if seen is None:
        return None
    first = earliest(event for event in (seen, when(facts, alert, "notified")) if event)
    return (at(first), first) if first else None


def no_alerts(facts: Facts) -> str:
    """Say that no alert came up, or that nobody looked."""
    if facts.of("alert", "notified"):
        return t("no alert came up after {zero}", zero=facts.zero_name)
    looks = sum(1 for s in facts.evidence.samples if s.get("probe") == "alerts" and s.get("ok"))
    if looks:
        return t("no alert came up in {looks} (`samples.ndjson`, probe `alerts`)", looks=words.count(looks, "look"))
    return t("no data: nobody looked at the alerts")


@dataclass(frozen=True)
class Delay:
    """How long detection took: from the injection, from the first arrival that broke the SLA, and what was allowed."""

    alert: str
    after_injection_s: float
    after_violation_s: float | None
    allowed_s: float | None
    notified: bool


def delay(facts: Facts) -> Delay | None:
    """Return how long the first alert took that a check waits for; None when none fired, or nothing was injected."""
    fired = [(first[0], name) for name in expected(facts) if (first := fired_at(facts, name))]
    if facts.hit is None or not fired:
        return None
    mono, name = min(fired)
    broke = facts.first_violation
    rows = [check for check in facts.checks if check.get("check") == "alert"]
    params = [check.get("params") or {} for check in rows]
    within = next((given.get("within") for given in params if given.get("name") == name), None)
    return Delay(
        name,
        mono - facts.hit,
        None if broke is None else mono - float(broke["intended"]),
        float(within) if isinstance(within, int | float) and is_number(within) else None,
        when(facts, name, "notified") is not None,
    )


def _took(facts: Facts) -> list[str]:
    found = delay(facts)
    if found is None:
        missing = facts.hit is not None and bool(expected(facts))
        return [t("No expected alert fired: nobody would have been told.")] if missing else []
    took = words.seconds(found.after_injection_s)
    said = t("Time to detect: {duration} from the injection to the alert firing", duration=took) + _since(found)
    if found.allowed_s is not None:
        said += t("; {duration} were allowed", duration=words.seconds(found.allowed_s))
    if found.notified:
        return [t("{detected}; a notification was seen.", detected=said)]
    return [t("{detected}; no notification was seen, so nobody is known to be told.", detected=said)]


def _since(found: Delay) -> str:
    """Say how long after users an alert noticed, or how long before."""
    if found.after_violation_s is None:
        return ""
    since = words.seconds(abs(found.after_violation_s))
    if found.after_violation_s >= 0:
        return t(", {duration} after the first arrival that broke the SLA", duration=since)
    return t(", {duration} before the first arrival that broke the SLA", duration=since)


def lines(facts: Facts) -> list[str]:
    """Return what noticed the fault first, and which alerts had come up before it."""
    told = _took(facts)
    router = measures.split(facts.evidence).get("detect_s") if facts.hit is not None else None
    if router is not None:
        told.append(
            t("The router noticed after {after} (`samples.ndjson`, probe `router`).", after=words.seconds(router))
        )
    for name in expected(facts):
        fired, seen = fired_at(facts, name), when(facts, name, "firing")
        if fired and seen and fired[1] is not seen:
            told.append(
                t(
                    "{alert} was first seen firing at {offset} ({source}); its notification had come before that look, "
                    "so it fired no later than the table says.",
                    alert=code(name),
                    offset=_offset(facts, at(seen)),
                    source=lines_of(seen),
                )
            )
    told += [line for name in _seen(facts) if (line := _before(facts, name))]
    rowless = len(_seen(facts)) - len(alert_rows(facts))
    zero = facts.zero_name
    if rowless == 1:
        told.append(t("1 alert has no row above: nothing was seen of it after {zero}.", zero=zero))
    elif rowless:
        told.append(t("{n} alerts have no row above: nothing was seen of them after {zero}.", n=rowless, zero=zero))
    return told


def _before(facts: Facts, alert: str) -> str:
    """Say that an alert was pending or firing before the zero, and whether it still was when that came."""
    earlier = [e for e in _said(facts, "alert", alert) if at(e) < facts.zero]
    came = [e for e in earlier if e.data.get("state") in OPEN]
    if not came:
        return ""
    strongest = next((e for e in came if e.data.get("state") == "firing"), came[0])
    last = {repr(sorted((e.data.get("labels") or {}).items())): e for e in earlier}
    still = [e for e in last.values() if e.data.get("state") in OPEN]
    said = {
        "alert": code(alert),
        "state": strongest.data["state"],
        "zero": facts.zero_name,
        "offset": _offset(facts, at(strongest)),
    }
    if still:
        return t(
            "{alert} was {state} before {zero}, at {offset} ({source}), **and was {now} when that came**.",
            **said,
            source=lines_of(strongest),
            now=still[0].data["state"],
        )
    return t(
        "{alert} was {state} before {zero}, at {offset} ({source}), and no longer when that came.",
        **said,
        source=lines_of(strongest, earlier[-1]),
    )


def marks(facts: Facts) -> list[tuple[str, float]]:
    """Return the instants (mono) of an alert for the figures: the first expected one, and the first page beside it."""
    chosen = [("", name) for name in expected(facts)[:1]]
    chosen += [("unexpected ", name) for name in unexpected_pages(facts)[:1]]
    found = []
    for word, alert in chosen:
        fired = fired_at(facts, alert)
        found += [(f"{word}alert firing", fired[0])] if fired else []
        for name, state in (("alert notified", "notified"), ("alert resolved", "resolution notified")):
            event = when(facts, alert, state)
            found += [(f"{word}{name}", at(event))] if event else []
    return found
