"""recovery: the first time after which traffic stays in band for as long as was watched, load unchanged."""

from __future__ import annotations

from drills.checks import measures
from drills.checks.base import NO_INJECTION, Check, Within, allowed, by_deadline
from drills.checks.measures import WINDOW_S
from drills.evidence import Evidence
from drills.lang import t
from drills.model import CheckResult, Verdict


class Recovery(Check[Within]):
    """Counted from the injection for one-shot faults, from proven-off for held ones."""

    name = "recovery"
    Params = Within

    @classmethod
    def window_s(cls, params: Within) -> float:
        """Return `within` and one window of the band."""
        return params.within + WINDOW_S

    @classmethod
    def judge(cls, ev: Evidence, params: Within) -> CheckResult:
        """Compare the recovery time with `within`; never is "> observed", not a number."""
        measured = measures.recovery(ev)
        if ev.t_inject is None:
            return cls.unclear(t(NO_INJECTION))
        if measured is None:
            return cls.unclear(t("the fault was never proven off, so there is no time to count from"))
        detail = {
            "band": round(measured.band, 6),
            "window_s": WINDOW_S,
            "windows": measured.windows,
            "watched_s": measures.seconds(measured.watched_s),
            "counted_from": "proven off" if ev.held else "injection",
            "split": measures.split(ev),
        }
        row = {"bound": params.within, "unit": "s", "n": ev.watched.height, "detail": detail}
        row["events"] = tuple(e.n for e in [*ev.hits[:1], *(ev.of("proof.off") if ev.held else [])])
        if measured.reason:
            return cls.unclear(measured.reason, **row)
        verdict = by_deadline(measured.value_s, params.within, measured.watched_s - WINDOW_S)
        if measured.value_s is None:
            never = t("not back in band in the {seconds:.1f} s watched", seconds=measured.watched_s)
            return cls.result(verdict, allowed(never, params.within), value=f"> {measured.watched_s:.1f}", **row)
        value = measures.seconds(measured.value_s)
        if verdict is Verdict.PASS:
            left_s = measured.watched_s - measured.value_s
            stayed = t("in band for the {seconds:.0f} s watched after it", seconds=left_s)
            return cls.result(verdict, stayed, value=value, **row)
        late = t("back in band after {seconds:.1f} s", seconds=measured.value_s)
        return cls.result(verdict, allowed(late, params.within), value=value, **row)
