"""Samples are written, or the run is told; a disk that is full never stops whoever puts a fault back."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from drills.probes.sampler import Sampler


def test_a_sample_and_a_failure_to_measure_are_lines(tmp_path: Path) -> None:
    told: list[BaseException] = []
    sampler = Sampler(tmp_path / "samples.ndjson", told.append)
    sampler.write("vllm", "replica-0", {"running": 1})
    sampler.write("vllm", "replica-0", None, "timed out")
    sampler.close()
    good, bad = [json.loads(line) for line in (tmp_path / "samples.ndjson").read_text().splitlines()]
    assert (good["ok"], good["values"]) == (True, {"running": 1})
    assert (bad["ok"], bad["error"]) == (False, "timed out")
    assert "values" not in bad
    assert told == []


@pytest.mark.skipif(sys.platform != "linux", reason="/dev/full is Linux's disk that is always full")
def test_a_full_disk_is_told_and_raises_nothing() -> None:
    told: list[BaseException] = []
    sampler = Sampler(Path("/dev/full"), told.append)
    sampler.write("load", "generator", {"n": 1})
    sampler.close()
    assert [type(problem) for problem in told] == [OSError]
