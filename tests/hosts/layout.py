"""What the test hosts are: names, addresses, ports and paths. Nothing here touches the machine.

    ctl (driver, load)  198.19.1.2        manage: bridge in ctl       rtr .1   h1 .11   h2 .12   h3 .13
    rtr (router, edge, Prometheus)        service: bridge in rtr      198.19.2.x: the router's way to the engines
                                          watch: the same bridge      198.19.3.x: Prometheus's way to everything

A host's link to `manage` can be cut without the router noticing, and a rule against the router (198.19.2.1) harms
neither the driver nor Prometheus.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

TREE = Path(__file__).resolve().parents[2]
CONTROL, ROUTER = "ctl", "rtr"
CONTROL_NUMBER, ROUTER_NUMBER, FIRST_HOST_NUMBER = 2, 1, 11
MANAGE, SERVICE, WATCH = "198.19.1", "198.19.2", "198.19.3"
BITS = 24
HOSTS = ("h1", "h2", "h3")
#: Here everything that a session started ends with it: PAM, logind, KillUserProcesses=yes; elsewhere nothing does.
STRICT = "h3"
UNIT, TELEMETRY = "vllm.service", "dcgm-exporter.service"
ENGINE_PORT, EXPORTER_PORT, SSH_PORT = 8000, 9400, 22
EDGE_PORT, SMALL_PORT, ROUTER_PORT, ROUTER_METRICS_PORT = 8000, 8001, 8080, 29000
PROMETHEUS_PORT, ALERTMANAGER_PORT, PAGER_PORT = 9090, 9093, 9099
MODEL, FALLBACK_MODEL = "lab-chat", "lab-small"
STARTUP_S = 15.0
GPUS = 2  # on each host; the engine holds the first
#: The stand-in's state, anew at each boot as a GPU's is.
GPU_STATE = Path("/run/gpu-stand-in/state.json")
#: A unit waits here, at each start, for whoever holds the file: `%n` is the unit's name.
GATE = "/run/drill-gate.%n"
SYSTEMD = Path("/lib/systemd/systemd")
#: Who may log in: root, and one who has to say `sudo -n`.
USERS = ("root", "ops")


@dataclass(frozen=True)
class Machine:
    """One machine with an init system of its own: a GPU host or the router's."""

    name: str
    number: int  # the last part of its addresses

    @property
    def manage(self) -> str:
        """Where the driver reaches it."""
        return f"{MANAGE}.{self.number}"

    @property
    def service(self) -> str:
        """Where the router reaches it, and what it sees of the router."""
        return f"{SERVICE}.{self.number}"

    @property
    def watch(self) -> str:
        """Where Prometheus reaches it."""
        return f"{WATCH}.{self.number}"

    @property
    def is_router(self) -> bool:
        """Whether it is the router's."""
        return self.name == ROUTER


ALL = (Machine(ROUTER, ROUTER_NUMBER), *(Machine(name, FIRST_HOST_NUMBER + i) for i, name in enumerate(HOSTS)))


def machine(name: str) -> Machine:
    """Return the machine of that name."""
    return next(one for one in ALL if one.name == name)


def folder() -> Path:
    """Return where the hosts are kept: $DRILL_HOSTS_DIR, else drills-hosts in the user's cache."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get("DRILL_HOSTS_DIR") or home / "drills-hosts").absolute()
