"""What the router sends to GPU hosts: where it is lost or led away, and when that is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from drills import target, yamlfile
from drills.errors import DrillError, Refused
from drills.faults.packet_loss import PacketLoss
from drills.hosts.fronted import FrontedHosts
from drills.hosts.machines import Machine, grouped
from drills.model import Json, Replica
from drills.targetfile import GpuHost

ROUTER, DRIVER = "10.0.0.5", "10.0.9.9"
TEXT = """
targets:
  metal:
    endpoint: {url: "http://llm.example/v1", model: m}
    sla: {ttft: {p99: 1s}, e2e: {p99: 12s}, max_gap: {p99: 2s}, errors: 1%}
    hosts:
      - {name: gpu-1, address: 10.0.0.7, user: drill, unit: vllm.service}
      - {name: gpu-1b, address: 10.0.0.7, user: drill, unit: vllm-b.service, port: 8001}
      - {name: gpu-2, address: 10.0.0.8, user: drill, unit: vllm.service, state_dir: /srv/drill}
    router: {kind: other, addresses: [10.0.0.5]}
"""


class Host:
    """A machine that says from where the driver comes."""

    python = "/var/lib/drill/lib/0/python"

    def __init__(self, entry: GpuHost, driver: str = DRIVER) -> None:
        self.name, self._driver = entry.name, driver

    def address_of_driver(self) -> str:
        return self._driver


class Metal(FrontedHosts):
    """Two machines with three units; nothing is asked of them."""

    def __init__(self, text: str = TEXT, driver: str = DRIVER) -> None:
        self.spec = target.from_document(yamlfile.parse(Path("d.yaml"), text)).pick("metal")
        connect: Any = lambda entry: Host(entry, driver)  # noqa: E731 - a Host in all that is asked of it here
        self.machines = grouped(self.spec.hosts, connect)
        self._begin_fronts()

    def run_now(self) -> str:
        return "0a1b2c3d"

    def host(self, name: str) -> Any:
        return self.machine(name).host

    def machine(self, name: str) -> Machine:
        return next(one for one in self.machines if one.name == name)

    def entry(self, replica: str) -> GpuHost:
        return next(one for one in self.spec.hosts if one.name == replica)


def replica(name: str, host: str, uid: str = "u0") -> Replica:
    return Replica(name, uid, "primary", "", ready=True, host=host)


def net_of(metal: Metal, name: str = "gpu-1", host: str = "gpu-1") -> Json:
    found = metal.network(replica(name, host))
    assert found is not None
    return found


def test_the_network_is_the_hosts_own_and_our_ssh_is_spared() -> None:
    assert net_of(Metal()) == {
        "netns": None,
        "port": 8000,
        "peers": {"router": [ROUTER]},
        "management": [DRIVER],
        "kept_ports": [22],
        "bystanders": {"gpu-2": {"host": "gpu-2"}},
    }
    assert net_of(Metal(), "gpu-1b")["port"] == 8001


def test_our_address_is_written_as_rules_write_it() -> None:
    assert net_of(Metal(driver=f"::ffff:{DRIVER}"))["management"] == [DRIVER]
    assert net_of(Metal(driver="2001:db8::9"))["management"] == [], "no rule of ours is for IPv6"


@pytest.mark.parametrize("driver", [ROUTER, f"::ffff:{ROUTER}", ""])
def test_what_would_spare_the_router_or_cut_us_off_is_refused(driver: str) -> None:
    with pytest.raises(Refused, match="our SSH"):
        Metal(driver=driver).network(replica("gpu-1", "gpu-1"))


def test_a_router_that_nobody_knows_is_asked_for() -> None:
    metal = Metal(TEXT.replace(", addresses: [10.0.0.5]", ""))
    for ask in (metal.network, metal.place):
        with pytest.raises(Refused, match=r"router\.addresses"):
            ask(replica("gpu-1", "gpu-1"))


def test_the_first_rule_spares_us_and_none_names_a_port_of_ssh() -> None:
    fault = PacketLoss(PacketLoss.Params(mode="blackhole"), "hosts")
    rules = fault._rules("0a1b2c3d-0", net_of(Metal()))
    for chain in {rule.chain for rule in rules if rule.what != "jump"}:
        first = next(rule for rule in rules if rule.chain == chain)
        assert f"{DRIVER}/32" in first.words
        assert first.words[-2:] == ("-j", "RETURN")
    named = {
        rule.words[at + 1] for rule in rules for at, word in enumerate(rule.words) if word in ("--dport", "--sport")
    }
    assert named == {"8000"}
    with pytest.raises(DrillError, match="ports: 22 is that of SSH"):
        PacketLoss(PacketLoss.Params(mode="blackhole", ports=(8000, 22)), "hosts")._rules("t", net_of(Metal()))


def test_a_proxy_stands_on_the_hosts_own_network_for_what_the_router_sends() -> None:
    place = Metal().place(replica("gpu-2", "gpu-2"))
    assert place == {
        "uid": "gpu-2",
        "ip": "10.0.0.8",
        "port": 8000,
        "netns": None,
        "sources": [ROUTER],
        "state_dir": "/srv/drill",
        "stays": False,
    }


def test_a_name_of_a_replica_is_no_part_of_a_path(monkeypatch: pytest.MonkeyPatch) -> None:
    metal = Metal(TEXT.replace("name: gpu-2,", 'name: "../gpu 2",'))
    monkeypatch.setattr(metal.fronts, "_ask", lambda command, spots: [{"listen": 21100} for _ in spots])
    [spot] = metal.aim_proxies([replica("../gpu 2", "../gpu 2")], "0a1b2c3d-0p")
    assert spot["folder"] == "/srv/drill/proxies/0a1b2c3d-0p-8000"


def test_another_run_of_a_unit_keeps_its_proxy_and_rules_know_its_port() -> None:
    metal = Metal()
    spot = {
        "uid": "gpu-1",
        "node": "gpu-1",
        "listen": 21100,
        "folder": "/x",
        "state_dir": "/var/lib/drill",
        "stays": False,
    }
    metal.fronts._up["gpu-1"] = spot
    again = [replica("gpu-1", "gpu-1", uid="u1"), replica("gpu-2", "gpu-2")]
    assert [one.name for one in metal.without_proxy(again)] == ["gpu-2"]
    assert net_of(metal)["redirected"] == {"8000": 21100}
    found = metal.proxy(again[0])
    assert found is not None
    assert (found["listen"], found["passing"]) == ("http://127.0.0.1:21100", True)
