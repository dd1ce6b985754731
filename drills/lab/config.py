"""What a lab is made of, as a value that goes to `config.json` and back."""

from __future__ import annotations

import dataclasses
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from drills.errors import FileProblem, nearest
from drills.model import Bound, Json, Sla

SLA = Sla(ttft=Bound(0.99, 1.0), e2e=Bound(0.99, 6.0), max_gap=Bound(0.99, 2.0), errors=0.01)
SERVICE = "lab"
#: A lab that a run started ends by itself when nobody touched it for this long.
RUN_LIVES_S = 600.0
#: What a real replica takes on a small machine, most of it imports (25 to 90 s were seen).
VLLM_START_S = 60.0
#: A smaller model answers faster, and one replica of it is sized for the full rate of the shipped experiments.
SMALL_ENGINE = (
    "--max-num-seqs=64",
    "--step-base-ms=6",
    "--step-per-seq-ms=0.2",
    "--prefill-tokens-per-s=100000",
)


def lab_dir() -> Path:
    """Return the lab's folder: $DRILL_LAB_DIR, else drill/lab in the user's state folder."""
    if named := os.environ.get("DRILL_LAB_DIR"):
        return Path(named).absolute()
    state = os.environ.get("XDG_STATE_HOME")
    return (Path(state) if state else Path.home() / ".local" / "state") / "drill" / "lab"


@dataclass(frozen=True)
class Ports:
    """The fixed offsets from the lab's first port; everything listens on 127.0.0.1."""

    base: int

    @property
    def edge(self) -> int:
        """The user's application in front of the router."""
        return self.base

    @property
    def router(self) -> int:
        """The vllm-router."""
        return self.base + 1

    @property
    def router_metrics(self) -> int:
        """The vllm-router's own metrics."""
        return self.base + 2

    @property
    def dcgm(self) -> int:
        """The GPU exporter."""
        return self.base + 4

    @property
    def control(self) -> int:
        """The supervisor's control API."""
        return self.base + 5

    @property
    def prometheus(self) -> int:
        """Prometheus."""
        return self.base + 90

    @property
    def alertmanager(self) -> int:
        """Alertmanager."""
        return self.base + 93

    def engine(self, index: int) -> int:
        """The engine of replica `index`."""
        return self.base + 100 + index

    def proxy(self, index: int) -> int:
        """The ledger proxy in front of that engine."""
        return self.base + 110 + index

    def proxy_control(self, index: int) -> int:
        """The control port of that proxy."""
        return self.base + 120 + index


@dataclass(frozen=True)
class LabConfig:
    """Everything that can differ between two labs. Times are seconds, rates per second.

    The `*_args` are appended to the command lines of the parts they name, so they win over the defaults.
    """

    port_base: int = 18000
    replicas: int = 3
    model: str = "lab-chat"
    fallback_model: str = "lab-small"
    gpus: int = 4
    seed: int = 0
    startup_s: float = 15.0
    ready_within_s: float | None = None  # None: three times startup_s and 30 s
    engine: str = "emulator"  # emulator | vllm: what the primaries are
    vllm: str | None = None  # the program, for vllm
    capacity_per_replica: float = 12.0
    entry: str = "edge"  # where users come in: edge | router
    first_token_deadline_ms: int = 400
    monitoring: bool = True
    network: bool | None = None  # namespaces of its own; None: where the user may make them
    alert_for_s: float = 5.0
    engine_args: tuple[str, ...] = ()
    fallback_engine_args: tuple[str, ...] = SMALL_ENGINE
    router_args: tuple[str, ...] = ()
    edge_args: tuple[str, ...] = ()
    # switches of planted defects
    defect: str | None = None
    restart: str = "always"  # always | on-failure (not after exit status 0) | never
    restart_args: tuple[str, ...] = ()  # what a replica's engine gets besides when it is not its first start
    deletes_neighbour: bool = False  # whoever deletes a replica takes the next primary down with it
    proxy_health: str = "honest"  # honest | passthrough
    alerts_left_out: tuple[str, ...] = ()
    alert_labels: tuple[str, ...] = ()  # NAME=VALUE, on every alert, over its own
    alerts_expect: int | None = None  # how many primaries the rules expect; None: as many as there are
    # who it belongs to
    owner: str = "user"  # user | run:ID
    lives_s: float | None = None  # ends when not touched for this long; None: until taken down

    @property
    def ports(self) -> Ports:
        """Where everything listens."""
        return Ports(self.port_base)

    @property
    def names(self) -> tuple[str, ...]:
        """All replicas, in the order of their ports: the primaries, then the fallback."""
        return (*(f"replica-{i}" for i in range(self.replicas)), "small-0")

    @property
    def likely_start_s(self) -> float:
        """How long the start is likely to take."""
        return self.startup_s if self.engine == "emulator" else VLLM_START_S

    @property
    def ready_deadline_s(self) -> float:
        """How long a replica may take to become ready when the lab starts."""
        return self.ready_within_s if self.ready_within_s is not None else 3 * self.startup_s + 30

    def all_ports(self) -> dict[int, str]:
        """Return every port the lab listens on, with the name of what listens there."""
        p = self.ports
        ports = {p.edge: "edge", p.router: "router", p.router_metrics: "router metrics", p.dcgm: "GPU exporter"}
        ports[p.control] = "control"
        if self.monitoring:
            ports |= {p.prometheus: "prometheus", p.alertmanager: "alertmanager"}
        for index, name in enumerate(self.names):
            ports |= {
                p.engine(index): name,
                p.proxy(index): f"proxy of {name}",
                p.proxy_control(index): f"proxy control of {name}",
            }
        return ports

    def to_json(self) -> Json:
        """Return the config as plain data."""
        return dataclasses.asdict(self)


def from_json(data: Json, where: Path | str = "config") -> LabConfig:
    """Return the config that `to_json` wrote; unknown keys are refused (FileProblem)."""
    fields = {field.name: field for field in dataclasses.fields(LabConfig)}
    for key in data:
        if key not in fields:
            raise FileProblem(where, f"no such lab setting{nearest(key, fields)}", key=key)
    values: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in data.items()}
    return LabConfig(**values)


def load(path: Path) -> LabConfig:
    """Read a config file (FileProblem when it is not there or not JSON)."""
    try:
        data = json.loads(path.read_text())
    except FileNotFoundError:
        raise FileProblem(path, "no such file") from None
    except ValueError as error:
        raise FileProblem(path, f"not JSON: {error}") from None
    return from_json(data, path)
