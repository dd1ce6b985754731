"""When an alert counts as notified, by what an Alertmanager of others says."""

from __future__ import annotations

from drills.model import Json
from drills.probes.notified import Notifications
from drills.probes.prometheus import Alertmanager


class Scripted(Alertmanager):
    """An Alertmanager that says what it is told to say."""

    def __init__(self, ways: dict[str, int]) -> None:
        self.receivers, self.count, self.waiting = ways, 0.0, list[Json]()

    def ways(self) -> dict[str, int]:
        return self.receivers

    def sent(self) -> float:
        return self.count

    def groups(self) -> list[Json]:
        return self.waiting


def group(alert: str, receiver: str = "pager", state: str = "active", **labels: str) -> Json:
    """Return a group of one alert."""
    found = {"labels": {"alertname": alert, **labels}, "fingerprint": f"{alert} {labels}", "status": {"state": state}}
    found["startsAt"] = "2026-11-30T14:00:00.000Z"
    return {"labels": {"alertname": alert, **labels}, "receiver": {"name": receiver}, "alerts": [found]}


def watched(**ways: int) -> tuple[Scripted, Notifications, list[Json]]:
    """Return the server, what watches it, and what that tells; it has looked once."""
    server, told = Scripted(ways or {"pager": 1}), list[Json]()
    found = Notifications(server, lambda _, data: told.append(data), mono=lambda: 12.5)
    found.look()
    return server, found, told


def test_one_that_waits_and_is_sent_is_notified_once() -> None:
    server, seen, told = watched()
    server.waiting = [group("Down", service="chat")]
    assert seen.look() == {"waiting": 1, "sent": 0.0}
    assert told == []
    server.count = 1.0
    seen.look()
    seen.look()
    assert told == [
        {
            "alert": "Down", "labels": {"service": "chat"}, "status": "firing", "at_mono": 12.5,
            "fired_at": 1796047200.0, "source": "alertmanager",
        }
    ]  # fmt: skip


def test_one_that_was_sent_before_it_was_first_seen_is_notified() -> None:
    server, seen, told = watched()
    server.waiting, server.count = [group("Down")], 1.0
    seen.look()
    assert [one["alert"] for one in told] == ["Down"]


def test_what_was_sent_while_nobody_waited_is_of_somebody_else() -> None:
    server, seen, told = watched()
    server.count = 5.0  # an old alert is repeated
    seen.look()
    server.waiting = [group("Down")]
    seen.look()
    assert told == []


def test_two_that_wait_need_two_notifications() -> None:
    server, seen, told = watched()
    server.waiting, server.count = [group("Down"), group("Slow")], 1.0
    seen.look()
    assert told == []
    server.count = 2.0
    seen.look()
    assert sorted(one["alert"] for one in told) == ["Down", "Slow"]


def test_a_receiver_with_two_ways_needs_both() -> None:
    server, seen, told = watched(pager=2)
    server.waiting, server.count = [group("Down")], 1.0
    seen.look()
    assert told == []
    server.count = 2.0
    seen.look()
    assert len(told) == 1


def test_a_receiver_that_tells_nobody_notifies_nobody_and_keeps_no_other_waiting() -> None:
    server, seen, told = watched(pager=1, nobody=0)
    server.waiting, server.count = [group("Ticket", "nobody"), group("Down")], 1.0
    seen.look()
    assert [one["alert"] for one in told] == ["Down"]
    server.count = 2.0
    seen.look()
    assert [one["alert"] for one in told] == ["Down"]


def test_one_that_is_silenced_is_not_notified() -> None:
    server, seen, told = watched()
    server.waiting, server.count = [group("Down", state="suppressed")], 1.0
    seen.look()
    assert told == []


def test_one_that_comes_again_is_notified_again() -> None:
    server, seen, told = watched()
    server.waiting, server.count = [group("Down")], 1.0
    seen.look()
    server.waiting, server.count = [], 2.0  # resolved, and that was sent as well
    seen.look()
    server.waiting = [group("Down")]
    seen.look()
    assert len(told) == 1
    server.count = 3.0
    seen.look()
    assert len(told) == 2


def test_a_restart_of_the_server_is_no_notification() -> None:
    server, seen, told = watched()
    server.count = 7.0
    seen.look()
    server.waiting, server.count = [group("Down")], 0.0
    seen.look()
    assert told == []
    server.count = 1.0
    seen.look()
    assert len(told) == 1
