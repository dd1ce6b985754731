"""Whether alerts were passed on to people, as far as an Alertmanager that notifies others than us can tell.

Its API says which alerts wait in which groups, its counters how many notifications were accepted by whoever was to get
them. An alert counts as notified when since it was first seen as many were accepted as the groups that waited have
ways to be sent; a counter does not say which of them it was. Silenced and inhibited alerts are never notified.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from drills.model import Json
from drills.probes.alerts import Tell
from drills.probes.answers import wall
from drills.probes.prometheus import Alertmanager


@dataclass(frozen=True)
class Waiting:
    """An active alert, and where it is to be sent: pairs of a group and a receiver."""

    alert: Json
    places: frozenset[str]


class Notifications:
    """Tells once of each alert that it was notified."""

    def __init__(self, server: Alertmanager, tell: Tell, mono: Callable[[], float] = time.monotonic) -> None:
        self.server, self.tell, self.mono = server, tell, mono
        self.ways: dict[str, int] | None = None
        self.sent: float | None = None
        self.credit = 0.0  # notifications since somebody has been waiting
        self.told: set[str] = set()

    def look(self) -> Json:
        """Look once; returns how many alerts wait to be notified, and how many notifications there were."""
        if self.ways is None:
            self.ways = self.server.ways()
        sent = self.server.sent()  # first: whatever was sent by now was of a group that is seen below
        active, cost = self._active(self.server.groups())
        self.told &= active.keys()
        waiting = {key: one for key, one in active.items() if key not in self.told}
        grown = 0.0 if self.sent is None else max(0.0, sent - self.sent)
        self.credit = self.credit + grown if waiting else 0.0
        self.sent = sent
        due = sum(cost[place] for place in frozenset[str]().union(*(one.places for one in waiting.values())))
        if waiting and self.credit >= due:
            for key, one in waiting.items():
                if any(cost[place] for place in one.places):  # else it goes to a receiver that tells nobody
                    self._say(one)
                    self.told.add(key)
            self.credit = 0.0
        return {"waiting": len(waiting), "sent": sent}

    def _active(self, groups: list[Json]) -> tuple[dict[str, Waiting], dict[str, int]]:
        """Return the active alerts by their fingerprints, and in how many ways each place is told."""
        found: dict[str, Waiting] = {}
        cost: dict[str, int] = {}
        for group in groups:
            receiver = str(group["receiver"]["name"])
            place = f"{receiver} {sorted(group['labels'].items())}"
            for alert in (one for one in group["alerts"] if one["status"]["state"] == "active"):
                cost[place] = (self.ways or {}).get(receiver, 1)
                key = str(alert["fingerprint"])
                before = found[key].places if key in found else frozenset()
                found[key] = Waiting(alert, before | {place})
        return found, cost

    def _say(self, one: Waiting) -> None:
        labels = one.alert["labels"]
        said = {
            "alert": labels.get("alertname", ""),
            "labels": {k: v for k, v in sorted(labels.items()) if k != "alertname"},
            "status": "firing",
            "at_mono": self.mono(),
            "fired_at": wall(one.alert.get("startsAt")),
            "source": "alertmanager",
        }
        self.tell("notified", said)
