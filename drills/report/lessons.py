"""What to learn: what went well, badly, and where we were lucky."""

from __future__ import annotations

import math
from collections.abc import Callable

from drills.lang import t
from drills.model import Json, Verdict
from drills.report import impact, words
from drills.report.escape import code, prose
from drills.report.facts import Facts

#: A pass that used up more than 80 % of what was allowed may fail next month.
MARGIN_MIN = 0.2


def label(check: Json) -> str:
    """Return a check's name with what tells it from its siblings, e.g. `latency (ttft p99, fault)`, unescaped."""
    params = check.get("params") or {}
    parts = [str(params[key]) for key in ("name", "metric") if params.get(key)]
    if isinstance(params.get("quantile"), float):
        parts.append(f"p{params['quantile'] * 100:g}")
    parts += [str(params["cohort"])] if params.get("cohort") else []
    return f"{check['check']} ({', '.join(parts)})" if parts else str(check["check"])


def margin(check: Json) -> float | None:
    """Return the unused share of what was allowed, None where value and bound cannot be compared."""
    value, bound = number(check.get("value")), number(check.get("bound"))
    if value is None or bound is None or check.get("unit") not in ("s", "ratio"):
        return None  # of a count there is no share to spare: all that may be cut was cut, and that is no luck
    if value <= bound:
        return None if bound <= 0 else (bound - value) / bound
    # More is better: of a share, the room is what is left to the whole.
    room = 1 - bound if check.get("unit") == "ratio" and bound < 1 else bound
    return None if room <= 0 else (value - bound) / room


def number(value: object) -> float | None:
    """Return a finite number, None for everything else."""
    known = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if known and isinstance(value, int | float) else None


def measured(check: Json, show: Callable[[object], str] = prose) -> str:
    """Return value and bound in words; of a count the check's own words, which say of what."""
    unit = str(check.get("unit") or "")
    if unit == "count" and check.get("reason"):
        return show(check["reason"])
    value, bound = words.quantity(check.get("value"), unit), words.quantity(check.get("bound"), unit)
    if check.get("bound") is None:
        return show(value)
    return t("{value} (bound {bound})", value=show(value), bound=show(bound))


def _with(facts: Facts, verdict: Verdict) -> list[Json]:
    return [check for check in facts.checks if check.get("verdict") == verdict]


def _narrow(check: Json) -> bool:
    left = margin(check)
    return left is not None and left < MARGIN_MIN


def well(facts: Facts) -> list[str]:
    """Return what passed with room to spare."""
    passed = [check for check in _with(facts, Verdict.PASS) if not _narrow(check)]
    return [t("{check}: {seen}", check=code(label(check)), seen=measured(check)) for check in passed]


def failed(check: Json, show: Callable[[object], str] = prose) -> str:
    """Return what a failing check found: its reason, and the value where that is what broke the bound."""
    value, bound, reason = number(check.get("value")), number(check.get("bound")), check.get("reason")
    if not reason:
        return measured(check, show)
    # A value may lie within its bound and something else have failed: an alert that fired in time and never ended.
    broke = check.get("unit") == "s" and value is not None and bound is not None and value > bound
    return t("{value}; {reason}", value=measured(check, show), reason=show(reason)) if broke else show(reason)


def badly(facts: Facts) -> list[str]:
    """Return what failed."""
    lines = [t("{check}: {seen}", check=code(label(c)), seen=failed(c)) for c in _with(facts, Verdict.FAIL)]
    if facts.verdict.get("left") in ("degraded", "unknown"):
        lines.append(t("how the service was left: {left}", left=prose(facts.verdict["left"])))
    if facts.verdict.get("restored") in ("dirty", "unknown"):
        state = prose(facts.verdict["restored"])
        lines.append(t("not everything is known to be put back: restored {state}", state=state))
    return lines


def lucky(facts: Facts) -> list[str]:
    """Return narrow passes, what could not be judged, idle victims and degraded answers."""
    lines = []
    for check in _with(facts, Verdict.PASS):
        left = margin(check)
        if left is not None and left < MARGIN_MIN:
            lines.append(
                t(
                    "{check} passed with {share} to spare: {seen}",
                    check=code(label(check)),
                    share=words.share(max(left, 0.0)),
                    seen=measured(check),
                )
            )
    unknown = [code(label(check)) for check in _with(facts, Verdict.INCONCLUSIVE)]
    if unknown:
        lines.append(
            t("nobody knows whether what could not be judged would have held: {checks}", checks=words.listed(unknown))
        )
    seen = impact.streams(facts)
    if seen and facts.victims and seen.in_flight == 0:
        lines.append(t("the victim was idle at the injection: no stream was in flight on it"))
    answers, begun = impact.degraded(facts, "fault")
    if answers:
        lines.append(
            t(
                "{answers} of {total:,} came from the degradation path: users got less than they asked for",
                answers=words.count(answers, "answer"),
                total=begun,
            )
        )
    return lines
