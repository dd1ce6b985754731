"""Who noticed: the alerts of a run, expected or not, and the router."""

from __future__ import annotations

from drills.checks import measures
from drills.evidence import at
from drills.model import Event, Json
from drills.report import words
from drills.report.escape import code
from drills.report.facts import Facts, earliest, lines_of

#: Severities that wake nobody, as preflight reads them: whatever else an alert says of itself, or nothing, is a page.
WAKES_NOBODY = frozenset({"ticket", "warning", "info", "none"})
STATES = ("pending", "firing", "notified", "inactive", "resolution notified")
NOT_SEEN = "not seen"
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


def alert_rows(facts: Facts) -> list[list[str]]:
    """Return each alert with when it was pending, firing, notified and resolved.

    One that was expected has its row in any case; of others something must have been seen after the zero.
    """
    wanted, rows = expected(facts), []
    for name in _seen(facts):
        cells = [_state(facts, name, state) for state in STATES]
        if name in wanted or any(cell != NOT_SEEN for cell in cells):
            rows.append([code(name), "yes" if name in wanted else "no", *cells])
    return rows


def _state(facts: Facts, alert: str, state: str) -> str:
    event = when(facts, alert, state)
    if state == "firing":
        fired = fired_at(facts, alert)
        return f"{_offset(facts, fired[0])} ({lines_of(fired[1])})" if fired else NOT_SEEN
    if state == "inactive" and event is not None:  # what was inactive before it fired did not resolve
        fired = fired_at(facts, alert)
        later = [e for e in _said(facts, "alert", alert) if fired and at(e) > fired[0]]
        event = earliest(e for e in later if e.data.get("state") == state)
    return f"{_offset(facts, at(event))} ({lines_of(event)})" if event else NOT_SEEN


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
        return f"no alert came up after {facts.zero_name}"
    looks = sum(1 for s in facts.evidence.samples if s.get("probe") == "alerts" and s.get("ok"))
    if looks:
        return f"no alert came up in {words.count(looks, 'look')} (`samples.ndjson`, probe `alerts`)"
    return f"{words.NO_DATA}: nobody looked at the alerts"


def lines(facts: Facts) -> list[str]:
    """Return what noticed the fault first, and which alerts had come up before it."""
    told = []
    router = measures.split(facts.evidence).get("detect_s") if facts.hit is not None else None
    if router is not None:
        told.append(f"The router noticed after {words.seconds(router)} (`samples.ndjson`, probe `router`).")
    for name in expected(facts):
        fired, seen = fired_at(facts, name), when(facts, name, "firing")
        if fired and seen and fired[1] is not seen:
            first = f"{code(name)} was first seen firing at {_offset(facts, at(seen))} ({lines_of(seen)})"
            told.append(
                f"{first}; its notification had come before that look, so it fired no later than the table says."
            )
    told += [line for name in _seen(facts) if (line := _before(facts, name))]
    rowless = len(_seen(facts)) - len(alert_rows(facts))
    if rowless:
        those = "1 alert has" if rowless == 1 else f"{rowless} alerts have"
        told.append(f"{those} no row above: nothing was seen of {'it' if rowless == 1 else 'them'} "
                    f"after {facts.zero_name}.")  # fmt: skip
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
    first = f"{code(alert)} was {strongest.data['state']} before {facts.zero_name}, at {_offset(facts, at(strongest))}"
    if still:
        return f"{first} ({lines_of(strongest)}), **and was {still[0].data['state']} when that came**."
    return f"{first} ({lines_of(strongest, earlier[-1])}), and no longer when that came."


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
