"""How long an alert may take at a target, and what `auto` stands for in an alert check. Pure.

within           scrape + ramp + evaluation + for, one scrape and one evaluation more, and 10 s
notified_within  `within` + group_wait + 5 s
resolves_within  until the replica has to be back (`replica_restart`, else `recovery`), or after a one-shot fault
                 until the alert has to fire, whichever is later; + scrape + ramp + evaluation + 10 s
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from drills.experiment import Item
from drills.units import format_duration as seconds

AUTO: Final = "auto"
CHECK: Final = "alert"
#: A replica takes a moment to end, and we look twice a second.
SLACK_S: Final = 10.0
#: Alertmanager takes a moment to send, and its counters are read once a second.
SENT_SLACK_S: Final = 5.0
#: Whose `within` says when the service has to be whole again; the first one that the experiment has.
BACK_BY: Final = ("replica_restart", "recovery")


@dataclass(frozen=True)
class AlertTimes:
    """What stands between a fault and a page, in seconds. `group_wait_s` is None where there is no Alertmanager."""

    scrape_s: float
    ramp_s: float
    evaluation_s: float
    for_s: float
    group_wait_s: float | None = None

    @property
    def latency_s(self) -> float:
        """Return the time from the fault to a firing alert as it is declared."""
        return self.scrape_s + self.ramp_s + self.evaluation_s + self.for_s

    @property
    def within_s(self) -> float:
        """Return the most it may take: a scrape may wait for its time-out, and `for` ends with an evaluation."""
        return self.latency_s + self.scrape_s + self.evaluation_s + SLACK_S

    @property
    def gone_s(self) -> float:
        """Return how long an alert may outlive its cause."""
        return self.scrape_s + self.ramp_s + self.evaluation_s + SLACK_S


#: Where there is no Prometheus: such a check is not decided, whatever its bounds are.
UNKNOWN: Final = AlertTimes(15.0, 0.0, 15.0, 0.0)


def shown(key: str, value: float | None, times: AlertTimes | None) -> str | None:
    """Return for people what `auto` stands for, with its terms; None where it stands for nothing."""
    if value is None:
        return None
    t = times or UNKNOWN
    parts = {"scrape": t.scrape_s, "ramp": t.ramp_s, "evaluation": t.evaluation_s}
    if key == "within":
        terms = f"{_sum(parts | {'for': t.for_s})}, one scrape and one evaluation more, and {seconds(SLACK_S)}"
    elif key == "notified_within":
        terms = f"within + {_sum({'group_wait': t.group_wait_s or 0.0})} + {seconds(SENT_SLACK_S)}"
    else:
        terms = f"until it has to be back or firing, + {_sum(parts)} + {seconds(SLACK_S)}"
    return f"{seconds(value)} (auto: {terms})"


def _sum(parts: Mapping[str, float]) -> str:
    return " + ".join(f"{name} {seconds(value)}" for name, value in parts.items())


def resolved(
    items: Sequence[Item], times: AlertTimes | None, *, held: bool, silenced: bool
) -> tuple[tuple[Item, ...], tuple[str, ...]]:
    """Return the checks with numbers in place of each `auto`, and what will not be judged though it is asked."""
    notes: list[str] = []
    found = []
    for item in items:
        if item.name == CHECK and AUTO in item.params.model_dump().values():
            found.append(_item(item, times or UNKNOWN, _back_s(items), held, silenced, notes))
        else:
            found.append(item)
    return tuple(found), tuple(dict.fromkeys(notes)) if times else ()


def _item(item: Item, times: AlertTimes, back_s: float, held: bool, silenced: bool, notes: list[str]) -> Item:
    given: Mapping[str, Any] = item.params.model_dump()
    within_s = times.within_s if given["within"] == AUTO else float(given["within"])
    update: dict[str, float | None] = {"within": within_s}
    if given["notified_within"] == AUTO:
        update["notified_within"] = _notified_s(times, within_s, silenced, notes)
    if given["resolves_within"] == AUTO:
        back_s = back_s if held else max(back_s, within_s)
        update["resolves_within"] = back_s + times.gone_s
    return replace(item, params=item.params.model_copy(update=update))


def _notified_s(times: AlertTimes, within_s: float, silenced: bool, notes: list[str]) -> float | None:
    if times.group_wait_s is None:
        notes.append("alert: whether it is notified is not judged: the target names no alertmanager")
        return None
    if silenced:
        notes.append("alert: whether it is notified is not judged: alerts.mode observe silences it")
        return None
    return within_s + times.group_wait_s + SENT_SLACK_S


def _back_s(items: Sequence[Item]) -> float:
    """Return when the service has to be whole again, by the experiment itself."""
    for name in BACK_BY:
        bounds = [float(getattr(item.params, "within", 0.0)) for item in items if item.name == name]
        if bounds:
            return max(bounds)
    return 0.0
