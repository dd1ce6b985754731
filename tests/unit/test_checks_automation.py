"""automation: judged only where a GPU gets hot, and then by what became of its replica."""

from __future__ import annotations

from pathlib import Path

import pytest

from drills.model import CheckResult, Verdict
from tests.unit import probed, runs
from tests.unit.runs import END, FAULT, GPU, START, VICTIM, Run, judge

HOT_REPLICA, HOT_GPU = "replica-2", "GPU-99999999-1111-2222-3333-444455556666"  # not the one that the drill kills
HOT = FAULT + 20.3  # the look that saw it; the one before was 5 s earlier
OTHER_GPU = "GPU-00000000-1111-2222-3333-444455556666"


def declared(acts_by: str = "shed", hot_above: float = 90.0) -> Run:
    run = runs.healthy()
    run.plan["target"]["automation"] = {"hot_above": hot_above, "acts_by": acts_by}
    run.tell(START + 1, "completion", replica=HOT_REPLICA, ok=True, served_by_uid="u2", gpus=[HOT_GPU])
    for sample in run.samples:
        if sample["probe"] == "gpu":
            sample["values"]["gpus"][HOT_GPU] = dict(sample["values"]["gpus"][GPU])
    return run


def heat(
    run: Run, degrees: float | None = 93.0, since: float = HOT, until: float = END, gpus: tuple[str, ...] = (HOT_GPU,)
) -> None:
    for sample in run.samples:
        if sample["probe"] == "gpu" and since <= sample["mono"] < until:
            for gpu in gpus:
                sample["values"]["gpus"][gpu]["temperature_c"] = degrees


def shed(run: Run, since: float, keep_every: int) -> None:
    """Have only one in so many attempts still reach the hot replica."""
    mine = [a for a in run.ledger if a["replica"] == HOT_REPLICA and a["start"] >= since]
    for n, attempt in enumerate(mine):
        if keep_every == 0 or n % keep_every:
            attempt["replica"] = "replica-0"


def found(run: Run, folder: Path, **params: float) -> CheckResult:
    return judge(run, folder, "automation", **params)


# ---- not judged ----------------------------------------------------------------------------------------


def test_not_judged_where_no_gpu_got_hot(tmp_path: Path) -> None:
    row = found(declared(), tmp_path)
    assert row.verdict is Verdict.NOT_JUDGED
    assert "no GPU rose above 90 C in this run, the highest was" in row.reason


def test_not_judged_where_nothing_is_declared(tmp_path: Path) -> None:
    run = declared()
    del run.plan["target"]["automation"]
    heat(run)
    row = found(run, tmp_path)
    assert (row.verdict, row.reason) == (Verdict.NOT_JUDGED, "the target declares no automation for hot GPUs")


def test_not_judged_where_it_was_hot_from_the_first_look(tmp_path: Path) -> None:
    run = declared()
    heat(run, since=START)
    row = found(run, tmp_path)
    assert (row.verdict, "did not rise in this run" in row.reason) == (Verdict.NOT_JUDGED, True)


def test_not_judged_where_no_temperature_is_told(tmp_path: Path) -> None:
    run = declared()
    heat(run, None, since=START, gpus=(GPU, HOT_GPU))
    row = found(run, tmp_path)
    assert (row.verdict, row.reason) == (Verdict.NOT_JUDGED, "no GPU of a replica told its temperature")


def test_not_judged_where_no_gpu_is_watched(tmp_path: Path) -> None:
    run = declared()
    run.plan["target"]["kind"] = "kubernetes"
    run.samples = [s for s in run.samples if s["probe"] != "gpu"]
    assert found(run, tmp_path).verdict is Verdict.NOT_JUDGED


def test_a_hot_gpu_that_no_replica_holds_is_nothing_to_it(tmp_path: Path) -> None:
    run = declared()
    for sample in run.samples:
        if sample["probe"] == "gpu":
            sample["values"]["gpus"][OTHER_GPU] = {**sample["values"]["gpus"][GPU], "temperature_c": 95.0}
    assert found(run, tmp_path).verdict is Verdict.NOT_JUDGED


# ---- shed ----------------------------------------------------------------------------------------------


def test_pass_when_load_is_shed(tmp_path: Path) -> None:
    run = declared()
    heat(run)
    shed(run, HOT + 4, keep_every=5)
    row = found(run, tmp_path)
    assert row.verdict is Verdict.PASS, row.reason
    assert isinstance(row.value, float)
    assert 0 <= row.value <= 10
    assert row.interval == (row.value, row.value + 5.0)
    assert (row.detail["replica"], row.detail["gpu"], row.detail["highest_c"]) == (HOT_REPLICA, HOT_GPU, 93.0)


def test_fail_when_nothing_is_shed(tmp_path: Path) -> None:
    run = declared()
    run.plan["experiment"]["faults"] = []
    heat(run)
    row = found(run, tmp_path)
    assert (row.verdict, row.value) == (Verdict.FAIL, None)
    assert row.reason == "replica-2: its GPU rose to 93 C, and what reached it did not fall within 30 s"


def test_fail_when_too_little_is_shed(tmp_path: Path) -> None:
    run = declared()
    heat(run)
    shed(run, HOT + 1, keep_every=3)
    assert found(run, tmp_path / "half").verdict is Verdict.PASS
    assert found(run, tmp_path / "tenth", max_left=0.1).verdict is Verdict.FAIL


def test_fail_when_it_is_shed_too_late(tmp_path: Path) -> None:
    run = declared()
    heat(run)
    shed(run, HOT + 45, keep_every=0)
    row = found(run, tmp_path)
    assert (row.verdict, "after" in row.reason) == (Verdict.FAIL, True)
    assert isinstance(row.value, float)
    assert row.value > 30


def test_inconclusive_when_the_run_ended_before_its_time(tmp_path: Path) -> None:
    run = declared()
    heat(run, since=END - 12)
    assert found(run, tmp_path).verdict is Verdict.INCONCLUSIVE


def test_inconclusive_without_a_ledger(tmp_path: Path) -> None:
    run = declared()
    heat(run)
    run.has_ledger = False
    row = found(run, tmp_path)
    assert (row.verdict, row.reason) == (Verdict.INCONCLUSIVE, "no ledger tells what reached the hot replica")


def test_inconclusive_when_too_little_reached_it_before(tmp_path: Path) -> None:
    run = declared()
    heat(run)
    run.ledger = [a for n, a in enumerate(run.ledger) if a["replica"] != HOT_REPLICA or n % 10 == 0]
    row = found(run, tmp_path)
    assert (row.verdict, "needed to see them fall" in row.reason) == (Verdict.INCONCLUSIVE, True)


def test_inconclusive_when_nobody_looked_before_it_was_hot(tmp_path: Path) -> None:
    run = declared()
    heat(run)
    run.samples = [s for s in run.samples if s["probe"] != "gpu" or not HOT - 60 <= s["mono"] < HOT]
    row = found(run, tmp_path)
    assert (row.verdict, "nobody looked at" in row.reason) == (Verdict.INCONCLUSIVE, True)


def test_inconclusive_without_an_injection(tmp_path: Path) -> None:
    run = runs.quiet()
    run.plan["target"]["automation"] = {"hot_above": 90.0, "acts_by": "shed"}
    assert found(run, tmp_path).verdict is Verdict.INCONCLUSIVE


# ---- what the drill itself did -----------------------------------------------------------------------


@pytest.mark.parametrize("before_s", [20.0, 10.0, 5.0, 1.0, -1.0, -30.0])
@pytest.mark.parametrize("acts_by", ["shed", "move"])
def test_a_replica_that_the_drill_took_away_shed_nothing(tmp_path: Path, acts_by: str, before_s: float) -> None:
    run = declared(acts_by)
    heat(run, since=FAULT - before_s, gpus=(GPU,))
    if acts_by == "move":  # its controller made it anew, and another one beside it
        run.tell(FAULT + 5, "completion", replica=VICTIM, ok=True, served_by_uid="u9", gpus=[OTHER_GPU])
        run.tell(FAULT + 1, "replica", replica=VICTIM, change="gone", uid="u1")
        run.tell(FAULT + 6, "completion", replica="replica-9", ok=True, served_by_uid="u9", gpus=[OTHER_GPU])
    row = found(run, tmp_path)
    assert row.verdict is Verdict.INCONCLUSIVE, row.reason
    assert "the drill hit it" in row.reason or "the drill had hit it" in row.reason


def test_a_victim_that_shed_before_it_was_hit_has_shed(tmp_path: Path) -> None:
    run = declared()
    heat(run, since=FAULT - 30, gpus=(GPU,))
    for attempt in run.ledger:
        if attempt["replica"] == VICTIM and attempt["start"] >= FAULT - 25:
            attempt["replica"] = "replica-0"
    row = found(run, tmp_path)
    assert row.verdict is Verdict.PASS, row.reason


def test_a_victim_that_shed_nothing_for_long_enough_has_failed(tmp_path: Path) -> None:
    run = declared()
    heat(run, since=FAULT - 35, gpus=(GPU,))
    assert found(run, tmp_path).verdict is Verdict.FAIL


def test_of_a_control_nobody_is_hit(tmp_path: Path) -> None:
    run = declared()
    for event in run.events:
        if event["event"] == "receipt":
            event["data"]["receipt"]["fault"] = "noop"
    heat(run, since=FAULT + 40, gpus=(GPU,))
    assert "the drill" not in found(run, tmp_path).reason


def test_a_fall_of_all_replicas_is_no_shedding(tmp_path: Path) -> None:
    run = declared()
    heat(run)
    run.ledger = [a for n, a in enumerate(run.ledger) if a["start"] < HOT + 4 or n % 5 == 0]
    row = found(run, tmp_path)
    assert row.verdict is Verdict.INCONCLUSIVE
    assert row.reason == "what reached replica-2 fell with what reached all others, which is no shedding"


def test_a_fall_before_it_was_hot_is_no_answer_to_the_heat(tmp_path: Path) -> None:
    run = declared()
    heat(run)
    shed(run, HOT - 20, keep_every=0)
    row = found(run, tmp_path)
    assert (row.verdict, row.reason) == (
        Verdict.INCONCLUSIVE,
        "what reached replica-2 had fallen before its GPU was hot",
    )


def test_what_stands_in_for_a_victim_has_moved_nobody_else(tmp_path: Path) -> None:
    run = declared("move")
    heat(run)
    run.events = [e for e in run.events if e["event"] != "completion" or e["data"]["replica"] != VICTIM]
    run.tell(HOT + 4, "replica", replica=HOT_REPLICA, change="gone", uid="u2")
    run.tell(HOT + 5, "completion", replica="replica-8", ok=True, served_by_uid="u8", gpus=[OTHER_GPU])
    assert found(run, tmp_path / "one").verdict is Verdict.FAIL
    run.tell(HOT + 9, "completion", replica="replica-9", ok=True, served_by_uid="u9", gpus=["GPU-third"])
    row = found(run, tmp_path / "two")
    assert (row.verdict, row.value) == (Verdict.PASS, 9.0)


# ---- move ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("after_s", "verdict"), [(12.0, Verdict.PASS), (40.0, Verdict.FAIL)])
def test_a_replica_that_answers_from_another_gpu_has_moved(tmp_path: Path, after_s: float, verdict: Verdict) -> None:
    run = declared("move")
    heat(run)
    run.tell(HOT + after_s, "completion", replica=HOT_REPLICA, ok=True, served_by_uid="u2", gpus=[OTHER_GPU])
    row = found(run, tmp_path)
    assert (row.verdict, row.value) == (verdict, after_s)


def test_a_new_replica_in_its_place_has_moved_it_once_it_is_gone(tmp_path: Path) -> None:
    run = declared("move")
    heat(run)
    run.tell(HOT + 5, "completion", replica="replica-9", ok=True, served_by_uid="u9", gpus=[OTHER_GPU])
    assert found(run, tmp_path / "there").verdict is Verdict.FAIL
    run.tell(HOT + 9, "replica", replica=HOT_REPLICA, change="gone", uid="u1")
    row = found(run, tmp_path / "gone")
    assert (row.verdict, row.value) == (Verdict.PASS, 9.0)


@pytest.mark.parametrize("gpus", [[HOT_GPU], []])
def test_fail_when_it_answers_from_the_hot_one_or_from_nobody_knows_which(tmp_path: Path, gpus: list[str]) -> None:
    run = declared("move")
    heat(run)
    run.tell(HOT + 5, "completion", replica=HOT_REPLICA, ok=True, served_by_uid="u2", gpus=gpus)
    row = found(run, tmp_path)
    assert (row.verdict, row.reason) == (
        Verdict.FAIL,
        "replica-2: its GPU rose to 93 C, and it served from no other GPU within 30 s",
    )


def test_of_two_hot_gpus_the_worse_one_counts(tmp_path: Path) -> None:
    run = declared("move")
    heat(run)
    run.tell(START + 1, "completion", replica="replica-0", ok=True, served_by_uid="u0", gpus=[OTHER_GPU])
    for sample in run.samples:
        if sample["probe"] == "gpu":
            degrees = 95.0 if sample["mono"] >= HOT else 40.0
            sample["values"]["gpus"][OTHER_GPU] = {**probed_gpu(sample), "temperature_c": degrees}
    run.tell(HOT + 6, "completion", replica=HOT_REPLICA, ok=True, served_by_uid="u2", gpus=["GPU-third"])
    row = found(run, tmp_path)
    assert (row.verdict, row.detail["replica"]) == (Verdict.FAIL, "replica-0")


def probed_gpu(sample: runs.Json) -> runs.Json:
    made: runs.Json = probed.gpus(sample["mono"], [OTHER_GPU])["values"]["gpus"][OTHER_GPU]
    return made
