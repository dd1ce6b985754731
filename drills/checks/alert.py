"""alert: the right alert fired in time after the fault, and resolves after it; fired and notified are two times."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from drills.checks.base import NO_INJECTION, Check, allowed, by_deadline
from drills.checks.measures import seconds
from drills.checks.watching import blind, looks
from drills.evidence import Evidence, at
from drills.lang import mark, t
from drills.model import CheckResult, Event, Json, Verdict
from drills.params import DurationOrAlert, Line, Params

#: Longer than this without a successful look at Prometheus, an alert may have come and gone unseen. The first look
#: that counts is at most this long before the injection: it says what was there before.
POLL_GAP_S = 5.0
INSTALL = mark(
    "Prometheus was not watched: install prometheus and alertmanager (Debian: prometheus, prometheus-alertmanager), "
    "or name them in the target"
)
TAKES_NOTIFICATIONS = "lab"  # its Alertmanager tells us
#: Elsewhere Alertmanager's own counters tell that it has sent something, and its API for which alerts it did.
COUNTED = "notifications"
#: A counter keeps what happened between two looks; for longer than this nobody knows when.
COUNTED_GAP_S = 10.0


class AlertParams(Params):
    """name; within: injection to firing; resolves_within: fault off to gone; notified_within: injection to receipt.

    `auto` is what the target's monitoring needs, and a number in every plan. In `labels` the words {victim} and {gpu}
    stand for the names and the GPU UUIDs of what was hit.
    """

    name: Line
    within: DurationOrAlert
    resolves_within: DurationOrAlert | None = None
    notified_within: DurationOrAlert | None = None
    labels: dict[Line, Line] = Field(default_factory=dict)

    @property
    def within_s(self) -> float:
        """`within` of a plan."""
        return _number(self.within)

    @property
    def resolves_within_s(self) -> float | None:
        """`resolves_within` of a plan."""
        return None if self.resolves_within is None else _number(self.resolves_within)

    @property
    def notified_within_s(self) -> float | None:
        """`notified_within` of a plan."""
        return None if self.notified_within is None else _number(self.notified_within)


def _number(bound: float | Literal["auto"]) -> float:
    if bound == "auto":
        raise ValueError("auto: a plan has a number here")
    return bound


class Alert(Check[AlertParams]):
    """From what Prometheus and the receiver said, never from the fault."""

    name = "alert"
    Params = AlertParams

    @classmethod
    def window_s(cls, params: AlertParams) -> float:
        """Return the longest of the three."""
        return max(params.within_s, params.resolves_within_s or 0.0, params.notified_within_s or 0.0)

    @classmethod
    def plan_errors(cls, params: AlertParams, plan: Json) -> list[str]:
        """Refuse to wait for a notification where nobody could tell of one, and to silence what is nobody's alone."""
        kind = plan["target"].get("kind", TAKES_NOTIFICATIONS)
        if _silenced(plan):
            return _unsuited(params, plan)
        if params.notified_within is None or kind == TAKES_NOTIFICATIONS or _has_alertmanager(plan):
            return []
        return ["notified_within: the target names no alertmanager, which could tell; name it, or write auto"]

    @classmethod
    def judge(cls, ev: Evidence, params: AlertParams) -> CheckResult:
        """Judge firing, then the notification, then the end of it."""
        hit = ev.t_inject
        if hit is None:
            return cls.unclear(t(NO_INJECTION))
        said = [
            e for e in ev.of("alert") if e.data.get("alert") == params.name and e.data.get("source") != "alertmanager"
        ]
        before, watched = _open_before(said, hit), _watched_s(ev, hit)
        right = [e for e in said if at(e) >= hit and _matches(ev, params.labels, e.data)]
        firing = next((e for e in right if e.data.get("state") == "firing"), None)
        notes = _notes(ev, params, hit)
        row = _row(ev, params, hit, firing, notes, right)
        if before:
            early = t("{alert} was {state} before the injection", alert=params.name, state=before.data["state"])
            return cls.unclear(early, **row)
        if watched is None:
            return cls.unclear(t(INSTALL), **row)
        if watched < 0:
            late = t("Prometheus was not seen in the {seconds:g} s before the injection", seconds=POLL_GAP_S)
            return cls.unclear(late, **row)
        if firing is None:
            return cls._silence(params, hit, said, watched, row)
        if row["value"] > watched + POLL_GAP_S:
            gap = t("fired, and before that Prometheus was seen for {seconds:.1f} s only", seconds=watched)
            return cls.unclear(gap, **row)
        if row["value"] > params.within_s:
            late = t("fired {seconds:.1f} s after the injection", seconds=row["value"])
            return cls.result(Verdict.FAIL, allowed(late, params.within_s), **row)
        return cls._after(ev, params, hit, watched, row)

    @classmethod
    def _silence(
        cls, params: AlertParams, hit: float, said: list[Event], watched: float, row: dict[str, Any]
    ) -> CheckResult:
        verdict = by_deadline(None, params.within_s, watched)
        if verdict is Verdict.INCONCLUSIVE:
            gap = t("did not fire, and Prometheus was seen without a gap for {seconds:.1f} s only", seconds=watched)
            return cls.unclear(gap, **row)
        others = [e.data.get("labels") for e in said if at(e) >= hit and e.data.get("state") == "firing"]
        if others:
            labels = ", ".join(f"{key}={value}" for key, value in sorted((others[0] or {}).items()))
            told = t(
                "did not fire within {seconds:g} s; fired with other labels: {labels}",
                seconds=params.within_s,
                labels=labels,
            )
            return cls.result(verdict, told, **row)
        return cls.result(verdict, t("did not fire within {seconds:g} s", seconds=params.within_s), **row)

    @classmethod
    def _after(cls, ev: Evidence, params: AlertParams, hit: float, watched: float, row: dict[str, Any]) -> CheckResult:
        """Judge what must follow the firing."""
        detail = row["detail"]
        if params.notified_within_s is not None:
            if detail["notified_s"] is None and (blind := _uncounted(ev, hit)):
                unknown = t("fired in time; whether it was notified is not known: {reason}", reason=blind)
                return cls.unclear(unknown, **row)
            verdict = by_deadline(detail["notified_s"], params.notified_within_s, ev.ended - hit)
            if verdict is not Verdict.PASS:
                return cls.result(verdict, _notified(detail["notified_s"], params.notified_within_s), **row)
        if params.resolves_within_s is not None:
            if ev.t_off is None:
                return cls.unclear(t("fired; the fault was never proven off, so its end cannot be judged"), **row)
            seen_s = min(ev.ended, hit + watched) - ev.t_off
            resolved_s = detail["resolved_s"]
            if resolved_s is not None and resolved_s > seen_s + POLL_GAP_S:
                gap = t(
                    "fired and resolved; between, Prometheus was seen without a gap for {seconds:.1f} s only",
                    seconds=watched,
                )
                return cls.unclear(gap, **row)
            verdict = by_deadline(resolved_s, params.resolves_within_s, seen_s)
            if verdict is not Verdict.PASS:
                return cls.result(verdict, _resolved(resolved_s, params.resolves_within_s), **row)
        if _silenced(ev.plan):
            unproven = t("fired in time; it was silenced for the victim, so the paging path is not proven")
            return cls.result(Verdict.PASS, unproven, **row)
        return cls.result(Verdict.PASS, t("fired in time"), **row)


def _silenced(plan: Json) -> bool:
    """Whether the target has the expected alerts silenced for the victim."""
    return bool((plan["target"].get("alerts") or {}).get("mode") == "observe")


def _unsuited(params: AlertParams, plan: Json) -> list[str]:
    """Say why that alert cannot be silenced, or what of the check cannot be told then."""
    found = []
    if params.notified_within is not None:
        found.append("notified_within: alerts.mode observe silences it; leave it out, or write auto")
    shared = plan["target"].get("kind") != TAKES_NOTIFICATIONS
    if shared and not params.labels and not plan["target"]["alerts"].get("labels"):
        found.append(
            "alerts.mode observe would silence it for everybody: name what tells it from others by labels, such as "
            "{pod: '{victim}'} here, or by alerts.labels of the target"
        )
    return found


def _row(
    ev: Evidence, params: AlertParams, hit: float, firing: Event | None, notes: list[Event], right: list[Event]
) -> dict[str, Any]:
    noted = next((e for e in notes if e.data.get("status") == "firing"), None)
    ended = None
    # We look twice a second; a notification that came in between proves that it had fired by then.
    fired = min(at(e) for e in (firing, noted) if e is not None) if firing else None
    if firing is not None:
        # Several series of one alert may fire; it is over when the last of them is.
        last = {repr(sorted(e.data.get("labels", {}).items())): e for e in right}
        over = all(e.data.get("state") == "inactive" for e in last.values())
        ended = max(last.values(), key=at) if over else None
    from_off = ev.t_off if ev.t_off is not None else hit
    fired_s = seconds(fired - hit) if fired is not None else None
    return {
        "value": fired_s,
        "bound": params.within_s,
        "unit": "s",
        "events": tuple(e.n for e in (firing, noted, ended) if e is not None),
        "detail": {
            "fired_s": fired_s,
            "notified_s": seconds(at(noted) - hit) if noted else None,
            "resolved_s": seconds(max(0.0, at(ended) - from_off)) if ended else None,
            "labels": firing.data.get("labels") if firing else None,
        },
    }


def _open_before(said: list[Event], hit: float) -> Event | None:
    """Return an alert of that name that was pending or firing when the fault came."""
    states = {repr(sorted(e.data.get("labels", {}).items())): e for e in said if at(e) < hit}
    return next((e for e in states.values() if e.data.get("state") not in ("inactive", None)), None)


def _notes(ev: Evidence, params: AlertParams, hit: float) -> list[Event]:
    mine = [e for e in ev.of("notified") if e.data.get("alert") == params.name and at(e) >= hit]
    return [e for e in mine if _matches(ev, params.labels, e.data)]


def _matches(ev: Evidence, wanted: dict[str, str], data: Json) -> bool:
    found = data.get("labels") or {}
    stand_for = {
        "{victim}": set(ev.victims),
        "{gpu}": {gpu for v in ev.victims.values() for gpu in v.get("gpus") or ()},
    }
    return all(found.get(key) in stand_for.get(value, {value}) for key, value in wanted.items())


def _has_alertmanager(plan: Json) -> bool:
    times = plan["target"].get("alerts", {}).get("times") or {}
    return times.get("group_wait_s") is not None


def _uncounted(ev: Evidence, hit: float) -> str:
    """Say why no notification could be seen, empty where one would have been."""
    if ev.plan["target"].get("kind", TAKES_NOTIFICATIONS) == TAKES_NOTIFICATIONS:
        return ""
    low, high = blind([hit, *looks(ev, COUNTED, "alertmanager")], hit, ev.ended)
    if high - low > COUNTED_GAP_S:
        return t("Alertmanager's counters were not seen for {seconds:.1f} s", seconds=high - low)
    return ""


def _watched_s(ev: Evidence, hit: float) -> float | None:
    """Return how long from the injection Prometheus was seen without a gap.

    None when it never was; negative when nobody looked right before the injection.
    """
    times = sorted(looks(ev, "alerts", "prometheus"))
    if not times:
        return None
    seen = max((mono for mono in times if hit - POLL_GAP_S <= mono < hit), default=None)
    if seen is None:
        return -1.0
    for mono in (mono for mono in times if mono >= hit):
        if mono - seen > POLL_GAP_S:
            break
        seen = mono
    return max(0.0, seen - hit)


def _notified(value_s: float | None, within_s: float) -> str:
    if value_s is None:
        return allowed(t("fired in time; notified: not seen"), within_s)
    return allowed(t("fired in time; notified: after {seconds:.1f} s", seconds=value_s), within_s)


def _resolved(value_s: float | None, within_s: float) -> str:
    if value_s is None:
        return allowed(t("fired in time; resolved: not seen"), within_s)
    return allowed(t("fired in time; resolved: after {seconds:.1f} s", seconds=value_s), within_s)
