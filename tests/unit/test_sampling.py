"""The sample of long tests: the same for the same seed, all of them by and by."""

from __future__ import annotations

import pytest

from tests import sampling

NAMES = ["a", "b", "c", "d"]


def test_one_seed_draws_one_sample() -> None:
    assert sampling.drawn(NAMES, 2, 7) == sampling.drawn(reversed(NAMES), 2, 7)
    assert len(sampling.drawn(NAMES, 2, 7)) == 2


def test_a_small_file_is_kept_whole() -> None:
    assert sampling.drawn(NAMES, 9, 7) == set(NAMES)


def test_every_test_is_drawn_by_some_seed() -> None:
    assert set().union(*(sampling.drawn(NAMES, 1, seed) for seed in range(50))) == set(NAMES)


def test_without_a_size_nothing_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DRILL_SAMPLE", raising=False)
    assert sampling.size() is None
    assert sampling.header() is None
