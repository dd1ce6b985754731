"""The review of a quarter: the SLA run by run, how sure one can be, items by age, and the pitfalls."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from drills.report import month, pitfalls, quarter
from tests.unit import stored_month
from tests.unit.stored_month import failed, passed, store
from tests.unit.test_report_month import rows, section

Q4 = "2026Q4"


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stored_month.write(tmp_path_factory.mktemp("reports"))


@pytest.fixture
def reports(stored: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(stored, tmp_path / "reports"))


def review(reports: Path, name: str = Q4) -> str:
    return quarter.told(reports, name)[0].decode()


def test_a_quarter_is_three_months() -> None:
    assert quarter.months("2026Q1") == ["2026-01", "2026-02", "2026-03"]
    assert quarter.months(Q4) == ["2026-10", "2026-11", "2026-12"]


def test_three_sentences_and_its_months(reports: Path) -> None:
    month.write(reports, "2026-11")
    text = review(reports)
    first, broke, back = text.splitlines()[2:5]
    assert first.startswith("6 runs in the fourth quarter of 2026: 3 were judged, and 2 of those passed.")
    assert "Drills of the suite that did not run, month by month: 1." in first
    assert first.endswith(
        "Of October 2026 and December 2026 there is nothing: not a run, and no word that any was asked for."
    )
    assert broke.startswith("Failed: `packet-loss` at `lab`")
    assert back.startswith("**Not known to be put back**")
    assert "| [November 2026](../2026-11/review.md) | 6 | 2 | 1 | 1 | 2 | 1 | 2 |" in text
    assert "| October 2026 | — |" in text


def test_the_sla_has_a_row_for_each_run_with_interval_n_and_bound(reports: Path) -> None:
    table = [row for row in rows(review(reports), "The SLA over the drills") if row[0] == "2026-11"]
    assert [(row[1], row[3], row[10]) for row in table] == [
        ("`upstream-delay`", "pass", "clean"), ("`packet-loss`", "**fail**", "clean"),
        ("`pod-kill`", "**inconclusive**", "clean"), ("`gpu-reset`", "**stopped**", "clean"),
        ("`packet-loss`", "pass", "**dirty**"),
    ]  # fmt: skip
    assert table[1][5] == "**80.2 % (75.7 % to 84.2 %); allowed 99.0 %; n 359**"
    assert table[0][8] == "7.00 s; allowed 20.0 s"
    assert set(table[3][4:10]) == {"—"}


def test_so_few_drills_show_little_and_it_says_how_little(reports: Path) -> None:
    store(reports, "20261129T020000Z", "upstream-delay", passed(), ident="00000007")
    store(reports, "20261129T030000Z", "upstream-delay", passed(), ident="00000008")
    text = section(review(reports), "The SLA over the drills")
    assert "| `lab` | `upstream-delay` | 3 | 3 | 0 | 63.2 % |" in text
    assert "| `lab` | `packet-loss` | 2 | 2 | 1 | 97.5 % |" in text
    assert "| `lab` | `pod-kill` | 2 | 0 | 0 | no data |" in text


def test_what_the_drills_cost_is_counted_against_a_quarter_at_their_load(reports: Path) -> None:
    told = re.compile(r"- `lab`: (\d+) of [\d,]+ requests of the drills were not answered: (\S+) % of the errors")
    found = told.search(section(review(reports), "The SLA over the drills"))
    assert found is not None
    assert float(found[2]) == pytest.approx(100 * int(found[1]) / (0.01 * 20 * 90 * 86400), abs=0.005)


def test_without_a_rate_the_budget_is_not_known(reports: Path) -> None:
    users = {"arrivals": {"kind": "users", "users": 9}}
    store(reports, "20261129T020000Z", "pod-kill", passed(), ident="00000007", experiment__load=users)
    assert "What part of the error budget that is, is not known" in section(review(reports), "The SLA over the drills")


def test_trends_go_back_beyond_the_quarter_and_only_what_ran_in_it_is_shown(reports: Path) -> None:
    store(reports, "20260901T020000Z", "packet-loss", passed(), ident="00000007")
    store(reports, "20260902T020000Z", "noop", passed(), ident="00000008")
    made = quarter.render(reports, Q4)
    text = made["review.md"].decode()
    assert "packet-loss at lab: 3 runs, 2026-09-01 to 2026-11-15." in text
    assert "trend-lab--noop.svg" not in made
    assert "it was 100 % (99.0 % to 100 %) in [00000007]" in section(text, "From run to run").split("Better:")[0]


def test_items_burn_down_by_age(reports: Path) -> None:
    item = {"id": "failover-1", "what": "Make the router stop", "priority": "P2", "target": "lab", "proof": None,
            "opened": {"date": "2026-11-01", "run": "00000002"}, "seen": ["00000002", "00000003", "00000005"],
            "status": "open", "closed": None}  # fmt: skip
    (reports / "actions.yaml").write_text(json.dumps({"actions": [item]}))
    made = quarter.render(reports, Q4)
    text = section(made["review.md"].decode(), "Action items")
    assert "actions.svg" in made
    assert "2026-10: 0 open, 0 of them escalated, 0 ended; 2026-11: 1 open, 1 of them escalated" in text
    assert "### Escalated" in text
    assert "Opened: 1. Carried over: 0. Escalated: 1." in text


def test_pitfalls_are_met_not_met_or_asked(reports: Path) -> None:
    text = section(review(reports), "Known pitfalls")
    met, asked = text.split("### To be answered")
    met, fine = met.split("### Not met")
    assert "none that a check of these drills can show" in met
    assert "**GPU temperature unwatched**: `metrics: GPU temperature` of `packet-loss`, [00000005]" in fine
    assert asked.count("- [ ] **") == 10
    assert "**Large batches where users wait**" in fine


def test_answers_are_carried_from_quarter_to_quarter(reports: Path) -> None:
    list(quarter.write(reports, "2026Q3"))
    path = reports / "pitfalls.yaml"
    mine = path.read_text().replace(
        "cuda-not-pinned: {answer: unknown, by: , date: , note: }",
        "cuda-not-pinned: {answer: yes, by: ada, date: 2026-09-01, note: by digest} # asked in the meeting",
    )
    path.write_text(mine)
    said = list(quarter.write(reports, Q4))
    assert said == [str(reports / Q4 / "review.md")]
    assert path.read_text() == mine
    text = (reports / Q4 / "review.md").read_text()
    assert "- [x] **CUDA stack not pinned** (`cuda-not-pinned`)." in text
    assert "Answered **yes** by ada, 2026-09-01: by digest." in text


def test_a_place_that_takes_no_file_is_said_in_a_line(reports: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: Path) -> None:
        raise OSError(28, "No space left on device", "pitfalls.yaml")

    monkeypatch.setattr(pitfalls, "begin", full)
    said = list(quarter.write(reports, Q4))
    assert said[0] == "questions to answer: not begun: pitfalls.yaml: No space left on device"
    assert len(said) == 2


def test_the_same_files_give_the_same_bytes(reports: Path) -> None:
    first = quarter.render(reports, Q4)
    assert quarter.render(reports, Q4) == first
    list(quarter.write(reports, Q4))
    assert quarter.render(reports, Q4) == first


def test_a_quarter_without_runs_says_so(tmp_path: Path) -> None:
    text = review(tmp_path)
    assert text.splitlines()[2].startswith("No drill ran in the fourth quarter of 2026.")


def test_a_failing_drill_of_last_year_is_not_in_this_quarter(reports: Path) -> None:
    store(reports, "20251101T020000Z", "packet-loss", failed(), ident="00000007")
    assert "00000007" not in review(reports)
