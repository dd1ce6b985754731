"""What a target can say and do because a run may put ledger proxies in front of its engines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from drills.fronts import words
from drills.fronts.fronts import Fronts
from drills.model import Fault, Host, Json, Replica
from drills.target import TargetSpec

#: Of a replica on its way out nothing is asked any more.
LEAVING = ("terminating", "completed")


class Fronted:
    """Implements BringsProxies, HasProxies and HasLedger."""

    spec: TargetSpec
    clock_error_s = 0.0  # of the ledger that was collected

    def host(self, name: str) -> Host:
        """Return what works on that machine."""
        raise NotImplementedError

    def place(self, replica: Replica) -> Json:
        """Return where a replica's proxy would stand (`Fronts`). Refused when none could."""
        raise NotImplementedError

    def run_now(self) -> str:
        """Return the run that has the target now."""
        raise NotImplementedError

    def front_key(self, replica: Replica) -> str:
        """Return what a proxy stands in front of: the incarnation, where each has a network of its own."""
        return replica.uid

    def reached_at(self, spot: Json) -> str:
        """Return the URL by which its own machine reaches the engine through a proxy."""
        return f"http://{spot['ip']}:{spot['port']}"

    def _new_fronts(self) -> Fronts:
        return Fronts(lambda name: self.host(name), lambda replica: self.place(replica))

    def _begin_fronts(self) -> None:
        self._fronts: dict[str, Fronts] = {}

    @property
    def fronts(self) -> Fronts:
        """Return the proxies of the present run; the next run on the same target has others."""
        run = self.run_now()
        if run not in self._fronts:
            self._fronts[run] = self._new_fronts()
        return self._fronts[run]

    def wants_proxies(self, faults: Sequence[Fault]) -> bool:
        """Whether the target's file asks for them, or one of the faults does."""
        return self.spec.brings_proxies(faults)

    def aim_proxies(self, replicas: Sequence[Replica], tag: str) -> list[Json]:
        """Return where each replica's proxy would stand. Refused."""
        return self.fronts.aim(replicas, tag)

    def put_up_proxies(self, spots: Sequence[Json]) -> list[Json]:
        """Put them up; returns for each what was done, or an error."""
        return self.fronts.put_up(spots)

    def look_at_proxies(self, spots: Sequence[Json]) -> list[Json]:
        """Return for each what is there of it."""
        return self.fronts.look(spots)

    def undo_of_proxies(self, spots: Sequence[Json]) -> Sequence[Json]:
        """Return the undo steps."""
        return words.undo(spots)

    def without_proxy(self, now: Sequence[Replica]) -> list[Replica]:
        """Return those of the replicas whose engine could have a proxy in front and has none."""
        there = [r for r in now if r.host and r.state not in LEAVING]
        return [r for r in there if self.fronts.of(self.front_key(r)) is None]

    def proxy(self, replica: Replica) -> Json | None:
        """Return {listen, control, faults_dir, host, folder} of a replica's proxy, None while there is none."""
        spot = self.fronts.of(self.front_key(replica))
        if spot is None:
            return None
        here = {"listen": self.reached_at(spot), "control": "", "faults_dir": f"{spot['folder']}/faults"}
        return {**here, "host": spot["node"], "folder": spot["state_dir"], "passing": not spot["stays"]}

    def collect_ledger(self, since_mono: float) -> list[Json] | None:
        """Return the attempts that began since then, by our clock; None when the run has no proxies."""
        if not self.fronts.any():
            return None
        attempts, self.clock_error_s = self.fronts.collect(since_mono)
        return attempts

    def _ports(self, replica: Replica, port: int) -> dict[str, Any]:
        """Return what a rule must know of a proxy: packets to the engine's port arrive at the proxy's."""
        spot = self.fronts.of(self.front_key(replica))
        return {"redirected": {str(port): spot["listen"]}} if spot else {}
