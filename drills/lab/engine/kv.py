"""The KV cache: a pool of blocks, and the prefix cache over it. Pure bookkeeping.

A block that is full and computed is known by the hash of its tokens and of all tokens before it. A freed
block keeps its hash until the block is needed for something else, so a later prompt with the same
beginning takes it back for nothing. Oldest freed blocks go first, and of one request the last block first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence


class BlockPool:
    """Blocks with reference counts, a free list in order of eviction, and the hashes of full blocks."""

    def __init__(self, blocks: int) -> None:
        self.blocks = blocks
        self._refs = [0] * blocks
        self._hash: list[int | None] = [None] * blocks
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(blocks))
        self._cached: dict[int, int] = {}

    @property
    def free(self) -> int:
        """Return how many blocks no live request holds (cached ones included)."""
        return len(self._free)

    @property
    def usage(self) -> float:
        """Return the share of blocks that live requests hold, 0..1."""
        return 1.0 - len(self._free) / self.blocks

    def match(self, hashes: Sequence[int]) -> list[int]:
        """Return the cached blocks for the longest known beginning of `hashes`; takes nothing yet."""
        found = []
        for h in hashes:
            block = self._cached.get(h)
            if block is None:
                break
            found.append(block)
        return found

    def take(self, count: int, cached: Sequence[int] = ()) -> list[int] | None:
        """Hold the `cached` blocks and `count` fresh ones; return all of them, or None and take nothing."""
        idle = sum(1 for block in cached if self._refs[block] == 0)
        if count > len(self._free) - idle:
            return None
        for block in cached:
            if self._refs[block] == 0:
                del self._free[block]
            self._refs[block] += 1
        return [*cached, *(self._evict() for _ in range(count))]

    def _evict(self) -> int:
        block, _ = self._free.popitem(last=False)
        h = self._hash[block]
        if h is not None:
            del self._cached[h]
            self._hash[block] = None
        self._refs[block] = 1
        return block

    def release(self, blocks: Sequence[int]) -> None:
        """Let go of a request's blocks; those nobody else holds become free, hashes kept."""
        for block in reversed(blocks):
            self._refs[block] -= 1
            if self._refs[block] == 0:
                self._free[block] = None

    def remember(self, block: int, h: int) -> None:
        """Make a full, computed block known by its hash (the first block with that hash stays known)."""
        if self._hash[block] is None and h not in self._cached:
            self._cached[h] = block
            self._hash[block] = h
