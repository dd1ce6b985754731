"""What `drill show` and `drill judge` say of a run: going, over, kept in part, or not put back."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from drills import present, upkeep, verdict
from drills.errors import FileProblem
from drills.journal import Journal
from drills.model import CheckResult, Verdict
from tests.unit import runs

KEPT = Path(__file__).parents[2] / "reports" / "2026-12-01-gpu-reset"


def shown(folder: Path) -> str:
    return "\n".join(present.run(str(folder), folder.parent))


# ---- a run that is still going ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("until", "stage"),
    [(runs.START, "not yet under load"), (runs.HIT, "phase fault since "), (runs.END + 1, "its load is off since ")],
)
def test_a_run_that_is_going_is_told_as_such_and_nothing_else(tmp_path: Path, until: float, stage: str) -> None:
    run = runs.healthy()
    run.events = [event for event in run.events if event["mono"] < until]
    folder = run.write(tmp_path / "run")
    with Journal(folder / "journal.jsonl"):
        said = shown(folder)
    assert "is still going: pod-kill at target " in said
    assert stage in said
    assert f", pid {os.getpid()}" in said
    for misleading in ("verdict ", "restored", "drill judge", "postmortem.md"):
        assert misleading not in said
    found = verdict.judge(folder)
    assert (found.verdict, "the journal ends before the run did" in found.reason) == (Verdict.INCONCLUSIVE, True)
    parts = found.reason.split("; ")
    assert len(parts) == len(set(parts)), "a reason is given once"


def test_a_run_that_has_just_begun_or_is_being_put_back(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text("{}")
    with Journal(tmp_path / "journal.jsonl") as journal:
        assert "is still going: its experiment at target ?; not yet under load" in shown(tmp_path)
        journal.tell("revert.begin", {"receipt": "r1", "by": "recover"})
        assert "`drill recover` is putting it back at this moment" in shown(tmp_path)


# ---- a run that is kept without its raw files ---------------------------------------------------------


def test_a_run_without_its_raw_files_is_shown_as_it_was_judged() -> None:
    said = shown(KEPT)
    assert "\nverdict pass   left healthy   restored clean\n" in said
    assert "requests.ndjson and samples.ndjson are not kept, so it cannot be judged again" in said
    assert "failover         pass          58 ms (bound 5.00 s)" in said
    assert "drill judge" not in said
    with pytest.raises(FileProblem, match="it stays as it was judged: `drill show` says how"):
        upkeep.judge(str(KEPT), KEPT.parent, print)


def test_without_a_verdict_either_nothing_is_said_of_it(tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    shutil.copytree(KEPT, folder)
    (folder / "verdict.json").write_text('{"verdict": "pass"}')
    with pytest.raises(FileProblem, match=r"verdict\.json: not a verdict"):
        shown(folder)
    (folder / "verdict.json").unlink()
    with pytest.raises(FileProblem, match=r"nor verdict\.json of this run is here, so nothing can be said of it"):
        shown(folder)


# ---- a run that was not put back ----------------------------------------------------------------------


@pytest.mark.parametrize("manual", [["rm -f /run/rule"], []])
def test_what_was_not_put_back_is_told_with_what_to_do(tmp_path: Path, manual: list[str]) -> None:
    run = runs.healthy()
    run.of("receipt")[0]["receipt"]["undo"] = [{"do": "remove", "path": "/run/rule"}]
    run.of("revert.end")[0].update(restored="dirty", manual=manual)
    run.of("header")[0].update(target="staging")
    folder = run.write(tmp_path / "run")
    said: list[str] = []
    assert upkeep.judge(str(folder), tmp_path, said.append) == 5
    assert said[1:] == [
        "NOT RESTORED: run `drill recover run --target staging`, and look at what it says",
        "NOT RESTORED, by hand, if that cannot: rm -f /run/rule",
    ]
    assert said[1:] == [line for line in present.run(str(folder), tmp_path) if line.startswith("NOT RESTORED")]


def test_what_was_put_back_asks_for_nothing(tmp_path: Path) -> None:
    folder = runs.healthy().write(tmp_path / "run")
    said: list[str] = []
    assert upkeep.judge(str(folder), tmp_path, said.append) != 5
    assert len(said) == 1
    assert "NOT RESTORED" not in shown(folder)


@pytest.mark.parametrize("undo", [None, [7], [{"do": "remove"}], {"do": "remove"}])
def test_a_damaged_receipt_names_no_command(tmp_path: Path, undo: object) -> None:
    run = runs.healthy()
    run.of("receipt")[0]["receipt"]["undo"] = undo
    run.drop("revert.end")
    assert "NOT RESTORED: run `drill recover " in shown(run.write(tmp_path))


def test_a_postmortem_that_is_not_there_is_not_named_as_a_path(tmp_path: Path) -> None:
    folder = runs.healthy().write(tmp_path / "run")
    verdict.write(folder)
    assert present.run(str(folder), tmp_path)[-1] == "postmortem.md is not there; `drill report` writes it"
    (folder / "postmortem.md").touch()
    assert present.run(str(folder), tmp_path)[-1] == str(folder / "postmortem.md")


# ---- numbers ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "bound", "unit", "words"),
    [
        (0.0289, 1.0, "s", "29 ms (bound 1.00 s)"),
        (0.999, 0.96, "ratio", "99.90 % (bound 96.0 %)"),
        (1.0, 0.99, "ratio", "100 % (bound 99.0 %)"),
        (6, 7, "count", "6 (bound 7)"),
        ("inf", 5.0, "s", "∞ (no answer) (bound 5.00 s)"),
        (None, 5.0, "s", ""),
        (2.0, None, "s", "2.00 s"),
    ],
)
def test_numbers_are_those_of_the_report(value: float | None, bound: float | None, unit: str, words: str) -> None:
    row = CheckResult("latency", Verdict.PASS, value, bound, unit, reason="why")
    assert present.check(row) == f"  latency          pass          {words}  why"


def test_rows_of_a_table_have_the_side_of_their_bound() -> None:
    rows = [
        {"metric": "hit_rate", "verdict": "fail", "value": 0.25, "bound": 0.5, "unit": "ratio", "side": "at least"},
        {"metric": "gpu_temp", "verdict": "pass", "value": 60, "bound": 85, "unit": "°C", "side": "at most"},
        {"metric": "bare", "verdict": "not judged", "reason": "no series"},
    ]
    found = present.checks([CheckResult("metrics", Verdict.FAIL, detail={"rows": rows})])
    assert found[1:] == [
        "    hit_rate         fail          25.0 % (at least 50.0 %)",
        "    gpu_temp         pass          60 °C (at most 85 °C)",
        "    bare             not judged    no series",
    ]
