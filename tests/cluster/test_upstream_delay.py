"""Ledger proxies that a run puts in front of engines in pods: what they see and do, and that nothing of them stays."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from drills.cluster.helpers import HELPER, ROLE
from drills.model import Json
from tests.cluster.driving import EXPERIMENTS, begun, driller, kill_group, place, words
from tests.cluster.emulator import serving
from tests.cluster.served import Served
from tests.lab.drilling import Driller, Ran, events

INSTRUMENT = "ledger-proxies"


@pytest.fixture(scope="module")
def shared(cluster: Path) -> Iterator[Served]:
    with serving(Served, cluster) as made:
        yield made


@pytest.fixture
def drill(tmp_path: Path, cluster: Path, service: Served) -> Driller:
    service.declare(tmp_path)
    return driller(tmp_path, cluster, timeout_s=400.0)


def ledger(ran: Ran) -> list[Json]:
    assert ran.folder is not None
    return [json.loads(line) for line in (ran.folder / "ledger.ndjson").read_text().splitlines()]


def instrument(ran: Ran, event: str) -> list[Json]:
    """Return the data of the events that tell of the proxies."""
    return [e["data"] for e in ran.events(f"beside.{event}") if e["data"]["receipt"].endswith(INSTRUMENT)]


def through(proof: Json) -> list[bool]:
    return [one["through"] and not one["beside"] for one in proof["evidence"]]


def test_every_primary_is_late_and_the_degradation_opens(drill: Driller, service: Served) -> None:
    before = service.uids()
    ran = drill(*words(drill, EXPERIMENTS / "upstream-delay.yaml"))
    assert ran.code == 0, ran.out + ran.err
    assert (ran.verdict["restored"], ran.verdict["left"]) == ("clean", "healthy")
    [up], [down] = instrument(ran, "proof.on"), instrument(ran, "proof.off")
    assert (up["ok"], through(up)) == (True, [True] * 4)  # three primaries, and the smaller model
    assert down["ok"] is True
    [on], [off] = ran.events("proof.on"), ran.events("proof.off")
    assert (on["data"]["ok"], off["data"]["ok"]) == (True, True)
    seen = [one for one in on["data"]["evidence"] if one["late"]]
    assert [one["connection"] for one in seen] == ["opened before the fault"] * 3
    assert all(one["took_s"] >= 4.5 for one in seen)
    assert {one["role"] for one in ledger(ran)} == {"primary", "fallback"}
    assert service.uids() == before


# ---- the ledger as a choice ------------------------------------------------------------------------------


def test_a_replaced_pod_is_followed_by_the_ledger(drill: Driller, service: Served) -> None:
    service.declare(drill.reports.parent, ledger=True, entry="router")
    ran = drill(*words(drill, EXPERIMENTS / "pod-kill-ledger.yaml"))
    assert ran.code == 0, ran.out + ran.err
    [first, second] = instrument(ran, "proof.on")
    assert (through(first), through(second)) == ([True] * 4, [True])
    [receipt] = [e["data"]["receipt"] for e in ran.events("receipt") if not e["data"].get("beside")]
    [victim] = receipt["victims"]
    assert second["evidence"][0]["replica"] == victim["name"]
    hit = ran.events("inject.hit")[0]["mono"]
    mine = [one["start"] for one in ledger(ran) if one["replica"] == victim["name"]]
    assert min(mine) < hit < max(mine)  # one name, and two pods that were seen under it
    assert ran.row("rejoin")["verdict"] == "pass"
    assert ran.row("streams")["verdict"] == "pass"
    assert [one["ok"] for one in instrument(ran, "proof.off")] == [True, True]


# ---- what stays ------------------------------------------------------------------------------------------


def redirects(service: Served) -> list[str]:
    """Return the rules of the nat tables of all pods, as this machine sees them."""
    found = []
    for uid in service.uids():
        inside = next(p for p in Path("/proc").iterdir() if p.name.isdigit() and uid.replace("-", "") in grouped(p))
        enter = ["nsenter", f"--net={inside}/ns/net", "iptables", "-t", "nat", "-S"]
        rules = subprocess.run(enter, capture_output=True, text=True, timeout=20, check=True).stdout.splitlines()
        found += [rule for rule in rules if rule.startswith("-A")]
    return found


def grouped(process: Path) -> str:
    """Return the control group of a process, without dashes."""
    try:
        return (process / "cgroup").read_text().replace("-", "").replace("_", "")
    except OSError:
        return ""


@pytest.mark.parametrize("event", ["load.started", "proof.on"])
def test_without_its_driver_a_recovery_takes_the_proxies_away(
    own_node: Path, drill: Driller, service: Served, event: str
) -> None:
    assert redirects(service) == []
    with begun(drill, words(drill, EXPERIMENTS / "upstream-delay.yaml")) as process:
        folder = drill.until(event, process, None, within_s=200.0)
        assert sum("-j REDIRECT" in rule for rule in redirects(service)) == 3
        kill_group(process)
    done = drill("recover", *place(drill))
    assert done.code == 0, done.out + done.err
    assert redirects(service) == []
    [off] = [e for e in events(folder, "beside.proof.off") if e["data"]["receipt"].endswith(INSTRUMENT)]
    assert off["data"]["ok"] is True
    assert all(e["data"]["ok"] for e in events(folder, "proof.off"))  # of the delay, where it was on


def test_a_helper_that_is_killed_without_grace_costs_seconds_and_not_the_service(
    own_node: Path, drill: Driller, service: Served
) -> None:
    service.declare(drill.reports.parent, ledger=True, entry="router")
    with begun(drill, words(drill, EXPERIMENTS / "pod-kill-ledger.yaml")) as process:
        folder = drill.until("load.started", process, None, within_s=150.0)
        core, name = service.namespace.core, service.namespace.name
        [helper] = service.namespace.pods(f"{ROLE}={HELPER}")
        core.delete_namespaced_pod(helper.metadata.name, name, grace_period_seconds=0)
        out = process.communicate(timeout=300)[0]
    assert process.returncode == 2, out
    [lost] = events(folder, "timer.lost")
    assert INSTRUMENT in lost["data"]["reason"]
    ends = events(folder, "revert.end")
    assert {e["data"]["restored"] for e in ends} == {"clean"}
    assert redirects(service) == []
    records = [json.loads(line) for line in (folder / "requests.ndjson").read_text().splitlines()]
    assert any(one["outcome"] == "ok" for one in records[-5:]), records[-5:]
