"""The lab as a target: `lab.json` says where everything is, the supervisor's control API says how it is."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from urllib.parse import urlsplit

import urllib3

from drills.access.filecustody import FileCustody
from drills.access.local import LocalHost
from drills.custody import Custody
from drills.errors import Refused
from drills.lab.client import TIMEOUT, Lab, LabError
from drills.lab.config import SLA
from drills.model import Host, Json, Replica, Sla

GRACE_S = 30.0  # as Kubernetes gives a pod that says nothing else


def state_dir(folder: Path) -> str:
    """Return where drills of the lab in that folder keep what is theirs."""
    return str(folder / "drill")


def custody(folder: Path, target: str = "lab") -> FileCustody:
    """Return the custody of the lab in that folder, be it up or not."""
    return FileCustody(LocalHost(), state_dir(folder), target)


class LabTarget:
    """Implements Target, Embedded, CanDelete, HasLedger, HasEvents, HasGpus, HasProxies and HasNetwork over a lab."""

    kind = "lab"
    clock_error_s = 0.0  # one machine has one clock

    def __init__(self, lab: Lab, *, name: str = "lab", sla: Sla = SLA, entry: str | None = None) -> None:
        self.lab, self.name, self.sla = lab, name, sla
        data = lab.data
        self.custody: Custody = custody(lab.dir, name)
        self.endpoint = f"{data['entry'][entry]}/v1" if entry else lab.url
        self.model = str(data["model"])
        self.fallback_models = tuple(data["fallback_models"])
        self.expected_replicas = int(data["expected_replicas"])
        self.capacity_per_replica: float | None = data["capacity_per_replica"]
        self.prometheus: str | None = data["prometheus"]
        self.alertmanager: str | None = data["alertmanager"]
        self.router_metrics: str | None = data["router_metrics"]
        self._control = lab.control()
        self._host = LocalHost()
        self._http = urllib3.PoolManager(retries=False, timeout=TIMEOUT)

    # ---- Target --------------------------------------------------------------------------------------

    def replicas(self) -> list[Replica]:
        """Return all replicas as they are now. Raises LabError when the supervisor does not answer."""
        return [self._replica(row) for row in self._control.status()["replicas"]]

    def reach(self, replicas: Sequence[Replica], tell: Callable[[str, Json], None]) -> list[Replica]:  # noqa: ARG002
        """Return them: their processes are this machine's, so nothing is made."""
        return list(replicas)

    def control_host(self) -> Host:
        """Return this machine."""
        return self._host

    def host(self, name: str) -> Host:
        """Return this machine; the lab has no other (Refused)."""
        if name != self._host.name:
            raise Refused(f"target {self.name}: no host '{name}'; the lab runs on '{self._host.name}' only")
        return self._host

    def state_dir_of(self, host: str) -> str:  # noqa: ARG002 - of the protocol
        """Return the lab's own folder for what drills write."""
        return state_dir(self.lab.dir)

    def receipts_dir_of(self, host: str) -> str:
        """Return where receipts lie."""
        return f"{self.state_dir_of(host)}/receipts"

    def facts(self) -> Json:
        """Return what the lab is made of."""
        keys = ("versions", "notes", "entry", "port_base", "defect", "prometheus", "alertmanager", "dcgm", "nvml_lib")
        return {key: self.lab.data[key] for key in keys}

    # ---- abilities -----------------------------------------------------------------------------------

    def keep_alive(self) -> None:
        """Tell the lab that somebody still needs it. Raises LabError."""
        self._control.touch()

    def load_core(self) -> int | None:
        """Return the core that the lab's engines leave to the load; None when they take none for themselves."""
        core: int | None = self.lab.data.get("client_cpu")
        return core

    def delete_replica(self, replica: Replica, *, grace_s: float | None) -> None:
        """Delete that incarnation; the supervisor makes a new one (Refused when the uid does not match any more)."""
        self._control.delete(replica.name, replica.uid, GRACE_S if grace_s is None else grace_s)

    def replica_events(self, after: int) -> list[Json]:
        """Return what happened to the replicas after event number `after`."""
        return self._control.events(after)

    def notifications(self, after: int) -> list[Json]:
        """Return the alert notifications that came after number `after`."""
        return self._control.notifications(after)

    def network(self, replica: Replica) -> Json | None:
        """Return the replica's namespace, and who speaks to it from where; None in a lab without namespaces."""
        net, rows = self.lab.data.get("network"), self._control.status()["replicas"]
        places = {row["name"]: row["netns"] for row in rows if row["netns"] is not None}
        if net is None or replica.name not in places:
            return None
        [row] = [row for row in rows if row["name"] == replica.name]
        others = {name: place for name, place in places.items() if name != replica.name}
        return {
            "netns": places[replica.name],
            "port": urlsplit(row["proxy"]).port,
            "peers": {"router": [net["router"]["address"]]},
            "management": [net["management"]],
            "bystanders": {"main": None, "router": net["router"]["netns"], **others},
        }

    def collect_ledger(self, since_mono: float) -> list[Json]:
        """Return the attempts that began since then, by start, those still open included."""
        attempts: list[Json] = []
        for row in self._control.status()["replicas"]:
            # The open ones first: an attempt that ends between the two looks is then seen twice, never lost.
            still_open = self._proxy(row, "GET", "/ledger/open")
            self._proxy(row, "POST", "/flush")
            ended = _lines(Path(row["ledger"]))
            known = {(a["id"], a["start"]) for a in ended}
            attempts += ended + [a for a in still_open if (a["id"], a["start"]) not in known]
        return sorted((a for a in attempts if a["start"] >= since_mono), key=lambda a: (a["start"], a["replica"]))

    def proxy(self, replica: Replica) -> Json:
        """Return where the replica's ledger proxy is (Refused when the lab has no such replica)."""
        for row in self._control.status()["replicas"]:
            if row["name"] == replica.name:
                return {"listen": row["proxy"], "control": row["proxy_control"], "faults_dir": row["faults_dir"]}
        raise Refused(f"target {self.name}: no replica '{replica.name}'")

    def nvidia_smi(self, host: str) -> list[str]:
        """Return the stand-in's path."""
        self.host(host)
        return [str(self.lab.data["nvidia_smi"])]

    def clock_lock(self, replica: str) -> tuple[int, ...]:  # noqa: ARG002 - of the protocol
        """Return none: nobody but a drill locks the clocks of a lab."""
        return ()

    def gpu_device(self, uuid: str) -> str:
        """Return the device file of the GPU (Refused when the lab has no such GPU)."""
        gpus = json.loads(self._gpu_file().read_text())["gpus"]
        for gpu in gpus:
            if gpu["uuid"] == uuid:
                return str(gpu["device"])
        raise Refused(f"target {self.name}: no GPU {uuid}; there are {', '.join(gpu['uuid'] for gpu in gpus)}")

    # ---- inside --------------------------------------------------------------------------------------

    def _gpu_file(self) -> Path:
        return self.lab.dir / "gpu" / "state.json"

    def _replica(self, row: Json) -> Replica:
        return Replica(
            name=row["name"],
            uid=row["uid"],
            role=row["role"],
            url=row["engine"],
            ready=row["ready"],
            started_wall=row["started_wall"],
            restarts=row["restarts"],
            host=self._host.name,
            pid=row["pid"],
            pid_start=row["pid_start"],
            engine_pid=row["engine_pid"],
            engine_start=row["engine_start"],
            gpus=tuple(row["gpus"]),
            gate=row["gate"],
            labels={"replica": row["name"], "role": row["role"], "model": row["model"]},
            state=row["state"],
            health_url=f"{row['proxy']}/health",
        )

    def _proxy(self, row: Json, method: str, path: str) -> list[Json]:
        url = f"{row['proxy_control']}{path}"
        try:
            answer = self._http.request(method, url)
        except urllib3.exceptions.HTTPError as error:
            raise LabError(f"lab: proxy of {row['name']}: {url} does not answer ({type(error).__name__})") from None
        if answer.status != 200:
            raise LabError(f"lab: proxy of {row['name']}: {method} {path}: HTTP {answer.status}")
        data = answer.json()
        return data if isinstance(data, list) else []


def _lines(path: Path) -> list[Json]:
    """Return the complete lines of a ledger; the last one may be torn."""
    try:
        text = path.read_text()
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
