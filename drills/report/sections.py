"""The sections of a run's postmortem as inert Markdown strings; the template only lays them out."""

from __future__ import annotations

from drills.checks import measures
from drills.evidence import at
from drills.model import Event, Json
from drills.report import impact, lessons, stages, words
from drills.report.escape import code, prose
from drills.report.facts import Facts, earliest, lines_of, references
from drills.report.timeline import timeline

Row = list[str]
NO_DATA = words.NO_DATA


def offset(facts: Facts, mono: float | None) -> str:
    """Return an instant as seconds from the zero."""
    return words.offset(None if mono is None else mono - facts.zero)


# ---- the first paragraph ------------------------------------------------------------------------------


def summary(facts: Facts) -> list[str]:
    """Return three sentences: what was done, what users saw, what came of it."""
    return [_done(facts), _seen(facts), _outcome(facts)]


def _done(facts: Facts) -> str:
    if facts.hit is None:
        reason = facts.data("end").get("reason")
        return "Nothing was injected" + (f": {prose(reason)}." if reason else ".")
    victims = [code(name) if facts.route else _victim(victim) for name, victim in facts.victims.items()]
    names = words.listed(victims) or "no replica"
    expected, hit = facts.evidence.expected_replicas, len(facts.victims)
    of = f", {'one' if hit == 1 else hit} of {words.count(expected, 'replica')}," if expected else ""
    load = f" under {_load(facts)}" if _load(facts) else ""
    when = f"At {words.clock(facts.wall(facts.hit))} UTC"
    what = words.listed([_fault(facts, receipt) for receipt in facts.evidence.receipts]) or code(facts.name)
    if facts.control:
        return f"{when} the control {what} went through every step on {names}{of}{load}, and touched nothing."
    return f"{when} {what} hit {names}{of}{load}."


def _fault(facts: Facts, receipt: Json) -> str:
    given = [receipt.get("params") or {}]
    given += [item["params"] for item in facts.planned("faults") if item["name"] == receipt.get("fault")]
    # A receipt may keep the whole map of `how` by kind of target; the plan has the one that was used.
    how = next((params["how"] for params in given if isinstance(params.get("how"), str)), None)
    return code(receipt.get("fault")) + (f" ({prose(how)})" if isinstance(how, str) else "")


def _victim(victim: Json) -> str:
    gpus = [code(uuid) for uuid in victim.get("gpus") or []]
    return code(victim.get("name")) + (f" (GPU {words.listed(gpus)})" if gpus else "")


def _load(facts: Facts) -> str:
    arrivals = (facts.experiment.get("load") or {}).get("arrivals") or {}
    if isinstance(arrivals.get("rate"), int | float):
        return f"{arrivals['rate']:g} requests/s ({prose(arrivals.get('kind'))})"
    return f"{arrivals['users']} users in a closed loop" if isinstance(arrivals.get("users"), int) else ""


def _seen(facts: Facts) -> str:
    p99 = impact.quantile_of(facts, "fault", "ttft", 0.99)
    before = impact.quantile_of(facts, "baseline", "ttft", 0.99)
    if not p99.n:
        return (
            f"No request began after an injection; p99 time to first token before it: {words.seconds(before.value_s)}."
        )
    count = words.count(p99.n, "request")
    text = f"Of {count} begun after the injection the p99 time to first token was {words.seconds(p99.value_s)}"
    text += f" (baseline {words.seconds(before.value_s)})"
    if facts.control:
        return f"{text}; no effect is claimed."
    return f"{text}; {_streams(facts)}; {_failover(facts)}."


def _streams(facts: Facts) -> str:
    seen = impact.streams(facts)
    if seen is None:
        return "streams cut on the victim: no data"
    where = "victims" if len(facts.victims) > 1 else "victim"
    return f"{seen.cut} of {words.count(seen.in_flight, 'stream')} in flight on the {where} were cut"


def _failover(facts: Facts) -> str:
    if facts.route:
        answers, begun = impact.degraded(facts, "fault")
        return f"nobody was left to fail over to, {answers:,} of {begun:,} answers were degraded"
    moved = measures.failover(facts.evidence)
    if moved is None or not moved.n:
        return "failover: no data"
    if not moved.affected:
        return "failover took 0 s: no later request was hurt"
    return f"failover took {words.seconds(moved.value_s)}"


def _outcome(facts: Facts) -> str:
    verdict = facts.verdict.get("verdict")
    if not verdict:
        return "There is no verdict yet."
    causes = [code(lessons.label(check)) for check in facts.checks if check.get("verdict") == verdict != "pass"]
    text = f"Verdict: {prose(verdict)}" + (f", by {words.listed(causes)}" if causes else "")
    reason = facts.verdict.get("reason")
    text += f" ({prose(reason)})" if reason else ""
    return f"{text}; {_alert_sentence(facts)}."


def _alert_sentence(facts: Facts) -> str:
    names = _expected_alerts(facts)
    if not names:
        return "no alert was expected"
    parts = []
    for name in names:
        fired, told = fired_at(facts, name), _when(facts, name, "notified")
        if fired is None:
            parts.append(f"the alert {code(name)} was not seen firing")
            continue
        text = f"the alert {code(name)} fired after {words.seconds(fired[0] - facts.zero)}"
        noted = f", notified after {words.seconds(at(told) - facts.zero)}" if told else ", and no notification was seen"
        parts.append(text + noted)
    return "; ".join(parts)


# ---- verdict and impact -------------------------------------------------------------------------------


def check_rows(facts: Facts) -> list[Row]:
    """Return one row for each check of the verdict."""
    return [_check_row(check) for check in facts.checks]


def _check_row(check: Json) -> Row:
    unit = str(check.get("unit") or "")
    interval = check.get("interval")
    events = check.get("events") or []
    return [
        code(lessons.label(check)),
        f"**{prose(check.get('verdict'))}**",
        prose(words.quantity(check.get("value"), unit)),
        "—" if check.get("bound") is None else prose(words.quantity(check["bound"], unit)),
        "—" if check.get("n") is None else f"{check['n']:,}",
        prose(words.between(interval[0], interval[1], unit)) if interval else "—",
        prose(check.get("reason") or "") or "—",
        references(events) if events else f"verdict.json: {code(check['check'])}",
    ]


def metric_rows(facts: Facts) -> list[Row]:
    """Return the rows of the checks that judged a table of metrics; empty when there was none."""
    return [_metric_row(row) for check in facts.checks for row in (check.get("detail") or {}).get("rows") or ()]


def _metric_row(row: Json) -> Row:
    unit = str(row.get("unit") or "")

    def figure(name: str) -> str:
        if row.get(name) is None:
            return "—"
        return prose(words.quantity(row[name], unit) + (" °C" if unit == "°C" else ""))

    bound = f"{prose(row.get('side') or '')} {figure('bound')}".strip()
    return [
        prose(row["metric"]),
        f"**{prose(row['verdict'])}**",
        figure("value"),
        "—" if row.get("bound") is None else bound,
        prose(row.get("reason") or "") or "—",
        code(row["source"]) if row.get("source") else "—",
    ]


def outcome_rows(facts: Facts) -> list[Row]:
    """Return arrivals by outcome and class."""
    columns = ("baseline", "caught", "fault", "whole run")
    rows = [[prose(label), *(f"{counts[c]:,}" for c in columns)] for label, counts in impact.by_outcome(facts).items()]
    if rows:
        totals = {**facts.cohorts, "whole run": facts.evidence.measured}
        rows.append(["**all**", *(f"{totals[c].height:,}" for c in columns)])
    return rows


def latency_rows(facts: Facts) -> list[Row]:
    """Return p50 and p99 of TTFT and E2E by cohort."""
    names = {"ttft": "time to first token", "e2e": "whole answer"}
    rows = []
    for q in impact.quantiles(facts):
        interval = words.between(*q.interval, "s") if q.interval else NO_DATA
        name = f"p{q.quantile * 100:g} {names[q.metric]}"
        rows.append([name, q.cohort, words.seconds(q.value_s), f"{q.n:,}", interval])
    return rows


def impact_lines(facts: Facts) -> list[str]:
    """Return streams cut, the worst ten seconds and degraded answers."""
    lines = []
    if not facts.control:
        lines.append(f"Streams: {_streams(facts)} (`ledger.ndjson`, `requests.ndjson`).")
    worst = impact.worst_window(facts)
    if worst:
        rate = words.share(worst.violations / worst.n)
        bound = f"the SLA of {words.seconds(facts.sla_ttft_s)} to the first token"
        broke = f"{worst.violations} of {worst.n} arrivals ({rate}) broke {bound}"
        lines.append(f"Worst 10 s: from {words.offset(worst.begin_s)}, {broke} (`requests.ndjson`).")
    else:
        lines.append("Worst 10 s: no data.")
    answers, begun = impact.degraded(facts, "fault")
    lines.append(f"Degraded answers: {answers:,} of {begun:,} begun after the injection (`requests.ndjson`)." if begun
                 else "Degraded answers: no data.")  # fmt: skip
    return lines


# ---- time ---------------------------------------------------------------------------------------------


def timeline_rows(facts: Facts) -> tuple[list[Row], str]:
    """Return the timeline and a word on what was left out."""
    lines, surplus = timeline(facts)
    rows = [[words.clock(facts.wall(line.mono)), offset(facts, line.mono), line.what, line.source] for line in lines]
    return rows, words.count(surplus, "line") if surplus else ""


def stage_rows(facts: Facts, reached: list[stages.Stage]) -> list[Row]:
    """Return the stages of a downtime, each with the time since the one before that was seen."""
    rows, previous = [], facts.zero
    for stage in reached:
        step = "—" if stage.at is None else "earlier" if stage.at < previous else words.seconds(stage.at - previous)
        rows.append([stage.name, stage.meaning, offset(facts, stage.at), step, stage.source])
        previous = previous if stage.at is None else max(previous, stage.at)
    return rows


def uptime_line(facts: Facts) -> str:
    """Return the proof that the device itself was reset."""
    seen = stages.uptime(facts)
    if seen is None:
        return ""
    boot = {True: "same boot id", False: "**another boot id**", None: "boot id: no data"}[seen.same_boot]
    before, after = words.seconds(seen.before_s), words.seconds(seen.after_s)
    return f"Uptime of the GPU: {before} before, {after} after the reset; {boot} ({seen.source})."


# ---- detection ----------------------------------------------------------------------------------------


def _expected_alerts(facts: Facts) -> list[str]:
    named = [check.get("params", {}).get("name") for check in facts.checks if check.get("check") == "alert"]
    planned = [item["params"].get("name") for item in facts.planned("checks") if item["name"] == "alert"]
    return list(dict.fromkeys(str(name) for name in [*named, *planned] if name))


def _when(facts: Facts, alert: str, state: str) -> Event | None:
    """Return the first event after the zero in which an alert came into a state."""
    status = {"notified": "firing", "resolution notified": "resolved"}.get(state)
    name, key, word = ("notified", "status", status) if status else ("alert", "state", state)
    return earliest(e for e in _said(facts, name, alert) if at(e) >= facts.zero and e.data.get(key) == word)


def _said(facts: Facts, event: str, alert: str) -> list[Event]:
    """Return what was said of an alert; that it fires is Prometheus' word, Alertmanager only passes it on."""
    return [e for e in facts.of(event) if e.data.get("alert") == alert and e.data.get("source") != "alertmanager"]


def alert_rows(facts: Facts) -> list[Row]:
    """Return each alert with when it was pending, firing, notified and resolved."""
    expected = _expected_alerts(facts)
    seen = [str(event.data.get("alert")) for event in facts.of("alert", "notified")]
    rows = []
    for name in dict.fromkeys([*expected, *sorted(seen)]):
        if name not in seen and not facts.of("alert", "notified"):
            continue
        states = ("pending", "firing", "notified", "inactive", "resolution notified")
        cells = [_state(facts, name, state) for state in states]
        rows.append([code(name), "yes" if name in expected else "no", *cells])
    return rows


def _state(facts: Facts, alert: str, state: str) -> str:
    event = _when(facts, alert, state)
    if state == "firing":
        fired = fired_at(facts, alert)
        return f"{offset(facts, fired[0])} ({lines_of(fired[1])})" if fired else "not seen"
    if state == "inactive" and event is not None:  # what was inactive before it fired did not resolve
        fired = fired_at(facts, alert)
        later = [e for e in _said(facts, "alert", alert) if fired and at(e) > fired[0]]
        event = earliest(e for e in later if e.data.get("state") == state)
    return f"{offset(facts, at(event))} ({lines_of(event)})" if event else "not seen"


def fired_at(facts: Facts, alert: str) -> tuple[float, Event] | None:
    """Return when an alert was first known to fire (mono) and the event that says so.

    The probe looks now and then; a notification that came before its next look proves that it had fired by then.
    """
    seen = _when(facts, alert, "firing")
    if seen is None:
        return None
    first = earliest(event for event in (seen, _when(facts, alert, "notified")) if event)
    return (at(first), first) if first else None


def no_alerts(facts: Facts) -> str:
    """Say that no alert came up, or that nobody looked."""
    looks = sum(1 for s in facts.evidence.samples if s.get("probe") == "alerts" and s.get("ok"))
    if looks:
        return f"no alert came up in {words.count(looks, 'look')} (`samples.ndjson`, probe `alerts`)"
    return f"{NO_DATA}: nobody looked at the alerts"


def detection_lines(facts: Facts) -> list[str]:
    """Return what noticed the fault first, and alerts that nobody expected."""
    lines = []
    router = measures.split(facts.evidence).get("detect_s") if facts.hit is not None else None
    if router is not None:
        lines.append(f"The router noticed after {words.seconds(router)} (`samples.ndjson`, probe `router`).")
    for name in _expected_alerts(facts):
        fired, seen = fired_at(facts, name), _when(facts, name, "firing")
        if fired and seen and fired[1] is not seen:
            first = f"{code(name)} was first seen firing at {offset(facts, at(seen))} ({lines_of(seen)})"
            lines.append(
                f"{first}; its notification had come before that look, so it fired no later than the table says."
            )
    early = [e for e in facts.of("alert") if e.data.get("state") == "firing" and at(e) < facts.zero]
    lines += [f"{code(e.data.get('alert'))} fired before {facts.zero_name} ({lines_of(e)})." for e in early]
    return lines


def alert_marks(facts: Facts) -> list[tuple[str, float]]:
    """Return the instants (mono) of the first expected alert for the figures, without the alert's own name."""
    marks = []
    for alert in _expected_alerts(facts)[:1]:
        fired = fired_at(facts, alert)
        marks += [("alert firing", fired[0])] if fired else []
        for name, state in (("alert notified", "notified"), ("alert resolved", "resolution notified")):
            event = _when(facts, alert, state)
            marks += [(name, at(event))] if event else []
    return marks


def action_row(action: lessons.Action) -> Row:
    """Return one action item."""
    return [code(action.id), action.kind, action.what, action.proof]
