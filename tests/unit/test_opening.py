"""From what is declared to what can be drilled: one place knows all kinds, and nothing is started to look."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from drills import opening
from drills.access.filecustody import FileCustody
from drills.errors import UsageError
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
