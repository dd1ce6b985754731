"""Ledger proxies on GPU hosts, and the network of a host: what leads through a proxy, or is lost, the router sends.

A proxy stands in the host's own network. Health checks there, the driver's probes and Prometheus go past it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, Protocol, runtime_checkable

import urllib3

from drills.errors import Refused
from drills.fronts.fronted import Fronted
from drills.hosts.machines import Machine
from drills.model import Json, Replica
from drills.probes import completion
from drills.probes.http import ProbeError
from drills.target import TargetSpec
from drills.targetfile import GpuHost

PROOF_S: Final = 10.0
BETWEEN_S: Final = 0.25
ASK_S: Final = 2.0
_MAPPED: Final = "::ffff:"


@runtime_checkable
class KnowsDriver(Protocol):
    """A host that says from where the commands of the driver come."""

    def address_of_driver(self) -> str:
        """Return that IP address, as the host sees it."""


class FrontedHosts(Fronted):
    """Implements BringsProxies, HasProxies, HasLedger and HasNetwork for units on hosts."""

    spec: TargetSpec
    machines: tuple[Machine, ...]
    endpoint: str
    model: str

    def machine(self, name: str) -> Machine:
        """Return the machine of that name."""
        raise NotImplementedError

    def entry(self, replica: str) -> GpuHost:
        """Return how the replica of that name is declared."""
        raise NotImplementedError

    def http(self) -> urllib3.PoolManager:
        """Return a pool with the endpoint's key."""
        raise NotImplementedError

    # ---- proxies -------------------------------------------------------------------------------------

    def front_key(self, replica: Replica) -> str:
        """Return its name: a proxy stands in front of a unit's port, whichever run of the unit listens there."""
        return replica.name

    def reached_at(self, spot: Json) -> str:
        """Return the proxy's own port: what begins on the host goes past the redirect."""
        return f"http://127.0.0.1:{spot['listen']}"

    def place(self, replica: Replica) -> Json:
        """Return where a proxy would stand in front of a replica's unit. Refused when none could."""
        entry, machine = self.entry(replica.name), self.machine(replica.host)
        whom = {"uid": replica.name, "ip": entry.address, "port": entry.port, "netns": None}
        return {**whom, "sources": self._router(replica), "state_dir": machine.state_dir, "stays": False}

    def put_up_proxies(self, spots: Sequence[Json]) -> list[Json]:
        """Put them up; each has to see something of the router, for which small requests are sent to the endpoint."""
        said = super().put_up_proxies(spots)
        unseen = [at for at, one in enumerate(said) if "error" not in one]
        deadline = time.monotonic() + PROOF_S
        while unseen:
            looks = self.look_at_proxies([spots[at] for at in unseen])
            left = [(at, look) for at, look in zip(unseen, looks, strict=True) if not look.get("through")]
            if not left or time.monotonic() > deadline:
                for at, look in left:
                    said[at] = {"error": look.get("error") or look.get("why") or "it does not live"}
                break
            unseen = [at for at, _ in left]
            for _ in spots:  # a router that takes turns comes to each of them
                self._nudge()
            time.sleep(BETWEEN_S)
        return said

    def _nudge(self) -> None:
        base = self.endpoint.removesuffix("/v1")
        with suppress(ProbeError):
            completion.complete(self.http(), base, self.model, timeout_s=ASK_S)

    def _router(self, replica: Replica) -> list[str]:
        found = self.spec.router_addresses
        if not found:
            raise Refused(
                f"{replica.name}: what the router sends cannot be told from what others send: "
                "name the addresses it sends from in router.addresses"
            )
        return found

    # ---- network -------------------------------------------------------------------------------------

    def network(self, replica: Replica) -> Json | None:
        """Return the host's own network. Refused where it is not known from where our SSH comes, or the router's does.

        On other machines nothing may change; on this one other ports are not named in any rule.
        """
        entry, machine = self.entry(replica.name), self.machine(replica.host)
        router, driver = self._router(replica), self._driver(machine)
        if driver in router:
            raise Refused(
                f"{replica.name}: the drill reaches it from {driver}, the router's own address, and what spares "
                "our SSH would spare the router: run it from another machine"
            )
        return {
            "netns": None,
            "port": entry.port,
            **self._ports(replica, entry.port),
            "peers": {"router": router},
            "management": [] if ":" in driver else [driver],  # no rule of ours is for IPv6
            "kept_ports": sorted({one.ssh_port for one in machine.entries}),
            "bystanders": {one.name: {"host": one.name} for one in self.machines if one is not machine},
        }

    def _driver(self, machine: Machine) -> str:
        driver = machine.host.address_of_driver() if isinstance(machine.host, KnowsDriver) else ""
        if not driver:
            raise Refused(f"{machine.name}: it does not say from where our SSH comes, which no rule may cut")
        return driver.removeprefix(_MAPPED)
