"""The ledger proxies of a run in front of its engines: where each stands, and what its machine's clock says here."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from drills.errors import DrillError, Refused
from drills.fronts import onhost, words
from drills.model import Host, Json, Replica

COMMAND_S: Final = 60.0
EARLIER_S: Final = 1.0  # a machine sends that much more than is asked for: its clock is known better only afterwards
BOOT: Final = Path("/proc/sys/kernel/random/boot_id")
STAMPS: Final = ("start", "connected", "first_byte", "last_byte", "end")


@dataclass(frozen=True)
class Clock:
    """How far a machine's monotonic clock is ahead of ours: at least and at most, seconds."""

    low: float
    high: float

    @property
    def ahead_s(self) -> float:
        """Return the best guess."""
        return (self.low + self.high) / 2

    @property
    def error_s(self) -> float:
        """Return by how much that may be wrong, either way."""
        return (self.high - self.low) / 2

    def met(self, other: Clock) -> Clock:
        """Return what both say."""
        low, high = max(self.low, other.low), min(self.high, other.high)
        return Clock(low, high) if low <= high else other  # of a machine that was started again only the last counts


class Fronts:
    """What a run knows of its proxies. `place_of` returns of a replica's place what its kind of target knows.

    That is {uid, ip, port, netns, state_dir, sources, stays} of a spot (`drills.fronts.words`). `host_of` returns what
    works on a machine, and raises `gone` when it is there no more; `machine` is the word for one, and `enter` are words
    that lead a command into its network.
    """

    def __init__(
        self,
        host_of: Callable[[str], Host],
        place_of: Callable[[Replica], Json],
        *,
        machine: str = "host",
        enter: Sequence[str] = (),
        gone: tuple[type[DrillError], ...] = (),
    ) -> None:
        self._host_of, self._place_of, self._machine = host_of, place_of, machine
        self._enter, self._gone = tuple(enter), gone
        self._up: dict[str, Json] = {}  # by uid
        self._clocks: dict[str, Clock] = {}

    def aim(self, replicas: Sequence[Replica], tag: str) -> list[Json]:
        """Return the spots for proxies of these replicas. Refused, with every reason, when one has none."""
        spots = [self._spot(replica, tag) for replica in replicas]
        said = self._ask("aim", spots)
        if problems := [
            f"{s['replica']}: {one['error']}" for s, one in zip(spots, said, strict=True) if "error" in one
        ]:
            raise Refused(f"no ledger proxy can stand in front of {'; '.join(problems)}")
        found = [spot | one for spot, one in zip(spots, said, strict=True)]
        return [spot | words.words(spot, tag) for spot in found]

    def _spot(self, replica: Replica, tag: str) -> Json:
        place = self._place_of(replica)
        folder = f"{place['state_dir']}/proxies/{tag}-{place['uid'] if place['netns'] else place['port']}"
        who = {"replica": replica.name, "role": replica.role, "node": replica.host}
        return {**who, "python": self._host_of(replica.host).python, **place, "tag": tag, "folder": folder}

    def put_up(self, spots: Sequence[Json]) -> list[Json]:
        """Put them up; returns for each what was done, or an error."""
        said = self._ask("up", spots)
        self._up |= {spot["uid"]: spot for spot, one in zip(spots, said, strict=True) if "error" not in one}
        return said

    def look(self, spots: Sequence[Json]) -> list[Json]:
        """Return for each what is there: nothing, where the machine itself is gone."""
        return self._ask("look", spots)

    def any(self) -> bool:
        """Whether there are, or were, any."""
        return bool(self._up)

    def of(self, uid: str) -> Json | None:
        """Return the spot of a replica's proxy, None when it has none."""
        return self._up.get(uid)

    def collect(self, since_mono: float) -> tuple[list[Json], float]:
        """Return the attempts that began since then, by our clock, and by how much their times may be wrong, seconds.

        Raises DrillError when one of the proxies' ledgers cannot be read.
        """
        attempts: list[Json] = []
        spots = [{**spot, "since": self._there(spot["node"], since_mono)} for spot in self._up.values()]
        for spot, said in zip(spots, self._ask("collect", spots), strict=True):
            if "error" in said:
                raise DrillError(f"{spot['replica']}: its ledger is lost: {said['error']}")
            ahead_s = self._clocks[spot["node"]].ahead_s
            attempts += [shifted(json.loads(line), ahead_s) for line in said["lines"]]
        wrong_s = max((self._clocks[spot["node"]].error_s for spot in spots), default=0.0)
        mine = (one for one in attempts if one["start"] >= since_mono)
        return sorted(mine, key=lambda one: (one["start"], one["replica"])), wrong_s

    def _there(self, node: str, mono: float) -> float:
        """Return that instant, or a little before it, by the clock of a node."""
        return mono + self._clocks[node].low - EARLIER_S if node in self._clocks else 0.0

    # ---- inside --------------------------------------------------------------------------------------

    def _ask(self, command: str, spots: Sequence[Json]) -> list[Json]:
        """Ask all nodes at once; returns the answers in the order of the spots."""
        nodes = sorted({spot["node"] for spot in spots})
        mine = {node: [spot for spot in spots if spot["node"] == node] for node in nodes}
        with ThreadPoolExecutor(max(1, min(16, len(nodes)))) as pool:
            answers = dict(zip(nodes, pool.map(lambda node: self._on(node, command, mine[node]), nodes), strict=True))
        by_spot = {(node, s["uid"]): one for node in nodes for s, one in zip(mine[node], answers[node], strict=True)}
        return [by_spot[spot["node"], spot["uid"]] for spot in spots]

    def _on(self, node: str, command: str, spots: Sequence[Json]) -> list[Json]:
        try:
            host = self._host_of(node)
        except self._gone:
            if command != "look":
                raise
            return [dict(onhost.NOTHING, gone=True) for _ in spots]
        argv = [*self._enter, host.python, "-m", words.MODULE, command]
        began = time.monotonic()
        done = host.run(argv, timeout_s=COMMAND_S, stdin=json.dumps({"spots": list(spots)}) + "\n")
        ended = time.monotonic()
        try:
            said: Json = json.loads(done.out)
        except ValueError:
            why = "timed out" if done.timed_out else (done.err.strip().splitlines() or ["no reason given"])[-1][:200]
            raise Refused(f"{self._machine} {node}: {command} of ledger proxies: {why}") from None
        self._clocks[node] = _clock(said["clock"], began, ended, self._clocks.get(node))
        return list(said["spots"])


def _clock(said: Mapping[str, float | str], began: float, ended: float, known: Clock | None) -> Clock:
    """Return what a call that lasted from `began` to `ended` here says of the clock there."""
    seen = Clock(float(said["ended"]) - ended, float(said["began"]) - began)
    if said["boot"] == BOOT.read_text().strip() and seen.low <= 0.0 <= seen.high:  # one machine has one clock
        return Clock(0.0, 0.0)
    return seen if known is None else known.met(seen)


def shifted(attempt: Json, ahead_s: float) -> Json:
    """Return an attempt by our clock."""
    if not ahead_s:
        return attempt
    times = {name: None if attempt[name] is None else round(attempt[name] - ahead_s, 6) for name in STAMPS}
    return attempt | times
