"""From what is declared to what can be drilled: one place knows all kinds, and nothing is started to look."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from drills import lock, opening, upkeep
from drills.access import procs
from drills.access.filecustody import FileCustody
from drills.clock import Clock
from drills.errors import Refused, UsageError
from drills.lab import keeper, manage
from drills.lab.client import Lab
from drills.options import Options
from drills.target import lab_target


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"defect": "no-retry"}, "--defect"),
        ({"port_base": 20000, "startup_s": 1.0}, "--port-base, --startup"),
        ({"engine": "vllm"}, "--engine"),
    ],
)
def test_options_of_the_lab_are_refused_elsewhere(given: dict[str, Any], named: str) -> None:
    elsewhere = replace(lab_target(), name="staging", kind="hosts")
    with pytest.raises(UsageError, match=f"target 'staging': {named}: for the lab only"):
        opening.settled(elsewhere, Options(**given))


def test_a_kind_that_nobody_opens_is_named() -> None:
    with pytest.raises(UsageError, match="target 'lab': kind spaceship is not in this version"):
        opening.closed_custody(replace(lab_target(), kind="spaceship"))


def test_custody_is_there_when_the_target_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRILL_LAB_DIR", str(tmp_path))
    spec = lab_target()
    custody = opening.closed_custody(spec)
    assert isinstance(custody, FileCustody)
    assert custody.state_dir == str(tmp_path / "drill")
    assert (opening.found_target(spec), custody.held(), custody.outstanding()) == (None, None, [])
    assert opening.state(spec) == "lab not up; a run starts it, or `drill lab up`"
    assert opening.tidied(spec) is None
    assert list(tmp_path.iterdir()) == []


# ---- a lab that is not the one that is asked for -----------------------------------------------------


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    """A lab with a defect that is up, as far as anybody can tell who only looks."""
    monkeypatch.setenv("DRILL_LAB_DIR", str(tmp_path))
    lab = Lab(tmp_path, {"defect": "no-retries", "engine": "emulator", "entry": {"use": "edge", "edge": "http://a"}})
    monkeypatch.setattr(manage, "find", lambda: lab)
    return lab


def refused(options: Options) -> str:
    with pytest.raises(Refused) as caught, opening.open_target(lab_target(), options, print):
        pass
    return str(caught.value)


ANOTHER = [Options(), Options(defect="no-retries", engine="vllm"), Options(defect="retry-storm")]


@pytest.mark.parametrize("options", ANOTHER)
def test_another_lab_is_to_be_taken_down_first(planted: Lab, options: Options) -> None:
    assert "take it down: `drill lab down`" in refused(options)


@pytest.mark.parametrize("options", ANOTHER)
def test_a_run_that_drills_it_is_the_reason_that_is_given(planted: Lab, options: Options) -> None:
    """Taking it down would be refused as well."""
    custody = opening.closed_custody(lab_target())
    custody.take(lock.mine("aaaaaaaa", planted.dir, 60.0, os.getpid(), Clock()), Clock())
    said = f"lab: run aaaaaaaa drills it (pid {os.getpid()}, since "
    assert refused(options).startswith(said)
    assert "drill lab down" not in refused(options)
    with pytest.raises(Refused, match=r"run aaaaaaaa drills it .* `drill stop aaaaaaaa`; or add --force"):
        upkeep.lab_down(force=False)


def test_the_lab_of_a_run_between_two_drills_is_not_for_others(planted: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then nobody holds the lock."""
    monkeypatch.setattr(keeper, "locked", lambda _: True)
    for pid, busy in ((os.getpid(), True), (2**22 + 1, False)):
        monkeypatch.setattr(manage, "starting_owner", lambda pid=pid: f"run:{pid}-{procs.start(pid)}")
        assert (f"lab: a run has it for its drills (pid {pid})" in refused(Options())) is busy
