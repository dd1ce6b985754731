"""`alerts.mode: page`: those who may be paged by a drill are told when it begins and when it ends.

By an alert of our own in Alertmanager, which goes the way of every other one: `DrillRunning`, severity `info`. It
carries its end, so that it goes by itself when nobody is left to take it back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from drills.clock import Clock, utc
from drills.errors import Refused
from drills.model import Embedded, Json, Target
from drills.probes.http import ProbeError
from drills.probes.prometheus import alertmanager_of
from drills.silence import expected_alerts

ALERT: Final = "DrillRunning"


class Announcement:
    """The begin and the end of one run, told to Alertmanager; nobody is on call for an embedded target."""

    def __init__(self, plan: Json, target: Target, clock: Clock, note: Callable[[str, Json], None]) -> None:
        self._plan, self._target, self._clock, self.note = plan, target, clock, note
        self._begun: str | None = None

    def wanted(self) -> bool:
        """Whether somebody may be paged, and there is a way to tell them."""
        mode = (self._plan["target"].get("alerts") or {}).get("mode", "page")
        return mode == "page" and not isinstance(self._target, Embedded) and bool(self._target.alertmanager)

    def begin(self, lasts_s: float) -> None:
        """Announce the begin. Refused when it cannot be: then people would be paged without a word."""
        if not self.wanted():
            return
        now = self._clock.wall()
        self._begun = utc(now)
        why = self._tell("begin", utc(now + lasts_s))
        if why:
            self._begun = None
            raise Refused(f"alerts.mode page: the drill cannot be announced: {why}; nothing was touched")

    def end(self) -> None:
        """Announce the end, if the begin was. That this fails changes nothing: the announcement ends by itself."""
        if self._begun is not None:
            self._tell("end", utc(self._clock.wall()))

    def _tell(self, what: str, ends: str) -> str:
        """Tell Alertmanager, and the journal first; returns why it could not be told."""
        manager = alertmanager_of(self._target)
        assert manager is not None
        self.note("announced", {"what": what, "alert": ALERT, "to": manager.url, "until": ends})
        try:
            manager.tell([self._alert(ends)])
        except ProbeError as error:
            why = f"alertmanager {manager.url}: {error}"
            self.note("announced", {"what": what, "alert": ALERT, "to": manager.url, "error": why})
            return why
        return ""

    def _alert(self, ends: str) -> Json:
        target, experiment = self._plan["target"], self._plan["experiment"]
        expected = ", ".join(dict.fromkeys(name for name, _ in expected_alerts(self._plan))) or "none"
        labels = {"alertname": ALERT, "severity": "info", "target": target["name"], "run": self._plan["run"]}
        return {
            "labels": {**(target["alerts"].get("labels") or {}), **labels, "experiment": experiment["name"]},
            "annotations": {
                "summary": f"drill {experiment['name']} on {target['name']}: what it breaks is broken on purpose",
                "description": f"Alerts that it expects, and that are real: {expected}. `drill stop` ends it.",
            },
            "startsAt": self._begun,
            "endsAt": ends,
        }
