"""The GPU hosts of the tests: `python -m tests.hosts.fleet up | down | status`, and `Fleet` for tests.

fleet.targets_file(folder)            drill.yaml with the target `gpu-hosts`
fleet.drill_argv(["run", "noop"])     the words that run `drill` where the hosts can be reached: in ctl
fleet.host("h1").run(["iptables-save"])
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ruamel.yaml import YAML

from drills.model import Json
from tests.hosts import layout, life, links, monitored, state
from tests.hosts.layout import CONTROL, ROUTER, Machine
from tests.machines.errors import MachineError

TARGET = "gpu-hosts"
ALERT_TIMES = {"scrape": "1s", "ramp": "1s", "evaluation": "1s", "for": "5s"}
COMMAND_TIMEOUT_S, READY_TIMEOUT_S, POLL_S = 60.0, 120.0, 0.2
Done = subprocess.CompletedProcess[str]


@dataclass(frozen=True)
class Host:
    """One GPU host, or the router's machine."""

    machine: Machine

    @property
    def name(self) -> str:
        """Its name: h1, h2, h3, or rtr."""
        return self.machine.name

    @property
    def address(self) -> str:
        """Where the driver reaches it."""
        return self.machine.manage

    @property
    def pid1(self) -> int:
        """The pid of its systemd, as this machine counts. Raises OSError while it is down."""
        return state.first_pid(self.name)

    @property
    def root(self) -> Path:
        """Its root folder, seen from this machine, while it is up."""
        return Path(f"/proc/{self.pid1}/root")

    @property
    def gpu_state(self) -> Path:
        """The file of its GPUs' stand-in, for `drills.lab.gpu.state`, while it is up."""
        return self.root / layout.GPU_STATE.relative_to("/")

    @property
    def gpus(self) -> list[str]:
        """The UUIDs of its GPUs; its engine holds the first."""
        return [str(gpu["uuid"]) for gpu in json.loads(self.gpu_state.read_text())["gpus"]]

    def run(
        self, argv: Sequence[str], timeout_s: float = COMMAND_TIMEOUT_S, *, stdin: str = "", check: bool = True
    ) -> Done:
        """Run a command in it, as root, past sshd and network; AssertionError when it fails and `check`."""
        return _run([*life.inside(self.name), *argv], timeout_s, stdin, check=check)

    def answers(self) -> bool:
        """Whether its sshd takes connections of the driver."""
        connect = f"exec 3<>/dev/tcp/{self.address}/{layout.SSH_PORT}"
        argv = [*life.inside(CONTROL), "timeout", "2", "bash", "-c", connect]
        return _run(argv, COMMAND_TIMEOUT_S, check=False).returncode == 0

    def engine_ready(self) -> bool:
        """Whether its engine answers the driver."""
        url = f"http://{self.address}:{layout.ENGINE_PORT}/health"
        argv = ["curl", "--silent", "--fail", "--max-time", "2", url]
        return _run([*life.inside(CONTROL), *argv], COMMAND_TIMEOUT_S, check=False).returncode == 0

    def wait_ready(self) -> None:
        """Wait until its engine answers the driver."""
        life.wait(f"the engine of {self.name} is ready", self.engine_ready, READY_TIMEOUT_S)

    def cut_driver(self) -> None:
        """Cut the driver's way to it; nothing is refused, nothing arrives. The router's way stays."""
        self._link("down")

    def mend_driver(self) -> None:
        """Mend the driver's way to it; returns when it can be gone again."""
        self._link("up")
        life.wait(f"sshd of {self.name} answers", self.answers, READY_TIMEOUT_S)

    def _link(self, to: str) -> None:
        with Path(f"/proc/{state.first_pid(CONTROL)}/ns/net").open() as network:
            links.ip(f"link set {self.name} {to}", network=network.fileno())

    def tear_down(self) -> None:
        """Take its power away: processes, mounts, rules and links are gone at once, the disk stays."""
        with life.locked():
            life.power_off(self.name)

    def rebuild(self) -> None:
        """Boot it again, from its disk and with its host key; returns once its units have begun and sshd answers."""
        with life.locked():
            life.boot(self.name)
        life.wait_booted(self.name)
        life.wait(f"sshd of {self.name} answers", self.answers, READY_TIMEOUT_S)


class Fleet:
    """The hosts that are up."""

    names = layout.HOSTS

    def host(self, name: str) -> Host:
        """Return the host of that name; `rtr` is the router's machine."""
        return Host(layout.machine(name))

    @property
    def hosts(self) -> list[Host]:
        """All GPU hosts."""
        return [self.host(name) for name in self.names]

    @property
    def key(self) -> Path:
        """The driver's private key, for the users root and ops."""
        return state.keys() / "driver"

    def host_key(self, name: str) -> str:
        """Return the public host key of a machine: kind and base64."""
        return " ".join((state.keys() / f"{name}.pub").read_text().split()[:2])

    def write_known_hosts(self, file: Path) -> Path:
        """Write what a careful person would have in known_hosts."""
        lines = [
            f"{address} {self.host_key(machine.name)}\n"
            for machine in layout.ALL
            for address in (machine.manage, machine.service)
        ]
        file.write_text("".join(lines))
        return file

    @property
    def endpoint(self) -> str:
        """Where users send requests: the application in front of the router."""
        return f"http://{layout.machine(ROUTER).manage}:{layout.EDGE_PORT}/v1"

    @property
    def router_address(self) -> str:
        """What the hosts see of the router: the source of its connections."""
        return layout.machine(ROUTER).service

    def wait_settled(self) -> None:
        """Wait until all engines, the router and the application serve, Prometheus knows, and no alert is on."""
        for host in self.hosts:
            host.wait_ready()
        life.wait("the application serves", self._serves, READY_TIMEOUT_S)
        if monitored.there():
            life.wait("Prometheus sees everything and no alert", self._watched, READY_TIMEOUT_S)

    def _serves(self) -> bool:
        """Whether each of a few requests, which go round the engines, is answered by the model that it names."""
        ask = {"model": layout.MODEL, "prompt": "Are you there?", "max_tokens": 1}
        argv = ["--json", json.dumps(ask), f"{self.endpoint}/completions"]
        return all('"model":"lab-chat"' in (self._curl(*argv) or "") for _ in self.names)

    def _watched(self) -> bool:
        url = f"http://{layout.machine(ROUTER).manage}:{layout.PROMETHEUS_PORT}/api/v1/query"
        said = self._curl("--get", "--data-urlencode", f"query={monitored.settled()}", url)
        return said is not None and bool(json.loads(said)["data"]["result"])

    def _curl(self, *words: str) -> str | None:
        """Return the body of an answer that is no error, as the driver would get it; None when there is none."""
        argv = self.control_argv(["curl", "--silent", "--fail", "--max-time", "3", *words])
        done = _run(argv, COMMAND_TIMEOUT_S, check=False)
        return done.stdout if done.returncode == 0 else None

    def target(self, user: str = "root") -> Json:
        """Return the target as drill.yaml has it."""
        router = f"http://{layout.machine(ROUTER).manage}"
        monitored_ = {
            "prometheus": {"url": f"{router}:{layout.PROMETHEUS_PORT}", **ALERT_TIMES},
            "alertmanager": {"url": f"{router}:{layout.ALERTMANAGER_PORT}", "group_wait": "0s"},
        }
        known = self.write_known_hosts(state.keys() / "known_hosts")
        return {
            "kind": "hosts",
            "endpoint": {"url": self.endpoint, "model": layout.MODEL},
            "sla": {"ttft": {"p99": "1s"}, "e2e": {"p99": "6s"}, "max_gap": {"p99": "2s"}, "errors": "1%"},
            "hosts": [self._declared(host, user, known) for host in self.hosts],
            "router": {
                "kind": "vllm-router",
                "metrics": f"{router}:{layout.ROUTER_METRICS_PORT}/metrics",
                "addresses": [self.router_address],
            },
            "degradation": {
                "fallback_models": [layout.FALLBACK_MODEL],
                "cached": {"header": "X-Cache", "value": "hit"},
            },
            **(monitored_ if monitored.there() else {}),
            "capacity": {"per_replica": "12/s"},
            "limits": {"environment": "test", "min_healthy": 1, "max_victims": "34%", "allow_route_faults": True},
        }

    def _declared(self, host: Host, user: str, known: Path) -> Json:
        return {
            "name": host.name,
            "address": host.address,
            "user": user,
            "key": str(self.key),
            "known_hosts": str(known),
            "unit": layout.UNIT,
            "port": layout.ENGINE_PORT,
            "gpus": [host.gpus[0]],
            "clocks": "none",
        }

    def targets_file(self, folder: Path, user: str = "root") -> Path:
        """Write a drill.yaml whose default target are these hosts."""
        file = folder / "drill.yaml"
        with file.open("w") as out:
            YAML().dump({"default_target": TARGET, "targets": {TARGET: self.target(user)}}, out)
        return file

    def drill_argv(self, words: Sequence[str]) -> list[str]:
        """Return the words that run `drill` in ctl, where the hosts can be reached."""
        return self.control_argv([sys.executable, "-m", "drills.cli", *words])

    def control_argv(self, argv: Sequence[str]) -> list[str]:
        """Return the words that run a command in ctl: this machine's files and processes, the driver's network."""
        return [*life.inside(CONTROL), *argv]


def _run(argv: Sequence[str], timeout_s: float, stdin: str = "", *, check: bool) -> Done:
    done = subprocess.run(argv, input=stdin, capture_output=True, text=True, timeout=timeout_s, check=False)
    assert not check or done.returncode == 0, f"{' '.join(argv)}: {done.returncode}: {done.stderr or done.stdout}"
    return done


def _up() -> None:
    began = time.monotonic()
    with life.in_use():
        said = "came up" if life.up() else "are up already"
        Fleet().wait_settled()
        life.kept().touch()
    print(f"test hosts {said} in {time.monotonic() - began:.1f} s", file=sys.stderr)


def _down() -> None:
    began = time.monotonic()
    life.down()
    print(f"test hosts: down in {time.monotonic() - began:.1f} s", file=sys.stderr)


def _status() -> None:
    for name in (CONTROL, *(machine.name for machine in layout.ALL)):
        address = "" if name == CONTROL else layout.machine(name).manage
        print(f"{name:5} {state.pid(name) or '-':<8} {address}")
    with suppress(OSError):
        print("nsenter:", *life.inside(CONTROL))


def main() -> int:
    """Do what the word says; 0, or 1 with one line."""
    verbs = {"up": _up, "down": _down, "status": _status}
    verb = verbs.get(sys.argv[1]) if len(sys.argv) == 2 else None
    if verb is None:
        print(f"usage: python -m tests.hosts.fleet {' | '.join(verbs)}", file=sys.stderr)
        return 64
    try:
        verb()
    except MachineError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
