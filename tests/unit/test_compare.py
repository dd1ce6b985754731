"""Two runs side by side: what differs in what they did, and what of what came of it is beyond chance."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from drills import cli, comparable, compare, verdict
from drills.comparable import Change
from drills.errors import FileProblem
from drills.model import Json
from tests.unit import runs
from tests.unit.runs import HIT, Run

A, B = "20261101T100000Z-pod-kill-aaaaaaaa", "20261201T100000Z-pod-kill-bbbbbbbb"


def healthy() -> Run:
    run = runs.healthy()
    run.plan["experiment"] |= {"name": "pod-kill", "faults": [{"fault": "pod-kill", "params": {"victims": 1}}]}
    return run


def worse() -> Run:
    """Return a run in which every sixth request of the fault failed."""
    run = healthy()
    run.fail([record for record in run.requests if record["intended"] > HIT][:200])
    run.recount()
    return run


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return healthy().write(tmp_path_factory.mktemp("reports") / "runs" / A)


@pytest.fixture
def reports(tmp_path: Path, before: Path) -> Path:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / A).symlink_to(before)
    return tmp_path


def rows(found: list[compare.Row]) -> dict[str, Change]:
    return {row.name.strip(): row.change for row in found}


def test_a_run_and_itself_differ_in_nothing(before: Path) -> None:
    found = compare.compare(before, before)
    assert (found.not_comparable, found.plan, found.versions) == ([], [], [])
    assert set(rows([*found.checks, *found.measured]).values()) == {Change.CHANCE, Change.NO_INTERVAL}


def test_what_got_worse_is_beyond_chance_and_what_did_not_is_not(before: Path, tmp_path: Path) -> None:
    found = compare.compare(before, worse().write(tmp_path / B))
    changed = rows([*found.checks, *found.measured])
    beyond = {name for name, change in changed.items() if change is Change.WORSE}
    assert beyond == {
        "latency (ttft, p99, fault)",
        "availability",
        "sessions",
        "goodput",
        "ttft p99, fault",
        "e2e p99, fault",
        "max_gap p99, fault",
        "answered, fault",
    }
    assert changed["ttft p99, baseline"] is Change.CHANCE
    assert changed["failover"] is Change.NO_INTERVAL
    back = rows(compare.compare(tmp_path / B, before).checks)
    assert {name for name, change in back.items() if change is Change.BETTER} == beyond & set(back)


def test_runs_that_did_not_do_the_same_are_not_comparable_and_are_shown(before: Path, tmp_path: Path) -> None:
    run = healthy()
    run.plan["experiment"]["load"] = {"arrivals": {"kind": "poisson", "rate": 30.0}}
    run.plan["experiment"]["faults"] = [{"fault": "pod-kill", "params": {"victims": 2}}]
    found = compare.compare(before, run.write(tmp_path / B))
    assert found.not_comparable == ["faults[0].params.victims: 1, 2", "load.arrivals.rate: 20.0, 30.0"]
    lines = found.lines()
    assert "not comparable: faults[0].params.victims: 1, 2" in lines
    assert any(line.startswith("  failover ") for line in lines)


def test_bounds_versions_and_seed_are_told_and_do_not_matter(before: Path, tmp_path: Path) -> None:
    run = healthy()
    run.plan["seed"] = 4711
    for check in run.plan["experiment"]["checks"]:
        if check["check"] == "failover":
            check["params"] = {"within": 9.0}
    run.of("header")[0]["versions"] = {"vllm": "0.11"}
    found = compare.compare(before, run.write(tmp_path / B))
    assert found.not_comparable == []
    assert "checks.failover.within: 5.0, 9.0" in found.plan
    assert any(line.startswith("seed: ") for line in found.plan)
    assert any("vllm" in line for line in found.versions)
    [row] = [row for row in found.checks if row.name == "failover"]
    assert row.a
    assert row.b


def test_a_check_that_only_one_run_has(before: Path, tmp_path: Path) -> None:
    run = healthy()
    run.plan["experiment"]["checks"] = [{"check": "accounted", "params": {}}]
    found = compare.compare(before, run.write(tmp_path / B))
    [line] = [line for line in found.lines() if line.startswith("  failover ")]
    assert "pass → not there" in line
    assert "→ no data" in line


def test_a_run_without_its_raw_files_is_compared_as_it_was_judged(before: Path, tmp_path: Path) -> None:
    place = worse().write(tmp_path / B)
    (place / "load.json").write_text("{}")
    verdict.write(place)
    (place / "requests.ndjson").unlink()
    found = compare.compare(before, place)
    assert rows(found.checks)["availability"] is Change.WORSE
    assert rows(found.measured)["answered, fault"] is Change.NO_INTERVAL
    assert "as it was judged" in found.lines()[1]
    (place / "verdict.json").unlink()
    with pytest.raises(FileProblem, match="nothing can be compared"):
        compare.compare(before, place)


@pytest.mark.parametrize("text", ["", "[]", '{"target": 1}', "\x00"])
def test_a_damaged_plan_is_named(before: Path, tmp_path: Path, text: str) -> None:
    place = healthy().write(tmp_path / B)
    (place / "plan.json").write_text(text)
    with pytest.raises(FileProblem, match=r"plan\.json"):
        compare.compare(before, place)


def test_the_command_says_the_rule(reports: Path, capsys: pytest.CaptureFixture[str]) -> None:
    worse().write(reports / "runs" / B)
    assert cli.app(["compare", "aaaaaaaa", "bbbbbbbb", "--reports", str(reports)], standalone_mode=False) == 0
    said = capsys.readouterr().out
    assert said.splitlines()[-1] == comparable.RULE
    assert "worse, beyond chance" in said


def test_the_command_as_json_is_json_and_the_same_each_time(reports: Path, capsys: pytest.CaptureFixture[str]) -> None:
    worse().write(reports / "runs" / B)
    words = ["compare", "aaaaaaaa", "bbbbbbbb", "--reports", str(reports), "--json"]
    said = []
    for _ in range(2):
        assert cli.app(words, standalone_mode=False) == 0
        said.append(capsys.readouterr().out)
    found: Json = json.loads(said[0])
    assert said[0] == said[1]
    assert (found["comparable"], found["a"]["run"], found["b"]["verdict"]) == (True, "aaaaaaaa", "fail")
    [row] = [row for row in found["measured"] if row["name"] == "ttft p99, fault"]
    assert (row["b"]["value"], row["b"]["interval"], row["beyond_chance"]) == ("inf", ["inf", "inf"], True)


def test_hostile_words_of_a_plan_are_shown_and_not_obeyed(reports: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = healthy()
    run.plan["target"]["model"] = "\x1b[31mred\n\u202e"
    run.write(reports / "runs" / B)
    cli.app(["compare", "aaaaaaaa", "bbbbbbbb", "--reports", str(reports)], standalone_mode=False)
    said = capsys.readouterr().out
    assert "\\x1b[31mred" in said
    assert all(char.isprintable() or char == "\n" for char in said)
