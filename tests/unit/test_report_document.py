"""postmortem.json and the schemas: up to date, valid, the same bytes, and saying what the page says."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from drills import schemas, verdict
from drills.report import run as report
from tests.unit import report_runs, runs

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", schemas.NAMES)
def test_a_shipped_schema_is_what_the_code_says(name: str) -> None:
    path = ROOT / "drills" / "data" / f"{name}.schema.json"
    assert path.read_bytes() == schemas.made(name), "make them again: python tools/schemas.py"
    schema = json.loads(schemas.shipped(name))
    assert schema["$schema"] == schemas.DIALECT
    assert set(schema["required"]) == set(schema["properties"])


def built(folder: Path, kind: str) -> Path:
    """Return a judged run of a kind."""
    if kind == "outage":
        return report_runs.build(folder, rate=2.0)
    if kind == "quiet":
        return runs.quiet(2.0).write(folder)
    if kind == "noop":
        return report_runs.build(folder, rate=2.0, fault="noop")
    run = runs.healthy(5.0)
    if kind == "failing":
        run.fail(run.between(runs.HIT, runs.HIT + 30))
    if kind == "no ledger":
        run.has_ledger = False
    run.recount()
    run.write(folder)
    if kind == "cut short":
        path = folder / "journal.jsonl"
        path.write_bytes(path.read_bytes()[: path.stat().st_size * 3 // 5])
    if kind == "bare":
        for name in ("requests.ndjson", "ledger.ndjson", "samples.ndjson"):
            (folder / name).unlink()
    return folder


KINDS = ("outage", "quiet", "noop", "healthy", "failing", "no ledger", "cut short", "bare")


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_run_leaves_is_valid_and_the_same_again(tmp_path: Path, kind: str) -> None:
    folder = built(tmp_path / "run", kind)
    if kind != "outage":
        verdict.write(folder)
        fits("verdict", (folder / "verdict.json").read_bytes())
    first = report.render(folder)
    assert report.render(folder) == first
    fits("postmortem", first["postmortem.json"])


def fits(name: str, content: bytes) -> None:
    """Check a file against its model, with every key of the schema there and none beside."""
    schemas.adapter(name).validate_json(content)
    schema = json.loads(schemas.shipped(name))
    keys(json.loads(content), schema, schema)


def keys(value: Any, schema: dict[str, Any], root: dict[str, Any]) -> None:
    """Compare the keys of objects with their schema, all the way down."""
    if "$ref" in schema:
        schema = root["$defs"][schema["$ref"].rsplit("/", 1)[1]]
    for choice in schema.get("anyOf", ()):
        if value is not None and ("$ref" in choice or (choice.get("type") == "array" and isinstance(value, list))):
            return keys(value, choice, root)
    if isinstance(value, list) and "items" in schema:
        for item in value:
            keys(item, schema["items"], root)
    if isinstance(value, dict) and "properties" in schema:
        assert set(value) == set(schema["properties"])
        for key, item in value.items():
            keys(item, schema["properties"][key], root)
    return None


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    return report.render(report_runs.build(tmp_path_factory.mktemp("run") / "full"))


def test_the_page_says_what_the_document_says(made: dict[str, bytes]) -> None:
    told, page = json.loads(made["postmortem.json"]), made["postmortem.md"].decode()
    assert f"verdict: **{told['outcome']['verdict']}**" in page
    seen = told["impact"]["streams"]
    assert f"{seen['cut']} of {seen['in_flight']} streams in flight on the victim were cut" in page
    p99 = next(
        q for q in told["impact"]["latencies"] if (q["metric"], q["quantile"], q["cohort"]) == ("ttft", 0.99, "fault")
    )
    shown = re.search(r"\| p99 time to first token \| fault \| (\d+) ms \| ([\d,]+) \|", page)
    assert shown
    assert (int(shown[1]), shown[2]) == (round(1000 * p99["value_s"]), f"{p99['n']:,}")
    whole = sum(row["whole_run"] for row in told["impact"]["arrivals"])
    assert re.search(rf"\| \*\*all\*\* \| .* \| {whole:,} \|", page)
    assert len(told["timeline"]) == len(re.findall(r"^\| \d\d:\d\d:\d\d\.\d{3} \|", page, re.MULTILINE))
    for line in told["timeline"]:
        assert f"| {line['utc'][11:23]} | {line['offset_s']:+.2f} s | {line['text']} | {line['source']} |" in page
    for action in told["actions"]:
        assert f"`{action['id']}`" in page
    for figure in told["figures"]:
        assert f"![{figure['text']}]({figure['file']})" in page
        assert figure["file"] in made
    assert told["detection"]["after_injection_s"] == pytest.approx(7.0, abs=0.01)
    assert "Time to detect: 7.00 s from the injection to the alert firing" in page


def test_failures_that_make_a_quantile_endless_are_no_number(tmp_path: Path) -> None:
    run = runs.healthy(5.0)
    run.fail(run.between(runs.HIT, runs.RECOVERY))
    run.recount()
    told = json.loads(report.render(run.write(tmp_path / "run"))["postmortem.json"])
    assert {q["value_s"] for q in told["impact"]["latencies"] if q["cohort"] == "fault"} == {"inf"}
    assert told["outcome"]["verdict"] is None  # nobody judged it yet


def test_what_was_not_seen_is_null(tmp_path: Path) -> None:
    told = json.loads(report.render(built(tmp_path / "run", "bare"))["postmortem.json"])
    assert told["impact"]["streams"] is None
    assert told["impact"]["budgets"] == []
    assert {q["value_s"] for q in told["impact"]["latencies"]} == {None}
    assert told["impact"]["retries"]["primaries"] is None
    assert told["detection"]["router_s"] is None
