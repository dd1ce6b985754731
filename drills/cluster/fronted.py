"""What a Kubernetes target can say and do because a run may put ledger proxies in front of its engines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from drills.cluster import podproxy
from drills.cluster.fronts import Fronts
from drills.cluster.helpers import STATE_DIR
from drills.errors import Refused
from drills.model import Fault, Host, Json, Replica

if TYPE_CHECKING:
    from drills.targetfile import Kubernetes

#: Of a pod on its way out nothing is asked any more.
LEAVING = ("terminating", "completed")


class Fronted:
    """Implements BringsProxies, HasProxies and HasLedger."""

    where: Kubernetes
    clock_error_s = 0.0  # of the ledger that was collected

    def host(self, name: str) -> Host:
        """Return the helper on that node."""
        raise NotImplementedError

    def place(self, replica: Replica) -> Json:
        """Return {ip, port, netns} of a replica's pod. Refused when no proxy could stand there."""
        raise NotImplementedError

    def run_now(self) -> str:
        """Return the run that has the target now."""
        raise NotImplementedError

    def _begin_fronts(self) -> None:
        self._fronts: dict[str, Fronts] = {}

    @property
    def fronts(self) -> Fronts:
        """Return the proxies of the present run; the next run on the same target has others."""
        run = self.run_now()
        if run not in self._fronts:
            self._fronts[run] = Fronts(lambda node: self.host(node), lambda replica: self.place(replica))
        return self._fronts[run]

    def wants_proxies(self, faults: Sequence[Fault]) -> bool:
        """Whether the target's file asks for them, or one of the faults does."""
        return self.where.ledger or any("HasProxies" in fault.needs() for fault in faults)

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
        return podproxy.undo(spots)

    def without_proxy(self, now: Sequence[Replica]) -> list[Replica]:
        """Return those of the replicas whose engine could have a proxy in front and has none."""
        return [r for r in now if r.host and r.state not in LEAVING and self.fronts.of(r.uid) is None]

    def proxy(self, replica: Replica) -> Json | None:
        """Return {listen, control, faults_dir, host, folder} of a replica's proxy, None while there is none."""
        spot = self.fronts.of(replica.uid)
        if spot is None:
            return None
        listen = f"http://{spot['ip']}:{spot['port']}"
        here = {"listen": listen, "control": "", "faults_dir": f"{spot['folder']}/faults"}
        return {**here, "host": spot["node"], "folder": STATE_DIR}

    def collect_ledger(self, since_mono: float) -> list[Json] | None:
        """Return the attempts that began since then, by our clock; None when the run has no proxies."""
        if not self.fronts.any():
            return None
        attempts, self.clock_error_s = self.fronts.collect(since_mono)
        return attempts

    def _ports(self, replica: Replica, port: int) -> dict[str, Any]:
        """Return what a rule must know of a proxy: packets to the engine's port arrive at the proxy's."""
        spot = self.fronts.of(replica.uid)
        return {"redirected": {str(port): spot["listen"]}} if spot else {}


def placed(replica: Replica, *, ip: str, port: int, netns: Json | None, tcp_probe: bool) -> Json:
    """Return a pod's place. Refused where a proxy would stand in for the engine when it must not."""
    if netns is None or not ip:
        raise Refused(f"{replica.name}: its pod has no network yet")
    if ":" in ip:
        raise Refused(f"{replica.name}: its pod has the address {ip}, and ledger proxies know IPv4 only")
    if tcp_probe:
        raise Refused(
            f"{replica.name}: a probe of its pod only opens a connection to port {port}, which the ledger proxy would "
            "accept for an engine that is gone: make it an httpGet"
        )
    return {"ip": ip, "port": port, "netns": netns}
