"""Watches alerts change: pending, firing, gone; in Prometheus and in Alertmanager."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from drills.model import Json
from drills.probes.answers import wall
from drills.probes.prometheus import Alertmanager, Prometheus

Tell = Callable[[str, Json], None]
#: Severities that wake nobody. Whatever else an alert says of itself, or nothing, it is treated as a page.
NO_PAGE = frozenset({"ticket", "warning", "info", "none"})


def is_page(labels: Json) -> bool:
    """Whether an alert with these labels means that somebody has to act now."""
    return labels.get("severity") not in NO_PAGE and labels.get("alertname") != "Watchdog"


def concerns(labels: Json, service: Mapping[str, str]) -> bool:
    """Whether an alert may be of a service: one with another value of one of its labels is of another."""
    return all(labels.get(key, value) == value for key, value in service.items())


class AlertWatch:
    """Tells every change of an alert once. Times are the server's; `seen` by us comes with the event."""

    def __init__(self, tell: Tell) -> None:
        self.tell = tell
        self.states: dict[tuple[str, str], tuple[str, Json]] = {}

    def prometheus(self, server: Prometheus) -> Json:
        """Look once; returns how many are pending and firing."""
        return self._changes("prometheus", [(a["labels"], a["state"], a) for a in server.alerts()])

    def alertmanager(self, server: Alertmanager) -> Json:
        """Look once; `suppressed` (silenced or inhibited) is a state of its own."""
        found = []
        for alert in server.alerts():
            state = {"active": "firing"}.get(alert["status"]["state"], alert["status"]["state"])
            found.append((alert["labels"], state, alert))
        return self._changes("alertmanager", found)

    def _changes(self, source: str, found: list[tuple[Json, str, Json]]) -> Json:
        now = {}
        for labels, state, alert in found:
            key = (source, repr(sorted(labels.items())))
            now[key] = (state, labels)
            was = self.states.get(key, ("inactive", {}))[0]
            if was != state:
                self._say(source, labels, (was, state), alert)
        for key, (state, labels) in list(self.states.items()):
            if key[0] == source and key not in now and state != "inactive":
                self._say(source, labels, (state, "inactive"), {})
                del self.states[key]
        self.states.update(now)
        counts = [state for state, _ in now.values()]
        return {"pending": counts.count("pending"), "firing": counts.count("firing")}

    def _say(self, source: str, labels: Json, change: tuple[str, str], alert: Json) -> None:
        # Prometheus tells since when the condition holds; Alertmanager's startsAt is when the alert fired.
        active, fired = alert.get("activeAt"), alert.get("startsAt")
        self.tell(
            "alert",
            {
                "alert": labels.get("alertname", ""),
                "labels": {k: v for k, v in sorted(labels.items()) if k != "alertname"},
                "state": change[1],
                "was": change[0],
                "active_at": wall(active),
                "fired_at": wall(fired),
                "value": alert.get("value"),
                "source": source,
            },
        )
