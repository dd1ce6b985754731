"""How long an undo may take, and that one slow or stuck step keeps none of the others."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from drills import receipts
from drills.access import ontarget
from drills.access.filecustody import STEP_TIMEOUT_S, UNDO_TIMEOUT_S, FileCustody
from drills.access.gpu_restore import COMMAND_TIMEOUT_S as SMI_TIMEOUT_S
from drills.faults import gpu_notes
from drills.faults.gpu_pauses import START_TIMEOUT_S, start_steps
from drills.model import Completed, Host, Json, Receipt

GPU: Json = {"persistence": True, "power_limit_w": 500.0, "power_default_w": 700.0}


def settings(count: int, python: str = "python3", base: str = "/b", smi: Sequence[str] = ("smi",)) -> list[Json]:
    return [gpu_notes.undo_step(python, f"{base}-{n}", f"GPU-{n}", GPU, smi) for n in range(count)]


def starts(count: int) -> list[Json]:
    class Node:
        def command_of_start(self, unit: str, note: str, bases: Sequence[str] = ()) -> list[str]:
            return ["start", unit]

    return start_steps(cast("Any", Node()), {f"u{n}": {"note": "/n"} for n in range(count)})


class Patient:
    """A host on which an undo may take as long as it is given."""

    name, python = "g1", "python3"

    def __init__(self) -> None:
        self.given_s = 0.0

    def read(self, path: str) -> str | None:
        return None

    def write(self, path: str, text: str, *, mode: int = 0o600) -> None:
        pass

    def run(self, argv: Sequence[str], *, timeout_s: float, stdin: str | None = None) -> Completed:
        self.given_s = timeout_s
        return Completed(tuple(argv), 0, json.dumps({"ok": True}), "")


def given_s(*undo: Json) -> float:
    host = Patient()
    receipt = Receipt("r-0-noop", "r", "noop", "t", "g1", ({"name": "r"},), {}, (), undo, 60.0)
    FileCustody(cast("Host", host), "/state", "t").undo(receipt)
    return host.given_s - UNDO_TIMEOUT_S


def test_an_undo_is_given_what_its_steps_may_take() -> None:
    """One that is cut off remembers nothing of what it has done, and the next one comes no further."""
    remove: Json = {"do": "remove", "path": "/x"}
    assert given_s() == 0
    assert given_s(remove, {"do": "run", "argv": ["true"], "timeout_s": 150}) == STEP_TIMEOUT_S + 150
    assert given_s(*starts(3), *settings(8)) == 3 * START_TIMEOUT_S + gpu_notes.RESTORE_TIMEOUT_S
    assert given_s(*settings(8), remove, *settings(1)) == 2 * gpu_notes.RESTORE_TIMEOUT_S + STEP_TIMEOUT_S


def test_the_settings_of_a_gpu_have_the_time_of_all_their_calls() -> None:
    assert gpu_notes.RESTORE_TIMEOUT_S > 5 * SMI_TIMEOUT_S


#: An nvidia-smi that answers for none of the GPUs before it is asked for all of them.
SMI = """
import pathlib, sys, time
folder, count = pathlib.Path(sys.argv[1]), int(sys.argv[2])
(folder / sys.argv[-1]).touch()
deadline = time.monotonic() + 30
while len(list(folder.iterdir())) < count:
    if time.monotonic() > deadline:
        sys.exit(1)
    time.sleep(0.02)
print("Enabled, 500.00")
"""


def test_gpus_are_put_back_beside_each_other_and_then_the_rest_in_order(tmp_path: Path) -> None:
    """An nvidia-smi that is slow, as with persistence mode off, or hangs at one GPU, keeps the others only once."""
    (program := tmp_path / "smi.py").write_text(SMI)
    (seen := tmp_path / "seen").mkdir()
    (trace := tmp_path / "trace").touch()
    smi = [sys.executable, str(program), str(seen), "8"]
    steps = settings(8, sys.executable, str(tmp_path / "base"), smi)
    log = [{"do": "run", "argv": ["sh", "-c", f"ls {seen} | wc -l >>{trace}; echo {n} >>{trace}"]} for n in (2, 1)]
    said = ontarget.carry_out([*log, *steps])
    assert [step["ok"] for step in said] == [True] * 10
    assert trace.read_text().split() == ["8", "1", "8", "2"]


def test_a_gpu_that_cannot_be_put_back_is_told_and_keeps_nobody(tmp_path: Path) -> None:
    (marker := tmp_path / "marker").touch()
    bad: Json = {"do": "run", "argv": ["false"], "beside": True}
    good: Json = {"do": "run", "argv": ["true"], "beside": True}
    said = ontarget.carry_out([{"do": "remove", "path": str(marker)}, good, bad, good])
    assert [step["ok"] for step in said] == [True, False, True, True]
    assert not marker.exists()


@pytest.mark.parametrize("beside", [True, False])
def test_a_receipt_says_which_steps_go_beside_each_other(beside: bool) -> None:
    step: Json = {"do": "run", "argv": ["true"], "beside": beside}
    receipt = Receipt("r-0-noop", "r", "noop", "t", "g1", ({"name": "r"},), {}, (), (step,), 60.0)
    assert receipts.from_json(receipts.to_json(receipt)) == receipt
    with pytest.raises(receipts.Damaged, match="beside"):
        receipts.from_json(receipts.to_json(replace(receipt, undo=({**step, "beside": 3},))))
