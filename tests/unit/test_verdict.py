"""The whole judge: merge order, validity gates, restored and left, exit codes, and the same bytes every time."""

import itertools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drills import verdict
from drills.checks import CHECKS, validity
from drills.evidence import Evidence, read
from drills.model import CheckResult, Left, Restored, RunVerdict, Verdict
from tests.unit import runs
from tests.unit.runs import BASELINE, END, FAULT, HIT, RECOVERY, RUN, START, Run

VERDICTS = st.lists(st.sampled_from(list(Verdict)))
RANK = {Verdict.PASS: 0, Verdict.INCONCLUSIVE: 1, Verdict.FAIL: 2}


def judged(run: Run, folder: Path) -> RunVerdict:
    """Judge the run as it is: what the generator said is not adjusted."""
    return verdict.judge(run.write(folder))


# ---- merge --------------------------------------------------------------------------------------------


@given(VERDICTS)
def test_the_worst_verdict_wins(rows: list[Verdict]) -> None:
    counted = [row for row in rows if row is not Verdict.NOT_JUDGED]
    expected = max(counted, key=RANK.__getitem__) if counted else Verdict.INCONCLUSIVE
    assert verdict.merge(rows) is expected


@given(VERDICTS, st.randoms(use_true_random=False))
def test_order_and_repetition_do_not_matter(rows: list[Verdict], random: Any) -> None:
    shuffled = rows + rows
    random.shuffle(shuffled)
    assert verdict.merge(shuffled) is verdict.merge(rows)


@given(VERDICTS, st.sampled_from([Verdict.PASS, Verdict.FAIL, Verdict.INCONCLUSIVE]))
def test_one_more_row_never_makes_it_better_unless_nothing_was_judged(rows: list[Verdict], row: Verdict) -> None:
    if any(r is not Verdict.NOT_JUDGED for r in rows):
        assert RANK[verdict.merge([*rows, row])] >= RANK[verdict.merge(rows)]


@given(VERDICTS)
def test_rows_that_are_not_judged_stay_outside(rows: list[Verdict]) -> None:
    assert verdict.merge([*rows, Verdict.NOT_JUDGED]) is verdict.merge(rows)


# ---- a whole run --------------------------------------------------------------------------------------


def test_a_good_run_passes(tmp_path: Path) -> None:
    found = judged(runs.healthy(), tmp_path)
    assert (found.verdict, found.exit_code, found.reason) == (Verdict.PASS, 0, "")
    assert (found.run, found.restored, found.left) == (runs.RUN, Restored.CLEAN, Left.HEALTHY)
    assert [row.check for row in found.checks] == [item["check"] for item in runs.ALL_CHECKS]
    assert {row.verdict for row in found.checks} == {Verdict.PASS}
    assert found.checks[0].params == {"within": 5.0}


def test_a_failing_check_fails_the_run_and_is_named(tmp_path: Path) -> None:
    run = runs.healthy()
    run.drop("alert")
    found = judged(run, tmp_path)
    assert (found.verdict, found.exit_code) == (Verdict.FAIL, 1)
    assert found.reason == "alert: did not fire within 20 s"


def test_the_same_files_give_the_same_bytes(tmp_path: Path) -> None:
    folder = runs.healthy().write(tmp_path)
    verdict.write(folder)
    first = (folder / "verdict.json").read_bytes()
    verdict.write(folder)
    assert (folder / "verdict.json").read_bytes() == first
    assert first.endswith(b"}\n")
    data = json.loads(first)
    assert list(data) == sorted(data)
    assert set(data) == {"run", "verdict", "restored", "left", "exit_code", "reason", "checks"}
    assert set(data["checks"][0]) == {
        "check", "params", "verdict", "value", "bound", "unit", "n", "interval", "reason", "events", "detail",
    }  # fmt: skip
    assert not list(folder.glob("*.tmp"))


def test_a_changed_record_changes_the_verdict(tmp_path: Path) -> None:
    folder = runs.healthy().write(tmp_path)
    before = verdict.encode(verdict.write(folder))
    (folder / "verdict.json").unlink()
    path = folder / "requests.ndjson"
    changed = path.read_text().splitlines()
    changed[2000] = changed[2000].replace('"outcome": "ok"', '"outcome": "error"')
    path.write_text("\n".join(changed) + "\n")
    after = verdict.write(folder)
    assert (folder / "verdict.json").read_bytes() == verdict.encode(after) != before
    assert after.verdict is Verdict.INCONCLUSIVE
    assert "the generator counted" in after.reason


def test_every_row_answers_in_strict_json(tmp_path: Path) -> None:
    run = runs.healthy()
    run.fail(run.between(HIT, END))
    run.recount()
    found = judged(run, tmp_path)
    assert b"Infinity" not in verdict.encode(found)
    assert found.verdict is Verdict.FAIL


@pytest.mark.parametrize("keep", [0.4, 0.6, 0.8, 0.99])
def test_a_journal_cut_short_is_inconclusive(tmp_path: Path, keep: float) -> None:
    folder = runs.healthy().write(tmp_path)
    path = folder / "journal.jsonl"
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * keep)])
    found = verdict.judge(folder)
    assert found.verdict is Verdict.INCONCLUSIVE
    assert "the journal ends before the run did" in found.reason
    assert found.exit_code in (2, 5)
    assert all(row.verdict is not Verdict.FAIL or row.check != "accounted" for row in found.checks)


def test_no_data_never_passes(tmp_path: Path) -> None:
    folder = runs.healthy().write(tmp_path)
    for name in ("requests.ndjson", "ledger.ndjson", "samples.ndjson"):
        (folder / name).unlink()
    found = verdict.judge(folder)
    assert found.verdict is Verdict.INCONCLUSIVE
    passed = {row.check for row in found.checks if row.verdict is Verdict.PASS}
    assert passed == {"replica_restart", "untouched"}  # these rest on the journal alone


# ---- rows ---------------------------------------------------------------------------------------------


def with_checks(*checks: dict[str, Any]) -> Run:
    run = runs.healthy()
    run.plan["experiment"]["checks"] = list(checks)
    return run


def row_of(folder: Path, check: dict[str, Any]) -> CheckResult:
    return judged(with_checks(check), folder).checks[0]


def test_a_check_may_be_named_as_people_write_it(tmp_path: Path) -> None:
    assert row_of(tmp_path, {"failover": {"within": 5.0}}).verdict is Verdict.PASS


def test_a_crash_in_a_check_is_inconclusive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(ev: Evidence, params: object) -> CheckResult:
        raise ZeroDivisionError("oops")

    monkeypatch.setattr(CHECKS["failover"], "judge", crash)
    row = row_of(tmp_path, {"check": "failover", "params": {"within": 5.0}})
    assert (row.verdict, row.reason) == (Verdict.INCONCLUSIVE, "cannot be told from these files")
    assert row.detail == {"broke": "ZeroDivisionError: oops"}


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_value_that_is_no_number_never_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: float) -> None:
    def nonsense(ev: Evidence, params: object) -> CheckResult:
        return CheckResult("failover", Verdict.PASS, value=value)

    monkeypatch.setattr(CHECKS["failover"], "judge", nonsense)
    row = row_of(tmp_path, {"check": "failover", "params": {"within": 5.0}})
    assert (row.verdict, row.value) == (Verdict.INCONCLUSIVE, None)


@pytest.mark.parametrize(
    "check", [{"check": "fail-over", "params": {}}, {"check": "failover", "params": {"withn": 5.0}}, {"failover": None}]
)
def test_a_check_that_cannot_be_read_is_inconclusive(tmp_path: Path, check: dict[str, Any]) -> None:
    assert row_of(tmp_path, check).verdict is Verdict.INCONCLUSIVE


def test_a_window_longer_than_the_run_is_not_judged(tmp_path: Path) -> None:
    run = with_checks({"check": "recovery", "params": {"within": 95.0}}, {"check": "accounted", "params": {}})
    found = judged(run, tmp_path)
    assert (found.checks[0].verdict, found.checks[0].reason) == (
        Verdict.NOT_JUDGED, "needs 105 s, the plan watches 100 s",
    )  # fmt: skip
    assert found.verdict is Verdict.PASS


def test_nothing_to_judge_is_inconclusive(tmp_path: Path) -> None:
    assert judged(with_checks(), tmp_path).verdict is Verdict.INCONCLUSIVE


# ---- validity -----------------------------------------------------------------------------------------


def set_all(records: Sequence[dict[str, Any]], **change: Any) -> None:
    for record in records:
        record |= change


def _late(run: Run) -> None:
    set_all(run.requests[:100], lag=1.5)


def _laggy(run: Run) -> None:
    set_all(run.between(BASELINE, END)[:60], lag=0.06)


def _busy(run: Run) -> None:
    for sample in run.samples:
        if sample["probe"] == "load" and sample["mono"] > HIT + 10:
            sample["values"]["cpu"] = 0.85


def _unmeasured_cpu(run: Run) -> None:
    run.samples = [s for s in run.samples if s["probe"] != "load"]
    run.of("load.stopped")[0]["cpu_max"] = None


def _bad_baseline(run: Run) -> None:
    run.fail(run.between(BASELINE, FAULT - 10)[::20])


def _slow_baseline(run: Run) -> None:
    for record in run.between(BASELINE, FAULT - 10)[::20]:
        record["first_token"] = record["intended"] + 1.1


def _no_baseline(run: Run) -> None:
    run.requests = [r for r in run.requests if not BASELINE <= r["intended"] < FAULT]


def _no_fault(run: Run) -> None:
    run.drop("receipt")
    run.drop("inject.hit")


def _lost(run: Run) -> None:
    run.of("load.stopped")[0]["drawn"] += 1


BREAKS: dict[str, tuple[Callable[[Run], object], str]] = {
    "not completed": (lambda run: run.of("end")[0].update(status="broken", reason="x"), "did not complete: broken: x"),
    "a step failed": (lambda run: run.tell(END + 2, "broken", step="x", error="gone"), "x failed: gone"),
    "changed": (lambda run: run.tell(HIT + 9, "changed_by_others", what="rollout"), "changed by others"),
    "ledger lines": (lambda run: run.of("collected")[0].update(lines=7), "7 were collected"),
    "load died": (lambda run: run.of("load.stopped")[0].update(died=True, reason="KILL"), "process died: KILL"),
    "load silent": (lambda run: run.drop("load.stopped"), "never reported its end"),
    "not on": (lambda run: run.of("proof.on")[0].update(ok=False), "not proven on: it was seen not to be"),
    "on unseen": (lambda run: run.of("proof.on")[0].update(ok=None), "not proven on: nothing could be seen"),
    "on unlooked": (lambda run: run.drop("proof.on"), "not proven on: nobody looked"),
    "not off": (lambda run: run.of("proof.off")[0].update(ok=False), "not proven off"),
    "no fault": (_no_fault, "no fault was put on"),
    "no hit": (lambda run: run.drop("inject.hit"), "nothing was injected"),
    "lost": (_lost, "3401 arrivals were drawn, 3400 have a record"),
    "late": (_late, "handled 97.1% of the arrivals on time"),
    "lag": (_laggy, "schedule lag p99 is 60 ms, at most 50 ms"),
    "busy": (_busy, "used 85% of a core"),
    "cpu": (_unmeasured_cpu, "CPU was not measured"),
    "baseline fails": (_bad_baseline, "baseline arrivals were not answered"),
    "baseline slow": (_slow_baseline, "baseline arrivals were over the TTFT bound"),
    "no baseline": (_no_baseline, "there is no baseline"),
}  # fmt: skip


@pytest.mark.parametrize("name", BREAKS)
def test_each_broken_gate_makes_the_run_inconclusive(tmp_path: Path, name: str) -> None:
    spoil, reason = BREAKS[name]
    run = runs.healthy()
    spoil(run)
    if name.endswith(("baseline fails", "baseline slow", "no baseline")):
        run.recount()
    found = judged(run, tmp_path)
    assert (found.verdict, found.exit_code) == (Verdict.INCONCLUSIVE, 2)
    assert reason in found.reason


def test_a_broken_gate_outranks_a_failing_check(tmp_path: Path) -> None:
    run = runs.healthy()
    run.drop("alert")
    run.of("proof.on")[0]["ok"] = None
    found = judged(run, tmp_path)
    assert found.verdict is Verdict.INCONCLUSIVE
    assert Verdict.FAIL in {row.verdict for row in found.checks}


def test_a_hole_in_the_journal_is_seen(tmp_path: Path) -> None:
    folder = runs.healthy().write(tmp_path)
    path = folder / "journal.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:3] + lines[4:]))
    assert "the journal has a hole" in verdict.judge(folder).reason


def test_a_damaged_file_is_said(tmp_path: Path) -> None:
    folder = runs.healthy().write(tmp_path)
    path = folder / "ledger.ndjson"
    path.write_text("garbage\n" + path.read_text())
    found = verdict.judge(folder)
    assert (found.verdict, "ledger.ndjson is damaged" in found.reason) == (Verdict.INCONCLUSIVE, True)


def test_gates_say_their_figures(tmp_path: Path) -> None:
    gates = {gate.name: gate for gate in validity.gates(read(runs.healthy().write(tmp_path)))}
    assert all(not gate.broken for gate in gates.values())
    assert (gates["schedule lag"].value, gates["schedule lag"].bound) == (0.001, 0.05)
    assert (gates["generator CPU"].value, gates["generator CPU"].bound) == (0.2, 0.8)
    assert gates["handled on time"].value == 1.0


def test_shed_arrivals_were_handled(tmp_path: Path) -> None:
    run = runs.healthy()
    run.fail(shed := run.between(RECOVERY, END)[:300], "shed", None)
    set_all(shed, sent=None, attempts=[])
    gone = {f"{RUN}-{r['arrival']}-0" for r in shed}
    run.ledger = [line for line in run.ledger if line["id"] not in gone]
    run.recount()
    assert validity.reasons(read(run.write(tmp_path))) == []


# ---- restored, left, exit codes -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ends", "restored"),
    [
        ([], "unknown"),
        (["dirty"], "dirty"),
        (["unknown"], "unknown"),
        (["nonsense"], "unknown"),
        (["dirty", "clean"], "clean"),
    ],
)
def test_restored_by_the_last_word_on_each_receipt(tmp_path: Path, ends: list[str], restored: str) -> None:
    run = runs.healthy()
    run.drop("revert.end")
    for n, end in enumerate(ends):
        run.tell(END + 5 + n, "revert.end", receipt="r1", restored=end, manual=[], by="recover")
    found = judged(run, tmp_path)
    assert found.restored == restored
    assert found.exit_code == (0 if restored == "clean" else 5)


def test_one_dirty_receipt_among_clean_ones(tmp_path: Path) -> None:
    run = runs.healthy()
    run.tell(HIT, "receipt", receipt={"id": "r2", "fault": "pod-kill", "victims": []})
    run.tell(HIT + 1, "revert.end", receipt="r2", restored="dirty")
    assert judged(run, tmp_path).restored is Restored.DIRTY


@pytest.mark.parametrize(
    ("status", "restored", "code"),
    [
        ("completed", "clean", 0),
        ("stopped", "clean", 4),
        ("stopped", "dirty", 5),
        ("refused", "clean", 3),
        ("broken", "clean", 2),
        ("changed", "clean", 2),
        ("crashed", "unknown", 5),
    ],
)
def test_exit_codes(tmp_path: Path, status: str, restored: str, code: int) -> None:
    run = runs.healthy()
    run.of("end")[0]["status"] = status
    run.of("revert.end")[0]["restored"] = restored
    assert judged(run, tmp_path).exit_code == code


@pytest.mark.parametrize(
    ("word", "restored", "touched", "status"),
    list(itertools.product(Verdict, Restored, [True, False], ["completed", "stopped", "refused", "crashed"])),
)
def test_not_restored_outranks_all(word: Verdict, restored: Restored, touched: bool, status: str) -> None:
    code = verdict.exit_code(word, restored, touched=touched, status=status)
    assert (code == 5) == (touched and restored is not Restored.CLEAN)
    assert code != 0 or (word is Verdict.PASS and status in ("completed", "crashed"))


def test_a_refused_run(tmp_path: Path) -> None:
    run = runs.quiet()
    run.events = [e for e in run.events if e["mono"] < START]
    run.tell(START, "end", status="refused", reason="gate")
    run.requests = []
    found = judged(run, tmp_path)
    assert (found.verdict, found.restored, found.exit_code) == (Verdict.INCONCLUSIVE, Restored.CLEAN, 3)
    assert {row.verdict for row in found.checks} == {Verdict.NOT_JUDGED}
    assert found.left is Left.HEALTHY
    assert found.reason == "the run did not complete: refused: gate"


def test_left(tmp_path: Path) -> None:
    run = runs.healthy()
    run.of("left")[0]["left"] = "degraded"
    assert judged(run, tmp_path).left is Left.DEGRADED
    run.drop("left")
    assert judged(run, tmp_path).left is Left.UNKNOWN
