"""Detection and timeline: rows only of what was seen, what came before the fault, and sentences that do not mislead."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from drills.model import Event
from drills.probes import alerts
from drills.report import detection, timeline
from tests.unit import runs
from tests.unit.retries import OFF, held, quiet_service
from tests.unit.runs import BASELINE, HIT, Json, Run
from tests.unit.test_report_headline import postmortem, section


def told(run: Run, folder: Path) -> str:
    """Return the section on detection."""
    return section(postmortem(run, folder), "Detection")


def says(run: Run, at: float, state: str, name: str = "Early", source: str = "prometheus", **labels: str) -> None:
    """Let an alert change."""
    run.tell(at, "alert", alert=name, labels={"severity": "ticket", **labels}, source=source, state=state)


def test_pages_are_those_that_preflight_takes_for_pages() -> None:
    assert detection.WAKES_NOBODY == alerts.NO_PAGE


def test_what_was_seen_only_before_has_a_sentence_and_no_row(tmp_path: Path) -> None:
    run = runs.healthy()
    says(run, BASELINE + 1, "pending")
    says(run, BASELINE + 2, "inactive")
    text = told(run, tmp_path)
    assert "| `Early` |" not in text
    assert re.search(
        r"- `Early` was pending before the injection, at -\d+\.\d\d s \(journal \d+, \d+\), and no longer", text
    )
    assert "- 1 alert has no row above: nothing was seen of it after the injection." in text
    assert "| `VllmReplicaDown` | yes | +2.00 s" in text


@pytest.mark.parametrize("state", ["pending", "firing"])
def test_what_was_open_when_the_fault_came_says_so(tmp_path: Path, state: str) -> None:
    run = runs.healthy()
    says(run, BASELINE + 1, state)
    says(run, BASELINE + 1, state, source="alertmanager")
    says(run, HIT + 5, "inactive")
    text = told(run, tmp_path)
    assert f"`Early` was {state} before the injection" in text
    assert f"**and was {state} when that came**" in text
    assert text.count("`Early` was") == 1


def test_one_series_of_several_may_still_be_open(tmp_path: Path) -> None:
    run = runs.healthy()
    says(run, BASELINE + 1, "pending", replica="a")
    says(run, BASELINE + 1.5, "pending", replica="b")
    says(run, BASELINE + 2, "inactive", replica="b")
    assert "**and was pending when that came**" in told(run, tmp_path)


def test_an_expected_alert_keeps_its_row_though_nothing_was_seen_of_it(tmp_path: Path) -> None:
    run = runs.healthy()
    run.drop("alert")
    run.drop("notified")
    says(run, HIT + 1, "pending")
    text = told(run, tmp_path)
    assert "| `VllmReplicaDown` | yes | not seen | not seen |" in text
    assert "no row above" not in text


def test_alerts_that_came_before_are_not_none_at_all(tmp_path: Path) -> None:
    run = runs.healthy()
    run.plan["experiment"]["checks"] = [{"check": "accounted", "params": {}}]
    run.drop("alert")
    run.drop("notified")
    says(run, BASELINE + 1, "pending")
    says(run, BASELINE + 2, "inactive")
    assert "no alert came up after the injection" in told(run, tmp_path)


# ---- the timeline --------------------------------------------------------------------------------------


def sentence(event: str, **data: object) -> str:
    """Return what the timeline says of an event."""
    return timeline.sentence(Event(1, "2026-11-30T00:00:00Z", 0.0, event, data))


def test_what_is_told_by_newer_names_is_not_absent() -> None:
    newer = {"prefix_hits": "a", "prefix_queries": "b", "preemptions": "c"}
    absent = ["prefix_hit_rate", "swapped"]
    assert sentence("metrics.names", replica="r", names=newer, absent=absent) == "metrics of `r` read"
    some = {"prefix_hits": "a", "preemptions": "c"}
    assert "absent at that moment: `prefix_hit_rate`" in sentence(
        "metrics.names", replica="r", names=some, absent=absent
    )
    assert "`kv_usage`" in sentence("metrics.names", replica="r", names=newer, absent=["kv_usage"])


def test_what_need_not_be_undone_is_said_with_its_reason() -> None:
    said = sentence("undo.needless", receipt="r-0", why=["# node n1 is gone, and with it what was changed there"])
    assert said == "nothing to undo: node n1 is gone, and with it what was changed there"


def test_what_is_over_by_itself_is_not_taken_off() -> None:
    proof: Json = {"ok": True, "evidence": runs.SEEN}
    assert sentence("proof.off", held=True, **proof).startswith("fault off: proven: process of the victim")
    once = sentence("proof.off", held=False, **proof)
    assert once.startswith("nothing of ours is left in place: proven: process of the victim")
    assert sentence("proof.on", held=False, **proof).startswith("fault on: proven")


def test_off_is_where_the_timeline_has_it(tmp_path: Path) -> None:
    text = postmortem(runs.healthy(), tmp_path / "once")
    assert "Marks: injection +0.0 s, off +0.2 s," in text  # proven after 0.25 s, the revert ended after 0.3 s
    assert "on: proven; nothing of ours left in place: proven" in text
    lasting = postmortem(held(quiet_service()), tmp_path / "held")
    assert f"off {OFF - HIT:+.1f} s" in lasting
    assert "on: proven; off: proven" in lasting


def test_the_recovery_is_planned_in_the_offsets_of_the_timeline(tmp_path: Path) -> None:
    text = postmortem(runs.healthy(), tmp_path / "once")
    assert "phase recovery begins, planned until +100.00 s, less once every check is decided" in text
    run = held(quiet_service())
    run.plan["phases"] |= {"recovery_from": "off", "recovery_auto": False}
    lasting = postmortem(run, tmp_path / "held")
    assert f"phase recovery begins, planned until {OFF - HIT + 100:+.2f} s |" in lasting
    del run.plan["phases"]["recovery_from"]
    assert "phase recovery begins, planned 60.0 s" in postmortem(run, tmp_path / "older")
