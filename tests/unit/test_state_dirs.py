"""Whatever a fault writes on a machine lies below the folder that this machine's entries name, and no other."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from drills import target, yamlfile
from drills.faults import gpu_caps, gpu_preflight, gpu_reset_crash
from drills.faults.gpu_reset import GpuReset
from drills.faults.gpu_reset_units import UnitsReset
from drills.faults.noop import Noop
from drills.faults.thermal_throttle import ThermalThrottle, _Survey
from drills.hosts.custody import HostsCustody
from drills.hosts.machines import CUSTODY_DIR, grouped
from drills.hosts.target import HostsTarget
from drills.model import Fault, Json, Receipt, Replica
from drills.probes import gpu_host
from drills.proxies import LedgerProxies
from tests.unit.gpu_node import a_gpu

TEXT = """
targets:
  metal:
    endpoint: {url: "http://llm.example/v1", model: m}
    sla: {ttft: {p99: 1s}, e2e: {p99: 12s}, max_gap: {p99: 2s}, errors: 1%}
    hosts:
      - {name: g1, address: 10.0.0.1, user: drill, unit: vllm.service, state_dir: /srv/of-g1/drill, clocks: none}
      - {name: g2, address: 10.0.0.2, user: drill, unit: vllm.service, state_dir: /srv/of-g2/drill, clocks: none}
    router: {kind: other, addresses: [10.0.0.5]}
"""
NAMES = ("g1", "g2")
RECEIPT = "0a1b2c3d-0-x"
GPU: Json = dict.fromkeys(gpu_caps.NOTED, 700) | a_gpu(sm_clock_max_mhz=1980)
NOW: Json = {"source": "nvml", "lab": False, "gpus": {f"GPU-{name}": GPU for name in NAMES}}


class Host:
    """Nothing is asked of it."""

    def __init__(self, name: str) -> None:
        self.name, self.python = name, f"/srv/of-{name}/drill/lib/0/python"


class Units:
    """The units of a host, one of which is the replica's."""

    def __init__(self, host: Host) -> None:
        self.host = host

    def unit_of(self, victim: str) -> str:
        return f"vllm-{victim}.service"

    def survey(self) -> Json:
        return {"holders": []}

    def to_pause(self, *_: object) -> dict[str, str]:
        return {"dcgm.service": "u"}

    def command_of_start(self, unit: str, note: str, bases: Sequence[str] = ()) -> list[str]:
        return [self.host.python, unit, note, *bases]


class Metal(HostsTarget):
    """Two machines, of which nothing is asked."""

    def __init__(self) -> None:
        spec = target.from_document(yamlfile.parse(Path("d.yaml"), TEXT)).pick("metal")
        connect: Any = lambda entry: Host(entry.name)  # noqa: E731 - a Host in all that is asked of it here
        machines = grouped(spec.hosts, connect)
        super().__init__(spec, machines, HostsCustody(machines, spec.name))

    def replicas(self) -> list[Replica]:
        return [Replica(n, "u", "primary", "", ready=True, host=n, gpus=(f"GPU-{n}",), gate="/g") for n in NAMES]

    def unit_host(self, name: str) -> Any:
        return Units(self.host(name))  # type: ignore[arg-type] # one of ours


@pytest.fixture
def metal(monkeypatch: pytest.MonkeyPatch) -> Metal:
    found = Metal()
    monkeypatch.setattr(gpu_host, "look", lambda target, host: NOW)
    for look in ("of_machine", "of_gpu"):
        monkeypatch.setattr(gpu_preflight, look, lambda *_: [])
    monkeypatch.setattr(gpu_reset_crash, "watchers", lambda *_: {"dcgm.service": "u"})
    monkeypatch.setattr(UnitsReset, "preflight", lambda *_: [])
    survey = _Survey(
        [], dict.fromkeys(NAMES, NOW), {gpu: [990, 1980] for gpu in NOW["gpus"]}, dict.fromkeys(NOW["gpus"], ())
    )
    monkeypatch.setattr(ThermalThrottle, "_survey", lambda *_: survey)
    port = {"listen": 21100, "upstream": "127.0.0.1:8000", "iptables": "iptables", "kind": "nft", "snapshot": {}}
    monkeypatch.setattr(found.fronts, "_ask", lambda command, spots: [port for _ in spots])
    return found


FAULTS: dict[str, Fault] = {
    "noop": Noop(Noop.Params(), "hosts"),
    "thermal-throttle": ThermalThrottle(ThermalThrottle.Params(how="clocks"), "hosts"),
    "gpu-reset, crash": GpuReset(GpuReset.Params(how="crash"), "hosts"),
    "gpu-reset, planned": GpuReset(GpuReset.Params(how="planned"), "hosts"),
    "ledger proxies": LedgerProxies(LedgerProxies.Params(), "hosts"),
}


def aimed(fault: Fault, metal: Metal, *names: str) -> Receipt:
    victims = [replica for replica in metal.replicas() if replica.name in names]
    return fault.aim(metal, victims, run="0a1b2c3d", receipt=RECEIPT, deadline_s=60.0)


def whose(told: object) -> set[str]:
    """Return of which machines there are folders in it."""
    return set(re.findall(r"/srv/of-(g\d)/drill/", json.dumps(told)))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_deed_on_one_machine_knows_no_folder_of_another(metal: Metal, fault: str, name: str) -> None:
    made = aimed(FAULTS[fault], metal, name)
    assert whose([made.prior, made.undo]) == {name}


@pytest.mark.parametrize("fault", ["thermal-throttle", "ledger proxies"])
def test_of_a_deed_on_several_machines_each_has_its_own(metal: Metal, fault: str) -> None:
    made = aimed(FAULTS[fault], metal, *NAMES)
    steps = [(step["host"], whose(step)) for step in made.undo if whose(step)]
    assert {host for host, _ in steps} == set(NAMES)
    assert all(found == {host} for host, found in steps)


def test_a_proxy_asks_for_its_receipt_where_receipts_lie(metal: Metal) -> None:
    [spot] = aimed(FAULTS["ledger proxies"], metal, "g2").prior["spots"]
    assert spot["receipt"] == f"{CUSTODY_DIR}/receipts/{RECEIPT}.json"
