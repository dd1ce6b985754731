"""The review of a month: six runs that ended in every way, told so that a lead can act; inert, the same bytes again."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from drills import cli, errors, verdict
from drills.report import month, quarter
from tests.unit import stored_month
from tests.unit.stored_month import failed, inconclusive, passed, store
from tests.unit.test_report_escape import NASTY, html, tags, texts

NOVEMBER = "2026-11"


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The month of six runs; nobody changes it."""
    return stored_month.write(tmp_path_factory.mktemp("reports"))


@pytest.fixture
def spoilt(stored: Path, tmp_path: Path) -> Path:
    """A copy of it to be spoilt."""
    return Path(shutil.copytree(stored, tmp_path / "reports"))


def review(reports: Path, name: str = NOVEMBER, target: str | None = None) -> str:
    return month.told(reports, name, target)[0].decode()


def section(text: str, title: str) -> str:
    return text.split(f"\n## {title}\n")[1].split("\n## ")[0]


def rows(text: str, title: str) -> list[list[str]]:
    """Return the cells of a section's table, without its header."""
    lines = [line for line in section(text, title).splitlines() if line.startswith("| ")]
    return [line.strip("| ").split(" | ") for line in lines[2:]]


def finding(text: str, word: str) -> list[str]:
    return [line for line in section(text, "Findings").splitlines() if line.startswith(f"- **{word}")]


# ---- the six runs ----------------------------------------------------------------------------------------


def test_three_sentences_say_what_ran_what_failed_and_what_is_not_put_back(stored: Path) -> None:
    ran, broke, back = review(stored).splitlines()[2:5]
    assert ran == (
        "6 runs at `lab` in November 2026: 2 pass, 1 cut short, 1 fail, 1 inconclusive and 1 stopped. "
        "1 drill of the suite did not run."
    )
    assert broke.startswith("Failed: `packet-loss` at `lab` (`failover`, ")
    assert "[00000005]" in back
    assert "[00000006]" in back
    assert "**The service was left degraded** by `packet-loss` ([00000005]" in back


def test_every_drill_of_the_suite_has_a_row_in_the_order_in_which_it_was_asked_for(stored: Path) -> None:
    table = rows(review(stored), "The suite")
    assert [(row[1], row[3], row[5]) for row in table] == [
        ("`upstream-delay`", "pass", "clean"),
        ("`packet-loss`", "**fail**", "clean"),
        ("`packet-loss`", "pass", "**dirty**"),
        ("`pod-kill`", "**inconclusive**", "clean"),
        ("`pod-kill`", "**cut short**", "**unknown**"),
        ("`gpu-reset`", "**stopped**", "clean"),
        ("`noop`", "**did not run**", "—"),
    ]
    for row in table[:-1]:
        [link] = re.findall(r"\]\(([^)]+)\)", row[7])
        assert (stored / NOVEMBER / link).resolve().is_file()


def test_what_did_not_come_to_its_end_did_not_run_or_was_not_judged_is_a_finding_with_its_reason(stored: Path) -> None:
    text = review(stored)
    assert "its journal stops without an end, as its driver was killed" in finding(text, "Cut short")[0]
    assert finding(text, "Stopped before its end")[0].endswith(": drill stop, by ada.")
    assert "`noop` at `lab`, asked for on 2026-11-01 02:00 UTC: not begun" in finding(text, "Did not run")[0]
    assert "the generator used 95% of a core" in finding(text, "Could not be judged")[0]
    assert [re.findall("recover ([0-9]+)", line) for line in finding(text, "Not known to be put back")] == [
        ["00000005"],
        ["00000006"],
    ]


def test_what_is_worst_comes_first(stored: Path) -> None:
    first = [line.split("**")[1] for line in section(review(stored), "Findings").splitlines() if line.startswith("- ")]
    assert first[:4] == ["Not known to be put back (dirty)", "The service was left degraded",
                         "Not known to be put back (unknown)", "Failed"]  # fmt: skip


def test_the_same_files_give_the_same_bytes(stored: Path) -> None:
    first = month.render(stored, NOVEMBER)
    with matplotlib.rc_context({"font.size": 30, "svg.hashsalt": None}):
        assert month.render(stored, NOVEMBER) == first
    assert {name for name in first if name.endswith(".svg")} == {
        f"trend-lab--{drill}.svg" for drill in ("upstream-delay", "packet-loss", "pod-kill")
    }
    assert all(b"dc:date" not in content for content in first.values())


def test_what_is_written_is_what_was_rendered_and_is_no_input_of_the_next_time(spoilt: Path) -> None:
    made = month.render(spoilt, NOVEMBER)
    for _ in range(2):
        path = month.write(spoilt, NOVEMBER)
        assert {name: (path.parent / name).read_bytes() for name in made} == made


def test_no_figure_is_averaged(stored: Path) -> None:
    text = review(stored)
    figures = rows(text, "Each run's own figures")
    assert [row[0] for row in figures] == ["`upstream-delay`", "`packet-loss`", "`pod-kill`", "`packet-loss`"]
    assert {row[6] for row in figures} == {"0 s", "60.0 s"}
    assert "mean" not in text
    assert "median" not in text


# ---- trends ----------------------------------------------------------------------------------------------


def test_better_is_said_of_intervals_that_do_not_overlap(stored: Path) -> None:
    text = section(review(stored), "What changed")
    assert "Worse:" not in text
    [line] = [line for line in text.splitlines() if line.startswith("- `")]
    assert line.startswith("- `availability (fault)` of `packet-loss` at `lab`, run [00000005]")
    assert "100 % (99.0 % to 100 %); it was 80.2 % (75.7 % to 84.2 %) in [00000002]" in line


def test_worse_is_a_finding_and_an_arrow(spoilt: Path) -> None:
    store(spoilt, "20261129T020000Z", "packet-loss", failed(), ident="00000007")
    text = review(spoilt)
    assert finding(text, "Got worse beyond chance") == ["- **Got worse beyond chance**: 1 figure, see below."]
    assert "▼ worse, [00000005]" in rows(text, "The suite")[3][6]
    assert "The last comparable run, [00000005]" in finding(text, "Failed")[1]


def test_another_load_is_not_compared_and_the_difference_is_told(spoilt: Path) -> None:
    run = failed()
    run.plan["experiment"]["load"]["arrivals"]["rate"] = 30.0
    store(spoilt, "20261129T020000Z", "packet-loss", run, ident="00000007")
    text = review(spoilt)
    assert not finding(text, "Got worse")
    assert rows(text, "The suite")[3][6] == "—"
    assert "is not comparable with [00000005]" in section(text, "What changed")
    assert "load.arrivals.rate: 20.0, 30.0" in section(text, "What changed")


def test_a_run_that_was_not_judged_is_compared_with_nothing(spoilt: Path) -> None:
    store(spoilt, "20261129T020000Z", "packet-loss", inconclusive(), ident="00000007")
    store(spoilt, "20261130T020000Z", "packet-loss", passed(), ident="00000008")
    table = rows(review(spoilt), "The suite")
    assert [row[6].split(", ")[0] for row in table[3:5]] == ["—", "= within chance"]
    assert "[00000005]" in table[4][6]


# ---- who counts ------------------------------------------------------------------------------------------


def test_planted_defects_are_listed_apart_and_count_for_nothing(spoilt: Path) -> None:
    before = review(spoilt)
    store(spoilt, "20261129T020000Z", "noop", failed(), ident="00000007", defect="a-thing")
    text = review(spoilt)
    assert "planted `a-thing`; **fail**" in section(text, "Planted defects")
    assert text.split("\n## Planted defects")[0].strip() == before.strip()


def test_the_suite_is_what_ran_in_the_months_before_where_nobody_wrote_it_down(spoilt: Path) -> None:
    text = review(spoilt, "2026-12")
    assert [row[1] for row in rows(text, "The suite")] == [
        "`gpu-reset`", "`packet-loss`", "`pod-kill`", "`upstream-delay`"
    ]  # fmt: skip
    assert "No drill ran in December 2026. 4 drills of the suite did not run." in text
    assert "`pod-kill` at `lab`: it last ran on 2026-11-22." in finding(text, "Did not run")[2]


def test_a_target_of_its_own_is_reviewed_apart(spoilt: Path) -> None:
    store(spoilt, "20261129T020000Z", "pod-kill", passed(), ident="00000007", target__name="staging")
    both, one = review(spoilt), review(spoilt, target="staging")
    assert "7 runs at `lab` and `staging`" in both
    assert one.splitlines()[2] == "1 run at `staging` in November 2026: 1 pass."
    assert "`lab`" not in one
    assert month.write(spoilt, NOVEMBER, "staging").name == "review-staging.md"


def test_a_run_that_is_refused_did_not_run(spoilt: Path) -> None:
    folder = store(spoilt, "20261129T020000Z", "gpu-reset", stored_month.stopped(), ident="00000007")
    journal = (folder / "journal.jsonl").read_text().replace('"stopped"', '"refused"')
    (folder / "journal.jsonl").write_text(journal)
    verdict.write(folder)
    text = review(spoilt)
    assert "Refused, so it did not run" in section(text, "Findings")
    assert rows(text, "The suite")[6][3] == "**refused**"


def test_luck_is_told_with_its_run(spoilt: Path) -> None:
    folder = store(spoilt, "20261129T020000Z", "pod-kill", passed(), ident="00000007")
    path = folder / "verdict.json"
    found = json.loads(path.read_text())
    for row in found["checks"]:
        row |= {"value": 19.0} if row["check"] == "alert" else {}
        row["detail"] |= {"in_flight_on_victim": 0} if row["check"] == "streams" else {}
        row["detail"] |= {"outcomes": {"degraded": 4}} if row["check"] == "availability" else {}
    path.write_text(json.dumps(found))
    lines = [line for line in section(review(spoilt), "Where we were lucky").splitlines() if "00000007" in line]
    assert [line.rsplit("): ", 1)[1] for line in lines] == [
        "`alert (VllmReplicaDown)` passed with 5.0 % to spare: 19.0 s (bound 20.0 s).",
        "the victim was idle at the injection: no stream was in flight on it.",
        "4 answers came from the degradation path: users got less than they asked for.",
    ]


# ---- damaged and hostile ---------------------------------------------------------------------------------

SPOILS: list[Callable[[Path], Any]] = [
    lambda run: (run / "verdict.json").write_text("[]"),
    lambda run: (run / "verdict.json").write_text('{"run": 1}'),
    lambda run: (run / "plan.json").write_text('{"experiment": [], "target": 3, "defect": {}}'),
    lambda run: (run / "plan.json").write_bytes(b"\xff\xfe{"),
    lambda run: (run / "journal.jsonl").write_text("no journal\n"),
    lambda run: (run / "journal.jsonl").write_text('{"n":1,"time":3,"mono":"x","event":"end","data":{"status":[]}}\n'),
    lambda run: (run / "journal.jsonl").unlink(),
    lambda run: (run / "plan.json").unlink(),
    lambda run: shutil.move(run / "verdict.json", run / "plan.json"),
]


@pytest.mark.parametrize("spoil", SPOILS)
def test_a_damaged_run_keeps_no_other_out(spoilt: Path, spoil: Callable[[Path], Any]) -> None:
    spoil(spoilt / "runs" / "20261101T021000Z-packet-loss-00000002")
    text = review(spoilt)
    for number in range(1, 7):
        assert f"0000000{number}" in text


def test_damaged_words_of_what_was_asked_for_are_told(spoilt: Path) -> None:
    (spoilt / NOVEMBER / "20261103T020000Z-lab.json").write_text("{")
    (spoilt / NOVEMBER / "20261104T020000Z-lab.json").write_text('{"drills": {"a": 1}, "began": 3, "target": []}')
    text = review(spoilt)
    assert "20261103T020000Z-lab.json: cannot be read" in section(text, "Files that could not be read")
    assert "1 drill of the suite did not run" in text


def hostile(reports: Path, text: str) -> None:
    """Put a text of others wherever one may stand."""
    runs = sorted((reports / "runs").iterdir())
    for folder in runs:
        for name in ("plan.json", "verdict.json"):
            path = folder / name
            if path.is_file():
                path.write_text(json.dumps(_poisoned(json.loads(path.read_text()), text)))
        lines = (folder / "journal.jsonl").read_text().splitlines()
        kept = [line if line.startswith('{"n": 99') else json.dumps(_told(json.loads(line), text)) for line in lines]
        (folder / "journal.jsonl").write_text("\n".join(kept) + ("" if '"n": 99' in kept[-1] else "\n"))
    path = reports / NOVEMBER / "20261101T020000Z-lab.json"
    asked = json.loads(path.read_text())
    asked["target"] = text
    asked["drills"] = [{"drill": text, "run": None, "why": text}, {"drill": "noop", "run": None, "why": text}]
    path.write_text(json.dumps(asked))
    entry = {"id": text, "what": text, "owner": text, "priority": text, "due": text, "seen": [text], "target": None,
             "opened": {"date": "2026-11-03", "run": text}, "status": "open", "closed": None,
             "proof": {"drill": text, "check": text, "params": {"metric": text, "name": text}}}  # fmt: skip
    closed = entry | {"id": "x", "closed": {"date": "2026-11-20", "by": text, "reason": text}, "status": "closed"}
    (reports / "actions.yaml").write_text(json.dumps({"actions": [entry, closed]}))
    answer = {"answer": "no", "by": text, "date": text, "note": text}
    answers = {"pitfalls": {"tokenizer-differs": answer, "alert": {"answer": text}}}
    (reports / "pitfalls.yaml").write_text(json.dumps(answers))


def _poisoned(data: Any, text: str) -> Any:
    """Return a plan or verdict with names and reasons of others; what must be a known word stays one."""
    if "experiment" in data:
        data["experiment"] |= {"name": text, "title": text}
        data["target"] |= {"name": text}
        return data
    for row in data["checks"]:
        row |= {"reason": text, "params": {"name": text, "metric": text, "cohort": text}}
        for inner in row["detail"].get("rows") or ():
            inner |= {"reason": text, "unit": text}
    return data | {"reason": text, "left": text}


def _told(event: Any, text: str) -> Any:
    if event["event"] == "end":
        event["data"]["reason"] = text
    if event["event"] == "header":
        event["data"] |= {"versions": {"vllm": text, text: "1"}, "plan": {}}
    return event


#: What reviews may hold: tables, lists, links to runs, figures, bold and code.
ALLOWED = re.compile(
    r"</?(?:h[1-3]|p|table|thead|tbody|tr|th|td|ul|li|code|strong|em|a|img)(?: (?:href|src|alt)=\"[^\"]*\")*(?: /)?>"
)


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(st.one_of(st.sampled_from(NASTY), texts))
def test_text_of_others_is_inert_in_both_reviews(
    stored: Path, tmp_path_factory: pytest.TempPathFactory, text: str
) -> None:
    reports = Path(shutil.copytree(stored, tmp_path_factory.mktemp("hostile") / "reports"))
    hostile(reports, text)
    for made in (month.render(reports, NOVEMBER), quarter.render(reports, "2026Q4")):
        shown = made["review.md"].decode()
        assert all(char.isprintable() or char == "\n" for char in shown)
        assert [tag for tag in tags(shown) if not ALLOWED.fullmatch(tag)] == []
        links = re.findall(r'(?:href|src)="([^"]*)"', html(shown))
        assert all(link.startswith(("../runs/2026", "../2026-", "trend-", "actions.svg")) for link in links), links
        drawn = set(re.findall(r'<img src="([^"]*)"', html(shown)))
        assert drawn == set(made) - {"review.md"}
    shutil.rmtree(reports.parent)


def test_a_folder_with_a_hostile_name_opens_no_link(spoilt: Path) -> None:
    source = spoilt / "runs" / "20261101T021000Z-packet-loss-00000002"
    name = "20261102T021000Z-a](javascript:x) [b-00000009"
    shutil.copytree(source, spoilt / "runs" / name)
    links = re.findall(r'href="([^"]*)"', html(review(spoilt)))
    assert any("javascript%3Ax" in link for link in links)
    assert not any(link.startswith("javascript") for link in links)


# ---- the command line ------------------------------------------------------------------------------------


def run(*argv: str) -> int:
    return int(cli.app(list(argv), standalone_mode=False))


def test_the_command_line_writes_reviews(spoilt: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("report", "--month", NOVEMBER, "--reports", str(spoilt)) == 0
    assert run("report", "--quarter", "2026Q4", "--reports", str(spoilt), "--target", "lab") == 0
    said = capsys.readouterr().out.splitlines()
    assert said == [
        str(spoilt / NOVEMBER / "review.md"),
        f"questions to answer: {spoilt / 'pitfalls.yaml'}",
        str(spoilt / "2026Q4" / "review-lab.md"),
    ]
    assert all(Path(line).is_file() for line in (said[0], said[2]))


@pytest.mark.parametrize(
    "argv",
    [
        ("--month", "2026-13"),
        ("--quarter", "2026Q5"),
        ("--month", "../.."),
        ("--month", "2026-11", "--quarter", "2026Q4"),
    ],
)
def test_what_is_no_month_and_no_quarter_is_refused(spoilt: Path, argv: tuple[str, ...]) -> None:
    with pytest.raises(errors.UsageError):
        run("report", *argv, "--reports", str(spoilt))


def test_a_folder_without_runs_is_refused_and_not_made(tmp_path: Path) -> None:
    with pytest.raises(errors.FileProblem, match="there is no run yet"):
        run("report", "--month", NOVEMBER, "--reports", str(tmp_path / "typo"))
    assert not (tmp_path / "typo").exists()
