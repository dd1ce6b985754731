"""A run's postmortem: the same bytes again, nothing made up, nothing that foreign text could break."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from pathlib import Path

import pytest

from drills import verdict
from drills.errors import DrillError
from drills.report import run
from tests.unit import report_runs
from tests.unit.report_runs import UUID, VICTIM


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return report_runs.build(tmp_path_factory.mktemp("run") / "full")


@pytest.fixture(scope="module")
def full(folder: Path) -> str:
    """Return the postmortem of a run of 3,300 arrivals, an outage and retries."""
    return postmortem(folder)


@pytest.fixture
def small(tmp_path: Path) -> Path:
    return report_runs.build(tmp_path / "small", rate=2.0)


def postmortem(folder: Path) -> str:
    return run.write(folder).read_text(encoding="utf-8")


def section(text: str, title: str) -> str:
    return text.split(f"\n## {title}\n")[1].split("\n## ")[0]


# ---- bytes --------------------------------------------------------------------------------------------


def test_the_same_files_give_the_same_bytes(small: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(small, copy)
    first = run.render(small)
    run.write(small)
    assert run.render(small) == first  # its own output is no input
    assert run.render(copy) == first  # neither is the place it lies in


def test_a_changed_record_changes_the_report(small: Path) -> None:
    before = postmortem(small)
    path = small / "requests.ndjson"
    rows = path.read_text().splitlines()
    record = json.loads(rows[0]) | {"outcome": "error", "error": "reset", "first_token": None}
    path.write_text("\n".join([json.dumps(record), *rows[1:]]) + "\n")
    after = postmortem(small)
    assert "error: reset" not in before
    assert "| error: reset | 0 | 0 | 0 | 1 |" in after


def test_only_the_report_is_written(small: Path) -> None:
    before = {p.name: p.read_bytes() for p in small.iterdir()}
    run.write(small)
    after = {p.name: p.read_bytes() for p in small.iterdir()}
    figures = {"latency.svg", "outcomes.svg", "ecdf.svg", "attempts.svg"}
    assert set(after) - set(before) == {"postmortem.md", "postmortem.json"} | figures
    assert {name: after[name] for name in before} == before


def test_checksums_are_those_of_the_files(small: Path) -> None:
    text = section(postmortem(small), "How to repeat")
    for name in ("plan.json", "journal.jsonl", "requests.ndjson", "ledger.ndjson", "samples.ndjson", "verdict.json"):
        digest = hashlib.sha256((small / name).read_bytes()).hexdigest()
        assert f"| `{name}` | `{digest}` |" in text


# ---- what a reader who was not there wants to know -----------------------------------------------------


def test_left_and_restored_come_first(full: str) -> None:
    lines = [line for line in full.splitlines() if line]
    assert lines[0] == "# Postmortem: A replica loses its GPU"
    assert lines[1].startswith("**left: healthy** · **restored: clean** · verdict: **fail**")


def test_the_summary_says_what_was_done_seen_and_concluded(full: str) -> None:
    done, seen, outcome = [line for line in full.splitlines() if line][2:5]
    assert "`gpu-reset` (crash)" in done
    assert f"`{VICTIM}` (GPU `{UUID}`), one of 3 replicas" in done
    assert re.search(r"Of [\d,]+ requests begun after the injection the p99 time to first token was \d+ ms", seen)
    assert re.search(r"(\d+) of \1 streams in flight on the victim were cut; failover took \d\.\d\d s\.", seen)
    assert outcome.startswith("Verdict: fail, by `latency (fault)` (9 of 1200 requests broke the bound);")
    assert "`VllmReplicaDown` fired after 7.00 s, notified after 7.60 s" in outcome


def test_sections_come_in_their_order(full: str) -> None:
    titles = re.findall(r"^## (.+)$", full, re.MULTILINE)
    assert titles == [
        "Verdict", "Impact", "Timeline", "Detection", "Response", "Where the downtime went", "What the replicas saw",
        "What went well", "What went badly", "Where we were lucky", "Contributing factors and surprises",
        "Action items", "Deviations from the plan", "Was the measurement valid?", "Limits of this run",
        "What was drilled", "How to repeat",
    ]  # fmt: skip


def test_impact_counts_agree_with_the_records(folder: Path, full: str) -> None:
    text = section(full, "Impact")
    records = [json.loads(line) for line in (folder / "requests.ndjson").read_text().splitlines()]
    hit = report_runs.START + report_runs.HIT
    fault = [r for r in records if hit <= r["intended"] < report_runs.START + report_runs.RECOVERY]
    ttft = sorted(
        r["first_token"] - r["intended"] if r["outcome"] in ("ok", "degraded") else float("inf") for r in fault
    )
    p99 = ttft[-(-99 * len(ttft) // 100) - 1]
    assert f"| p99 time to first token | fault | {p99 * 1000:.0f} ms | {len(fault):,} |" in text
    assert text.count(" to ") >= 8  # every quantile has its interval
    assert f"| **all** | 860 | 10 | {len(fault):,} | {len(records):,} |" in text


def test_every_line_of_the_timeline_has_time_offset_and_source(folder: Path, full: str) -> None:
    rows = [line for line in section(full, "Timeline").splitlines() if line.startswith("| ")][2:]
    events = len((folder / "journal.jsonl").read_text().splitlines())
    assert len(rows) == events + 4  # the first broken promise, the first and the last broken attempt, back in band
    for row in rows:
        assert re.match(r"\| \d\d:\d\d:\d\d\.\d{3} \| [+-]\d+\.\d\d s \| .+ \| (journal \d+|requests|ledger)", row), row
    offsets = [float(row.split(" | ")[1].split()[0]) for row in rows]
    assert offsets == sorted(offsets)


def test_downtime_is_split_and_the_reset_is_proven(full: str) -> None:
    text = section(full, "Where the downtime went")
    names = ["detect", "reroute", "reschedule", "ready", "first good completion", "p99 back in band",
             "stop", "reset begin", "reset end", "start", "first token"]  # fmt: skip
    places = [text.index(f"\n| {name} |") for name in names]
    assert places == sorted(places)
    assert "| reset end | it returned | +4.30 s | 3.20 s | journal " in text
    assert "Uptime of the GPU: 8000 s before, 600 ms after the reset; same boot id (journal " in text


def test_lessons_follow_from_the_verdict(full: str) -> None:
    text = full
    assert "`failover`: 1.80 s (bound 5.00 s)" in section(text, "What went well")
    assert "`latency (fault)`: 1.31 s (bound 1.00 s)" in section(text, "What went badly")
    lucky = section(text, "Where we were lucky")
    assert "`alert (VllmReplicaDown)` passed with 5.0 % to spare" in lucky
    assert "came from the degradation path" in lucky
    assert "nobody knows whether what could not be judged would have held: `streams`" in lucky
    actions = section(text, "Action items")
    assert "`latency (fault)` passes in `drill run gpu-reset`" in actions
    assert "Make `streams` judgeable" in actions
    assert "failover" not in actions


def test_ids_of_action_items_stay_the_same_from_run_to_run(full: str, small: Path) -> None:
    found = [re.findall(r"`(\w+-[0-9a-f]{6})`", section(text, "Action items")) for text in (full, postmortem(small))]
    assert found[0] == found[1]
    assert len(found[0]) == 2


def test_the_control_claims_no_effect(tmp_path: Path) -> None:
    text = postmortem(report_runs.build(tmp_path / "noop", rate=2.0, fault="noop"))
    assert "the control `noop`" in text
    assert "touched nothing" in text
    assert "no effect is claimed" in text
    assert "streams in flight on the victim were cut" not in text


def test_a_judged_run_renders(small: Path) -> None:
    judged = verdict.write(small)
    text = postmortem(small)
    assert f"verdict: **{judged.verdict}**" in text
    for row in judged.checks:
        assert f"| `{row.check}" in text


# ---- runs that went wrong ------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [0.04, 0.2, 0.4, 0.6, 0.8, 0.99])
def test_a_journal_cut_anywhere_renders(small: Path, share: float) -> None:
    path = small / "journal.jsonl"
    content = path.read_bytes()
    path.write_bytes(content[: max(int(len(content) * share), content.index(b"\n") + 20)])
    (small / "verdict.json").unlink()
    text = postmortem(small)
    assert "**run did not finish**" in text
    assert "`journal.jsonl` ends in a torn line" in text
    assert "verdict: **none yet**" in text


def test_a_run_that_was_stopped_says_why(small: Path) -> None:
    path = small / "journal.jsonl"
    path.write_text(
        path.read_text().replace('"status": "completed", "reason": ""', '"status": "stopped", "reason": "SIGINT"')
    )
    assert "**run did not finish**: stopped, SIGINT" in postmortem(small)


def test_no_data_is_never_shown_as_zero(small: Path) -> None:
    for name in ("requests.ndjson", "ledger.ndjson", "samples.ndjson", "verdict.json"):
        (small / name).unlink()
    text = postmortem(small)
    assert "streams cut on the victim: no data; failover: no data" not in text  # nobody began a request at all
    assert "No request began after an injection" in text
    impact = section(text, "Impact")
    assert "| p99 time to first token | fault | no data | 0 | no data |" in impact
    assert "Streams: streams cut on the victim: no data" in impact
    assert "Worst 10 s: no data" in impact
    assert "Degraded answers: no data" in impact
    for place in ("client: sent ÷ arrivals", "engines: sent to primaries ÷ arrivals"):
        assert f"| {place} | no data | no data | no data |" in impact
    assert "no data: there is no verdict yet" in section(text, "Verdict")
    assert "| detect | the router counted fewer healthy replicas | no data |" in text
    for name in ("requests.ndjson", "ledger.ndjson", "samples.ndjson", "verdict.json"):
        assert f"`{name}` is not there" in section(text, "Limits of this run")


def test_no_alert_is_not_the_same_as_nobody_looking(tmp_path: Path) -> None:
    folder = report_runs.build(tmp_path / "quiet", rate=2.0, outage=False)
    text = postmortem(folder)
    assert "no data: nobody looked at the alerts" in section(text, "Detection")
    assert "no data: nothing was injected" in section(text, "Where the downtime went")
    assert "Nothing was injected." in text
    look = {"mono": report_runs.START, "probe": "alerts", "subject": "prometheus", "ok": True, "values": {}}
    report_runs.lines(folder / "samples.ndjson", [look] * 5)
    assert "no alert came up in 5 looks" in section(postmortem(folder), "Detection")


def test_an_alert_had_fired_when_its_notification_came(small: Path) -> None:
    path = small / "journal.jsonl"
    events = [json.loads(line) for line in path.read_text().splitlines()]
    for event in events:
        if event["event"] == "notified" and event["data"]["status"] == "firing":
            event["data"]["at_mono"] = report_runs.START + report_runs.HIT + 6.5
            line = event["n"]
    report_runs.lines(path, events)
    text = postmortem(small)
    assert "fired after 6.50 s, notified after 6.50 s" in text
    detection = section(text, "Detection")
    assert f"| +6.50 s (journal {line}) | +6.50 s (journal {line}) |" in detection
    assert "was first seen firing at +7.00 s" in detection


def test_what_is_not_put_back_becomes_an_action(small: Path) -> None:
    path = small / "verdict.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"restored": "dirty", "left": "degraded"}))
    text = postmortem(small)
    assert "**left: degraded** · **restored: dirty**" in text
    assert "`drill recover 0a1b2c3d`" in section(text, "Action items")
    assert "(playbook `gpu-reset`)" in section(text, "Action items")


@pytest.mark.parametrize("content", [None, "", "not JSON\n"])
def test_a_folder_that_is_no_run_is_refused_in_one_line(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "journal.jsonl").write_text(content)
    with pytest.raises(DrillError) as caught:
        run.write(tmp_path)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "postmortem.md").exists()


def test_a_broken_verdict_is_refused_in_one_line(small: Path) -> None:
    (small / "verdict.json").write_text("{")
    with pytest.raises(DrillError, match="drill judge"):
        run.write(small)


# ---- people's notes ------------------------------------------------------------------------------------


def test_notes_are_included_and_untouched(small: Path) -> None:
    notes = "Owner of the alert: *Ada*, until Friday.\r\n\r\n- one\n- two\n"
    (small / "notes.md").write_bytes(notes.encode())
    text = postmortem(small)
    assert text.endswith("## Notes\n\nOwner of the alert: *Ada*, until Friday.\n\n- one\n- two\n")
    assert (small / "notes.md").read_bytes() == notes.encode()


def test_without_notes_none_are_made(small: Path) -> None:
    assert "## Notes" not in postmortem(small)
    assert not (small / "notes.md").exists()
