"""A service on GPU hosts as a target: each replica is a unit of systemd on a machine that is reached over SSH.

It only reads; what is done on the machines is for the faults, through their hosts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import urllib3

from drills.custody import Custody
from drills.errors import Refused
from drills.hosts.changes import Changes
from drills.hosts.custody import HostsCustody
from drills.hosts.fronted import FrontedHosts
from drills.hosts.gpus import GpusOfHosts
from drills.hosts.machines import Machine, each
from drills.hosts.restarts import stays_down
from drills.hosts.units import Seen, UnitLooks
from drills.model import Host, Json, Replica
from drills.probes import health, http
from drills.target import TargetSpec
from drills.targetfile import GpuHost, value_of
from drills.unitnames import whole

HEALTH_TIMEOUT_S: Final = 1.0
VERSION_TIMEOUT_S: Final = 10.0


class HostsTarget(FrontedHosts, GpusOfHosts):
    """Implements Target, NodeAccess, HasEvents, HasHttp, HasTokens and SharesMonitoring over units of some machines.

    By `FrontedHosts` ledger proxies and HasNetwork too, by `GpusOfHosts` HasGpus and HasUnits.
    """

    kind = "hosts"

    def __init__(self, spec: TargetSpec, machines: Sequence[Machine], custody: HostsCustody) -> None:
        self.spec, self.machines = spec, tuple(machines)
        self.name, self.sla, self.endpoint, self.model = spec.name, spec.sla, spec.url, spec.model
        self.fallback_models = spec.degradation.fallback_models
        self.capacity_per_replica = spec.capacity_per_replica
        self.expected_replicas = spec.expected_replicas or 0
        self.prometheus = spec.prometheus.url if spec.prometheus else None
        self.alertmanager = spec.alertmanager.url if spec.alertmanager else None
        self.router_metrics = spec.router.metrics if spec.router else None
        self.custody: Custody = custody
        self._keeper = custody
        self.alert_labels = spec.service_labels()
        self._by_name = {machine.name: machine for machine in self.machines}
        self._looks = {m.name: UnitLooks(m.host, [entry.unit for entry in m.entries]) for m in self.machines}
        self._pools = {machine.name: http.pool() for machine in self.machines}
        self._changes = Changes()
        self._begin_fronts()
        self._begin_gpus()
        self._order = [entry.name for entry in spec.hosts]

    # ---- Target --------------------------------------------------------------------------------------

    def replicas(self) -> list[Replica]:
        """Return all replicas as they are now, in the order in which they are declared. Raises Unreachable, Refused."""
        found = {one.name: one for here in each(self.machines, self.on).all().values() for one in here}
        return [found[name] for name in self._order]

    def run_now(self) -> str:
        """Return the run that has the target now, nothing between two."""
        return self._keeper.run

    def control_host(self) -> Host:
        """Refuse: no machine carries what belongs to no replica."""
        raise Refused(f"target {self.name}: no host carries what belongs to no replica")

    def host(self, name: str) -> Host:
        """Return the machine of that name. Refused when none is declared."""
        return self.machine(name).host

    def machine(self, name: str) -> Machine:
        """Return the machine of that name. Refused when none is declared."""
        try:
            return self._by_name[name]
        except KeyError:
            raise Refused(f"target {self.name}: no host '{name}'; there are {', '.join(self._by_name)}") from None

    def state_dir_of(self, host: str) -> str:
        """Return what that machine's entries name."""
        return self.machine(host).state_dir

    def receipts_dir_of(self, host: str) -> str:
        """Return where receipts lie, whatever any target names."""
        return f"{self.machine(host).custody_dir}/receipts"

    def entry(self, replica: str) -> GpuHost:
        """Return how the replica of that name is declared."""
        return next(entry for entry in self.spec.hosts if entry.name == replica)

    def facts(self) -> Json:
        """Return where the replicas are, and what keeps them running."""
        seen = self._seen()
        versions = each(self.machines, lambda machine: _versions(machine.host)).all()
        rows = [
            {
                "replica": entry.name,
                "host": machine.name,
                "address": entry.address,
                "unit": whole(entry.unit),
                "port": entry.port,
                "role": entry.role,
                "uid": seen[entry.name].uid,
                "restart": seen[entry.name].policy,
                "restarts": seen[entry.name].restarts,
            }
            for machine in self.machines
            for entry in machine.entries
        ]
        return {
            "versions": {key: sorted({said[key] for said in versions.values()}) for key in ("systemd", "kernel")},
            "hosts": sorted(rows, key=lambda row: self._order.index(row["replica"])),
            "notes": [note for name in self._order for note in _notes(name, seen[name])],
        }

    # ---- abilities -----------------------------------------------------------------------------------

    def reach(self, replicas: Sequence[Replica], tell: Callable[[str, Json], None]) -> list[Replica]:  # noqa: ARG002
        """Return them as they are now: their processes are known, and nothing is made for that."""
        wanted = {replica.name: replica.uid for replica in replicas}
        return [one for one in self.replicas() if wanted.get(one.name) == one.uid]

    def http(self) -> urllib3.PoolManager:
        """Return a pool that reaches the engines, with the endpoint's key."""
        return http.pool(value_of(self.spec.api_key))

    def bearer(self, of: str) -> str | None:
        """Return the token for its Prometheus or Alertmanager. Raises UsageError that names its place."""
        server = self.spec.prometheus if of == "prometheus" else self.spec.alertmanager
        return value_of(server.bearer) if server else None

    def replica_events(self, after: int) -> list[Json]:
        """Return what happened to the units after event number `after`, as it was seen when they were looked at.

        It looks itself; a machine that does not answer hides what happens on it only.
        """
        each(self.machines, self.on)
        return self._changes.after(after)

    def notifications(self, after: int) -> list[Json]:  # noqa: ARG002 - of the protocol
        """Return none: the hosts' Alertmanager notifies people, not us."""
        return []

    # ---- inside --------------------------------------------------------------------------------------

    def _seen(self) -> Mapping[str, Seen]:
        """Return how the unit of each replica is now."""
        looks = each(self.machines, lambda machine: self._looks[machine.name].look()).all()
        return {e.name: looks[m.name][whole(e.unit)] for m in self.machines for e in m.entries}

    def on(self, machine: Machine) -> list[Replica]:
        """Return the replicas of one machine as they are now; what is different is noted."""
        looks, found = self._looks[machine.name].look(), []
        for entry in machine.entries:
            seen = looks[whole(entry.unit)]
            ready = seen.runs and self._is_well(machine, entry)
            self._changes.take(entry.name, entry.role, seen, ready=ready)
            found.append(_replica(machine, entry, seen, self.gpus_of(machine, entry, seen, ready=ready), ready=ready))
        return found

    def _is_well(self, machine: Machine, entry: GpuHost) -> bool:
        said = health.ask(self._pools[machine.name], f"{url_of(entry)}/health", timeout_s=HEALTH_TIMEOUT_S)
        return bool(said["status"] == 200)


def url_of(entry: GpuHost) -> str:
    """Return where the engine of a replica is reached."""
    address = f"[{entry.address}]" if ":" in entry.address else entry.address
    return f"http://{address}:{entry.port}"


def _replica(machine: Machine, entry: GpuHost, seen: Seen, gpus: tuple[str, ...], *, ready: bool) -> Replica:
    pid, start = seen.main or (None, None)
    engine_pid, engine_start = seen.engine or (None, None)
    return Replica(
        name=entry.name,
        uid=seen.uid,
        role=entry.role,
        url=url_of(entry),
        ready=ready,
        restarts=seen.restarts,
        host=machine.name,
        pid=pid,
        pid_start=start,
        engine_pid=engine_pid,
        engine_start=engine_start,
        gpus=gpus,
        gate=seen.gate,
        labels={"host": machine.name, "unit": seen.unit, "role": entry.role},
        state=_word(seen, ready=ready),
    )


def _word(seen: Seen, *, ready: bool) -> str:
    """Return how it is in one word: systemd's own, but for a unit that runs and does not answer yet."""
    if seen.loaded != "loaded":
        return seen.loaded
    if seen.runs:
        return "ready" if ready else "not ready"
    return seen.sub or seen.active


def _notes(name: str, seen: Seen) -> list[str]:
    whys = [why for deed in ("engine", "kill") if (why := stays_down(seen.policy, deed))]
    return [f"{name}: {seen.unit} has Restart={seen.policy}: {why}, and stays down" for why in whys]


def _versions(host: Host) -> Json:
    done = host.run(["systemctl", "--version"], timeout_s=VERSION_TIMEOUT_S)
    words = done.out.split()
    kernel = host.read("/proc/sys/kernel/osrelease")
    return {"systemd": words[1] if len(words) > 1 else "unknown", "kernel": (kernel or "unknown").strip()}
