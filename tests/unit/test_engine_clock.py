"""An emulated engine is as much slower as its GPU's clock is capped."""

from __future__ import annotations

from pathlib import Path

import pytest

from drills.lab.engine.clock import LOOK_AGAIN_S, Clock
from drills.lab.gpu import state


@pytest.fixture
def gpu(tmp_path: Path) -> tuple[Path, str]:
    made = state.create(tmp_path, count=2)
    return tmp_path / "state.json", made[0]["uuid"]


def test_without_a_stand_in_nothing_slows_it() -> None:
    assert Clock(None, None).slowdown(1.0) == 1.0


def test_a_clock_lock_slows_it_and_its_end_does_not(gpu: tuple[Path, str]) -> None:
    path, uuid = gpu
    clock = Clock(str(path), uuid)
    assert clock.slowdown(100.0) == 1.0
    state.change_gpu(path, uuid, locked_clocks_mhz=[990, 990])
    assert clock.slowdown(100.0 + LOOK_AGAIN_S / 2) == 1.0  # not looked at again yet
    assert clock.slowdown(100.0 + LOOK_AGAIN_S) == 2.0
    state.change_gpu(path, uuid, locked_clocks_mhz=None, power_limit_w=350.0)
    assert clock.slowdown(200.0) == 2.0
    state.change_gpu(path, uuid, power_limit_w=700.0)
    assert clock.slowdown(300.0) == 1.0


def test_a_gpu_is_known_by_its_device_file_too(gpu: tuple[Path, str]) -> None:
    path, uuid = gpu
    state.change_gpu(path, uuid, locked_clocks_mhz=[990, 990])
    device = state.by_uuid(state.read(path), uuid)["device"]
    assert Clock(str(path), None, device).slowdown(100.0) == 2.0
    assert Clock(str(path), None, "/dev/another").slowdown(100.0) == 1.0
    assert Clock(str(path), None).slowdown(100.0) == 1.0


def test_the_clock_of_another_gpu_is_nothing_to_it(gpu: tuple[Path, str], tmp_path: Path) -> None:
    path, uuid = gpu
    other = state.read(path)["gpus"][1]["uuid"]
    state.change_gpu(path, other, locked_clocks_mhz=[300, 300])
    assert Clock(str(path), uuid).slowdown(100.0) == 1.0


@pytest.mark.parametrize("text", ["", "{", '{"gpus": []}', '{"gpus": null}'])
def test_a_state_that_cannot_be_read_changes_nothing(gpu: tuple[Path, str], text: str) -> None:
    path, uuid = gpu
    state.change_gpu(path, uuid, locked_clocks_mhz=[990, 990])
    clock = Clock(str(path), uuid)
    assert clock.slowdown(100.0) == 2.0
    path.write_text(text)
    assert clock.slowdown(200.0) == 2.0
