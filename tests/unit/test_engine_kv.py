"""The block pool and its prefix cache."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from drills.lab.engine.kv import BlockPool


def test_blocks_are_held_and_let_go() -> None:
    pool = BlockPool(4)
    held = pool.take(3)
    assert held is not None
    assert (pool.free, pool.usage) == (1, 0.75)
    pool.release(held)
    assert (pool.free, pool.usage) == (4, 0.0)


def test_too_many_blocks_take_nothing() -> None:
    pool = BlockPool(4)
    assert pool.take(5) is None
    assert pool.free == 4


def test_a_freed_block_is_found_again_by_its_hash() -> None:
    pool = BlockPool(4)
    held = pool.take(2)
    assert held is not None
    pool.remember(held[0], 11)
    pool.remember(held[1], 22)
    pool.release(held)
    assert pool.match([11, 22, 33]) == held
    assert pool.match([22]) == [held[1]]
    assert pool.take(0, held) == held
    assert pool.usage == 0.5


def test_a_hole_ends_a_match() -> None:
    pool = BlockPool(4)
    held = pool.take(2)
    assert held is not None
    pool.remember(held[1], 22)
    assert pool.match([11, 22]) == []


def test_a_block_that_is_needed_forgets_its_hash_the_end_of_a_request_first() -> None:
    pool = BlockPool(3)
    held = pool.take(3)
    assert held is not None
    for block, h in zip(held, (1, 2, 3), strict=True):
        pool.remember(block, h)
    pool.release(held)
    pool.take(1)
    assert pool.match([1, 2, 3]) == held[:2]


def test_a_shared_block_is_freed_with_its_last_holder() -> None:
    pool = BlockPool(3)
    held = pool.take(1)
    assert held is not None
    pool.remember(held[0], 1)
    again = pool.take(1, held)
    assert again is not None
    pool.release(held)
    assert pool.free == 1
    pool.release(again)
    assert pool.free == 3


def test_cached_free_blocks_do_not_count_as_fresh_ones() -> None:
    pool = BlockPool(2)
    held = pool.take(1)
    assert held is not None
    pool.remember(held[0], 1)
    pool.release(held)
    assert pool.take(2, held) is None  # one is the cached block itself
    assert pool.free == 2


@settings(deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 5)), max_size=60))
def test_blocks_are_never_lost_or_held_twice(moves: list[tuple[bool, int]]) -> None:
    pool = BlockPool(8)
    requests: list[list[int]] = []
    for take, n in moves:
        if take:
            blocks = pool.take(n)
            if blocks is not None:
                requests.append(blocks)
                for block in blocks:
                    pool.remember(block, block * 7)
        elif requests:
            pool.release(requests.pop(n % len(requests)))
        held = [b for r in requests for b in r]
        assert len(held) == len(set(held))
        assert pool.free == 8 - len(held)
