"""The script that holds the stand-ins against a real GPU: here against another stand-in, and it only reads."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from drills.lab.gpu import state
from tests import gpu_readonly
from tests.contract.gpu_bench import Bench, bench
from tests.gpu_readonly import OutOfTimeError, Reader, questions, shape, xml_shapes

ROOT = Path(__file__).parents[2]


def set_on(on: Bench) -> list[object]:
    return [(g["locked_clocks_mhz"], g["power_limit_w"], g["persistence"]) for g in state.read(on.state_file)["gpus"]]


def test_against_a_stand_in_everything_is_of_the_same_shape_and_nothing_changes(tmp_path: Path) -> None:
    with bench(tmp_path) as on:
        before = {key: value for key, value in state.read(on.state_file).items() if key != "gpus"}
        settings = set_on(on)
        argv = [sys.executable, "-m", "tests.gpu_readonly", "--smi", str(on.smi), "--out", str(tmp_path)]
        done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        assert f"{len(list(questions()))} answers have the same status and shape" in done.stdout
        assert "they differ" not in done.stdout
        assert "no element" not in done.stdout
        assert "drill plan gpu-reset: status 0" in done.stdout
        assert (tmp_path / "gpu-readonly.txt").read_text() == done.stdout
        assert {key: value for key, value in state.read(on.state_file).items() if key != "gpus"} == before
        assert set_on(on) == settings


@pytest.mark.parametrize("word", ["-r", "--gpu-reset", "-pm", "-pl", "-lgc", "-rgc", "-mig", "--query-gpu=x;rm", "1"])
def test_a_word_that_changes_something_is_never_said(word: str) -> None:
    with pytest.raises(ValueError, match="none of the words that only read"):
        Reader().smi("/nowhere/nvidia-smi", "-i", word)


def test_when_its_time_is_over_nothing_more_is_started() -> None:
    with pytest.raises(OutOfTimeError):
        Reader(limit_s=0.0).run(["true"])


def test_shapes() -> None:
    uuid = "GPU-5f0c8a9e-1111-2222-3333-444455556666"
    assert shape(f"GPU 0: NVIDIA H200 (UUID: {uuid})") == "GPU <n>: NVIDIA H<n> (UUID: <uuid>)"
    assert shape("0x0000000000000004") == shape("0x1") == "<hex>"
    assert shape("96.50 W") == "<n> W"
    assert list(xml_shapes("<a")) != []
    assert "-q -x: no element uuid" in list(xml_shapes("<log><gpu/></log>"))


def test_without_a_gpu_it_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu_readonly.main(["--smi", "/nowhere/nvidia-smi"]) == 1
    assert "is not there" in capsys.readouterr().out
