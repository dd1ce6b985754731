"""Outcomes of a reset: by status and text as they were reported, then by the GPU."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from drills.faults import reset_outcome
from drills.faults.reset_outcome import HARMLESS, NEEDS_HUMAN, OUTCOMES, classify, verify
from drills.model import Json

PCI = "00000000:1A:00.0"
DONE = "GPU 00000000:1A:00.0 was successfully reset.\n"
ADVICE = "\n1 device is currently being used by one or more other processes (e.g., Fabric Manager, CUDA application)"
REFUSED = "The following GPUs could not be reset:\n  GPU 00000000:1A:00.0: {}\n"

CASES = [
    (0, DONE + "All done.\n", "ok"),
    (0, DONE, "ok"),  # some versions stop there
    (0, "GPU 0000:1a:00.0 was successfully reset.\nAll done.\n", "ok"),  # the domain in four digits
    (0, "GPU 00000000:3B:00.0 was successfully reset.\nAll done.\n", "unknown"),  # not the one that was asked for
    (0, "", "unknown"),
    (0, "All done.\n", "unknown"),
    (255, DONE, "unknown"),
    (255, REFUSED.format("In use by another client") + ADVICE, "in_use"),
    (1, "GPU 00000000:1A:00.0 is currently in use by another process.\n", "in_use_old"),
    (255, "Resetting GPU 00000000:1A:00.0 is not supported.\n", "unsupported_a"),
    (255, REFUSED.format("Not Supported"), "unsupported_b"),
    (255, REFUSED.format("Unknown Error"), "blocked"),
    (255, "Unable to reset GPU 00000000:1A:00.0: Unknown Error\n", "blocked"),
    (15, "", "lost"),
    (255, "Unable to determine the device handle for GPU 0000:1A:00.0: GPU is lost.  Reboot the system\n", "lost"),
    (255, "Unable to determine the device handle for GPU 0000:1A:00.0: Unknown Error\n", "lost"),
    (4, "", "no_permission"),
    (255, "Insufficient Permissions\n", "no_permission"),
    (None, "", "timeout"),
    (124, "", "timeout"),
    (137, DONE, "timeout"),
    (0, DONE + REFUSED.format("Not Supported").replace("1A", "3B"), "partial"),
    (255, "GPU 00000000:3B:00.0 was successfully reset.\n" + REFUSED.format("In use by another client"), "partial"),
    (255, "free(): invalid pointer\n", "unknown"),
    (139, "", "unknown"),
    (2, "Invalid combination of input arguments.\n", "unknown"),
    (12, "", "unknown"),
]


@pytest.mark.parametrize(("rc", "text", "outcome"), CASES)
def test_status_and_text_decide(rc: int | None, text: str, outcome: str) -> None:
    assert classify(rc, text, PCI) == outcome


def test_every_outcome_is_met_explained_and_has_one_consequence() -> None:
    assert {outcome for _, _, outcome in CASES} | {"no_effect"} == OUTCOMES.keys()
    assert HARMLESS | NEEDS_HUMAN | {"ok"} == OUTCOMES.keys()
    assert not HARMLESS & NEEDS_HUMAN


def answer(**gpu: Any) -> Json:
    """What the probe says of a machine with one healthy GPU, an hour up."""
    healthy = {
        "uptime_s": 3600,
        "recovery_action": "None",
        "mig": False,
        "fabric": "completed",
        "compute_mode": "Default",
        "ecc_mode": True,
        "remapped": {"pending": False, "failure": False},
        "xids": [],
    }
    return {
        "source": "nvml",
        "boot_id": "b",
        "count": 1,
        "errors": [],
        "gpus": {"GPU-1": {**healthy, **gpu}},
    }


def test_an_uptime_younger_than_the_reset_proves_it() -> None:
    found = verify("GPU-1", answer(), answer(uptime_s=2), 3.0)
    assert (found.outcome, found.proven, found.problems) == ("ok", True, ())


def test_an_uptime_that_went_on_is_no_effect_and_for_a_person() -> None:
    found = verify("GPU-1", answer(), answer(uptime_s=3603), 3.0)
    assert (found.outcome, found.proven, found.problems) == ("no_effect", False, (OUTCOMES["no_effect"],))
    assert found.outcome in NEEDS_HUMAN


@pytest.mark.parametrize(("uptime_s", "elapsed_s"), [(None, 3.0), (3603, 0.0)])
def test_without_an_uptime_or_a_begin_nothing_is_proven_and_nothing_denied(
    uptime_s: int | None, elapsed_s: float
) -> None:
    found = verify("GPU-1", answer(), answer(uptime_s=uptime_s), elapsed_s)
    assert (found.outcome, found.proven, found.problems) == ("ok", None, ())


def test_a_reboot_is_no_reset() -> None:
    now = {**answer(uptime_s=2), "boot_id": "c"}
    found = verify("GPU-1", answer(), now, 3.0)
    assert found.proven is False
    assert any("rebooted" in p for p in found.problems)


def test_a_gpu_that_did_not_come_back_is_lost() -> None:
    now = {**answer(), "gpus": {}, "count": 0, "errors": ["GPU 0: GPU is lost"]}
    found = verify("GPU-1", answer(), now, 3.0)
    assert found.outcome == "lost"
    assert any("GPU is lost" in p for p in found.problems)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"recovery_action": "Reset"}, "recovery action is Reset"),
        ({"recovery_action": None}, "recovery action is unknown"),
        ({"mig": True}, "mig is True"),
        ({"fabric": "not_started"}, "fabric is not_started"),
        ({"compute_mode": "Prohibited"}, "compute_mode is Prohibited, was Default"),
        ({"ecc_mode": False}, "ecc_mode is False, was True"),
        ({"remapped": {"pending": True, "failure": False}}, "row remapping: pending"),
        ({"xids": [{"at_s": 1.0, "xid": 79, "text": "off the bus"}]}, "new Xid 79"),
        ({"xids": [{"at_s": 1.0, "xid": 154, "text": "from 0x0 (None) to 0x2 (Node Reboot Required)"}]}, "new Xid 154"),
    ],
)
def test_what_is_not_as_before_is_a_problem(change: Json, words: str) -> None:
    found = verify("GPU-1", answer(), answer(uptime_s=1, **change), 3.0)
    assert len(found.problems) == 1
    assert words in found.problems[0]


def test_what_an_older_receipt_does_not_tell_is_not_compared() -> None:
    before = answer()
    del before["gpus"]["GPU-1"]["ecc_mode"]
    assert verify("GPU-1", before, answer(uptime_s=1, ecc_mode=False), 3.0).problems == ()


def test_our_own_footprint_and_old_xids_are_no_problem() -> None:
    old = {"at_s": 1.0, "xid": 79, "text": "off the bus"}
    ours = [
        {"at_s": 9.0, "xid": 45, "text": "pid=1, name=python"},
        {"at_s": 9.1, "xid": 154, "text": "GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)"},
    ]
    found = verify("GPU-1", answer(xids=[old]), answer(uptime_s=1, xids=[old, *ours]), 3.0)
    assert found.problems == ()


def test_no_answer_at_all_is_a_problem() -> None:
    now = {**copy.deepcopy(answer()), "source": None, "count": None, "gpus": {}, "errors": ["timed out"]}
    found = verify("GPU-1", answer(), now, 3.0)
    assert any("neither NVML nor nvidia-smi" in p for p in found.problems)


def test_evidence_names_gpu_uptimes_and_boot() -> None:
    found = verify("GPU-1", answer(), answer(uptime_s=2), 3.004)
    assert found.evidence["gpu"] == "GPU-1"
    assert (found.evidence["uptime_before_s"], found.evidence["uptime_s"], found.evidence["elapsed_s"]) == (
        3600,
        2,
        3.0,
    )
    assert found.evidence["same_boot"] is True
    assert reset_outcome.UPTIME_SLACK_S <= 1.0
