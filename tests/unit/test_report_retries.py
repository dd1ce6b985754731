"""What retries cost, and what users got instead, as the postmortem tells it."""

import re
from pathlib import Path

import pytest

from drills import verdict
from drills.report import run as report
from tests.unit import runs
from tests.unit.retries import again, cut_link, degrade, held, in_fault, late, quiet_service
from tests.unit.runs import HIT

DEGRADED = [{"check": "degraded", "params": {}}, {"check": "accounted", "params": {}}]


def impact(run: runs.Run, folder: Path) -> str:
    """Return the section Impact of the postmortem."""
    run.recount()
    verdict.write(run.write(folder))
    text = report.render(folder)[report.POSTMORTEM].decode()
    return text.split("## Impact")[1].split("## Timeline")[0]


def rows(text: str) -> dict[str, list[str]]:
    """Return the cells of the table of attempts by its first word."""
    table = re.findall(r"^\| (client|router|engines)[^|]*\|(.+)\|$", text, re.MULTILINE)
    return {name: [cell.strip() for cell in cells.split("|")] for name, cells in table}


def test_the_three_ratios(tmp_path: Path) -> None:
    run = held(quiet_service())
    again(run, in_fault(run, HIT + 20, HIT + 30), 2, by_client=True)
    again(run, in_fault(run, HIT + 20, HIT + 30), 3)
    text = impact(run, tmp_path)
    found = rows(text)
    assert found["client"][:2] == ["1.000", "1.334"]
    assert found["client"][2].startswith("3.000 from +20.")
    assert found["router"][2].startswith("2.000 from +20.")
    assert found["engines"][2].startswith("6.000 from +20.")
    assert found["engines"][3] == "ledger"
    assert "of 1,199 arrivals in the fault: 400 by the client, 1,000 at the primaries." in text


def test_what_a_cut_link_swallowed_is_told(tmp_path: Path) -> None:
    text = impact(cut_link(quiet_service(), swallowed=12), tmp_path)
    assert "0 by the client, 12 at the primaries, 12 of them swallowed by the network" in text
    assert "the rule's counter of new connections" in text.replace("\\", "").replace("&#39;", "'")


@pytest.mark.parametrize("ledger", [True, False])
def test_what_nobody_counted_is_no_data(tmp_path: Path, ledger: bool) -> None:
    run = held(quiet_service())
    run.has_ledger = ledger
    found = rows(impact(run, tmp_path))
    assert (found["engines"][0] == "no data") is not ledger
    assert "nobody counted them" in found["router"][3] or ledger


def test_without_an_injection_there_is_no_table(tmp_path: Path) -> None:
    text = impact(runs.quiet(), tmp_path)
    assert rows(text) == {}
    assert "Cost of retries" not in text


def test_what_users_saw_instead_of_a_degraded_answer(tmp_path: Path) -> None:
    run = held(quiet_service())
    run.plan["experiment"]["checks"] = DEGRADED
    late(in_fault(run)[:600])
    degrade(in_fault(run)[600:700])
    degrade(in_fault(run)[700:710], cached=True)
    run.fail(in_fault(run)[710:720])
    run.fail(in_fault(run)[720:723], "hung", None)
    text = impact(run, tmp_path)
    [line] = [line for line in text.splitlines() if "Degradation was expected" in line]
    assert "of 1,199 begun after the injection" in line
    assert "600 full answers too late (first token p50 5.10 s, at most 5.10 s)" in line
    assert "476 full answers in time" in line
    assert "100 answers of a smaller model (first token p50 450 ms" in line
    assert "10 cached answers" in line
    assert "10 times nothing (error: refused)" in line
    assert "3 times nothing (hung)" in line


def test_where_degradation_was_not_expected_nothing_is_said_of_it(tmp_path: Path) -> None:
    assert "Degradation was expected" not in impact(runs.healthy(), tmp_path)
