"""What the proxy can do to traffic: named modes that are added and removed while streams are open.

first_byte   the first byte of each response leaves `delay_s` late, what follows queues behind it
per_request  each request is passed on to the replica `delay_s` late
per_chunk    each piece of a response body leaves `delay_s` after the piece before it: the stream is stretched
cut          responses in flight are reset at once, later ones right after their first piece of body
stall        no byte moves in either direction, connections stay open
refuse       new connections, and new requests on old ones, are reset; open responses go on

Delay modes and `cut` touch forwarded traffic only; `stall` and `refuse` also an honest health answer, because
they stand for a replica that cannot be reached. Of several faults of one mode the longest delay counts.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from drills.errors import nearest
from drills.plain import Json

MODES = ("first_byte", "per_request", "per_chunk", "cut", "stall", "refuse")
DEFAULT_DELAY_S = 5.0

if TYPE_CHECKING:
    Key = str | tuple[str, str]


@dataclass(frozen=True)
class ProxyFault:
    """One fault that is on; `since` is monotonic."""

    id: str
    mode: str
    delay_s: float
    since: float


def parse(body: Any, now: float) -> ProxyFault:
    """Read the body of POST /faults. Raises ValueError with one sentence."""
    if not isinstance(body, dict):
        raise ValueError('expected an object like {"id": "r1", "mode": "first_byte", "delay_s": 5}')
    unknown = sorted(set(body) - {"id", "mode", "delay_s"})
    if unknown:
        raise ValueError(f"unknown key {unknown[0]!r}{nearest(unknown[0], ('id', 'mode', 'delay_s'))}")
    name, mode, delay_s = body.get("id"), body.get("mode"), body.get("delay_s", DEFAULT_DELAY_S)
    if not isinstance(name, str) or not name or "/" in name:
        raise ValueError("id: expected the receipt's id, a text without '/'")
    if mode not in MODES:
        raise ValueError(f"mode: no mode {mode!r}{nearest(str(mode), MODES)}")
    if isinstance(delay_s, bool) or not isinstance(delay_s, (int, float)) or not 0 <= delay_s < math.inf:
        raise ValueError("delay_s: expected seconds, 0 or more")
    return ProxyFault(name, mode, float(delay_s), now)


class Faults:
    """The faults that are on. Attributes are what the data path asks for each piece, so they are plain values."""

    def __init__(self) -> None:
        self._by_key: dict[Key, ProxyFault] = {}
        self._derive()

    def _derive(self) -> None:
        delays = dict.fromkeys(MODES, 0.0)
        for fault in self._by_key.values():
            delays[fault.mode] = max(delays[fault.mode], fault.delay_s)
        modes = {fault.mode for fault in self._by_key.values()}
        self.on = bool(modes)
        self.cut, self.stall, self.refuse = "cut" in modes, "stall" in modes, "refuse" in modes
        self.first_byte_s, self.per_request_s = delays["first_byte"], delays["per_request"]
        self.per_chunk_s = delays["per_chunk"]

    def add(self, fault: ProxyFault, key: Key | None = None) -> None:
        """Turn a fault on; one with the same key (its id, if none is given) is replaced."""
        self._by_key[key or fault.id] = fault
        self._derive()

    def remove(self, key: Key) -> bool:
        """Turn a fault off; False when it was not on."""
        removed = self._by_key.pop(key, None)
        self._derive()
        return removed is not None

    def list(self) -> list[Json]:
        """Return the faults that are on, in the order they came."""
        return [asdict(fault) for fault in self._by_key.values()]

    def response_due(self, arrived: float, passed: float, *, first: bool) -> float:
        """Return when a piece of a response may leave (monotonic; inf: not before the faults change).

        `passed` is when the piece before it left; `first` says that nothing of the response has left yet.
        """
        if self.stall:
            return math.inf
        due = arrived
        if first:
            due += self.first_byte_s
        if self.per_chunk_s:
            due = max(due, max(arrived, passed) + self.per_chunk_s)
        return due
