"""What the router sends to a host is lost, or led through a proxy, by rules that go again; nobody else is touched."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from drills.model import Json
from drills.proxies import LedgerProxies
from tests.hosts import layout
from tests.hosts.deeds import RUN, Deed
from tests.hosts.driving import drill, drilled, experiment
from tests.hosts.fleet import Fleet
from tests.hosts.traces import all_of, rules, units
from tests.lab.drilling import Ran, eventually

pytestmark = pytest.mark.root

#: Somebody else's rules: h1 has them by nft, h2 by legacy, so each kind is what is used there.
KINDS = {"h1": ("nft",), "h2": ("legacy",), "h3": ("nft", "legacy")}
FOREIGN = (
    ("filter", "INPUT", "-p", "tcp", "-m", "tcp", "--dport", "9", "-j", "DROP"),
    ("nat", "PREROUTING", "-p", "tcp", "-m", "tcp", "--dport", "9", "-j", "REDIRECT", "--to-ports", "10"),
)
MODES = {
    "reject": {"mode": "reject"},
    "blackhole": {"mode": "blackhole"},
    "loss": {"mode": "loss", "loss": "50%"},
}
DELAY = {"mode": "first_byte", "delay": "2s"}
LEDGER: tuple[str, Json] = (LedgerProxies.name, {})
RESET = {55, 56}  # how curl ends when its connection is reset, while it sends or after
#: The proof must be over before the timer fires, on a machine that is busy too.
HELD_S, TIMER_S = 20.0, 90.0
LEDGER_TOO = ("    router:", "    ledger: true\n    router:")


@pytest.fixture(autouse=True, scope="module")
def _foreign(fleet: Fleet) -> Iterator[None]:
    """Put rules of somebody else on the hosts: nothing of them may change."""
    foreign = [(fleet.host(name), kind, rule) for name, kinds in KINDS.items() for kind in kinds for rule in FOREIGN]
    for host, kind, (table, *words) in foreign:
        host.run([f"iptables-{kind}", "-t", table, "-A", *words])
    yield
    for host, kind, (table, *words) in foreign:
        host.run([f"iptables-{kind}", "-t", table, "-D", *words], check=False)


def settled(fleet: Fleet, before: dict[str, Json]) -> None:
    """Wait until the hosts are as before: what holds connections for a proof ends a little later."""
    with suppress(AssertionError):
        eventually(lambda: all_of(fleet) == before, 30.0)
    assert all_of(fleet) == before


def asked(fleet: Fleet, name: str, path: str = "/health") -> str:
    """Return the status that the router gets straight from a host, 000 for none within 2 s."""
    url = f"http://{layout.machine(name).service}:{layout.ENGINE_PORT}{path}"
    argv = ["curl", "--silent", "--output", "/dev/null", "--write-out", "%{http_code}", "--max-time", "2", url]
    return fleet.host(layout.ROUTER).run(argv, check=False).stdout.strip()


@pytest.mark.parametrize(("name", "kind"), [("h1", "nft"), ("h2", "legacy")])
@pytest.mark.parametrize("mode", MODES)
def test_what_the_router_sends_is_lost_and_nothing_else(
    fleet: Fleet, tmp_path: Path, name: str, kind: str, mode: str
) -> None:
    before, host = all_of(fleet), fleet.host(name)
    with Deed(fleet, tmp_path, ("packet-loss", MODES[mode]), victims=[name]) as deed:
        proof = deed.until("proof.on")
        assert (proof["ok"], proof["bystanders_ok"]) == (True, True), proof
        seen = proof["evidence"][0]
        assert (seen["iptables"], seen["in_place"], seen["packets"] > 0) == (kind, True, True)
        ours = [line for line in rules(host) if f"-{RUN}-" in line]
        first = next(line for line in ours if " -A DRILL" in line)
        assert f"-s {layout.MANAGE}.{layout.CONTROL_NUMBER}/32" in first
        assert first.endswith("-j RETURN")
        assert host.engine_ready(), "the driver is let in, and it is asked over the same network as by SSH"
        if mode != "loss":
            assert asked(fleet, name) == "000"
        assert asked(fleet, "h3") == "200"
        assert deed.back() == "clean"
        assert deed.until("proof.off")["ok"] is True
    assert asked(fleet, name) == "200"
    assert all_of(fleet) == before


def test_several_hosts_at_once_each_by_its_own_kind(fleet: Fleet, tmp_path: Path) -> None:
    before = all_of(fleet)
    with Deed(fleet, tmp_path, ("packet-loss", MODES["reject"]), victims=["h1", "h2"]) as deed:
        proof = deed.until("proof.on")
        assert (proof["ok"], proof["bystanders_ok"]) == (True, True), proof
        assert [one["iptables"] for one in proof["evidence"][:2]] == ["nft", "legacy"]
        assert [asked(fleet, name) for name in layout.HOSTS] == ["000", "000", "200"]
        assert deed.back() == "clean"
    assert all_of(fleet) == before


def test_what_others_change_meanwhile_is_theirs(fleet: Fleet, tmp_path: Path) -> None:
    before, host = all_of(fleet), fleet.host("h1")
    banned = ["INPUT", "-s", "203.0.113.7/32", "-j", "DROP"]
    with Deed(fleet, tmp_path, LEDGER, ("packet-loss", MODES["reject"]), victims=["h1"]) as deed:
        deed.until("on")
        host.run(["iptables-nft", "-I", *banned])
        try:
            assert deed.back() == "clean"
            assert any("203.0.113.7" in line for line in rules(host))
        finally:
            host.run(["iptables-nft", "-D", *banned])
    assert all_of(fleet) == before


def test_a_port_of_ssh_is_in_no_rule(fleet: Fleet, tmp_path: Path) -> None:
    params = {"mode": "blackhole", "ports": [layout.ENGINE_PORT, layout.SSH_PORT]}
    with Deed(fleet, tmp_path, ("packet-loss", params), victims=["h1"]) as deed:
        [why] = deed.until("refused")["why"]
        assert why == "h1: ports: 22 is that of SSH, by which the drill is put back; leave it out"


@pytest.mark.parametrize("wanted", [("packet-loss", MODES["blackhole"]), ("upstream-delay", DELAY)])
def test_a_driver_that_is_killed_leaves_it_to_the_timer(fleet: Fleet, tmp_path: Path, wanted: tuple[str, Json]) -> None:
    before = all_of(fleet)
    behind = [LEDGER] if wanted[0] == "upstream-delay" else []
    names = ["h1", "h2", "h3"] if behind else ["h2"]
    with Deed(fleet, tmp_path, *behind, wanted, victims=names, fault_s=HELD_S) as deed:
        deed.until("on")
        assert deed.until("proof.on", 1 + len(behind))["ok"] is True
        host = fleet.host("h2")
        changed = rules(host)
        assert changed != before["h2"]["rules"]
        deed.kill()
        assert rules(host) == changed, "nobody but the timer undoes it"
    eventually(lambda: all(rules(fleet.host(name)) == before[name]["rules"] for name in names), TIMER_S)
    recover(fleet, tmp_path)
    settled(fleet, before)


def test_a_link_that_is_cut_leaves_it_to_the_timer_and_the_router_is_served_again(fleet: Fleet, tmp_path: Path) -> None:
    before, host = all_of(fleet), fleet.host("h2")
    with Deed(fleet, tmp_path, LEDGER, ("packet-loss", MODES["blackhole"]), victims=["h2"], fault_s=HELD_S) as deed:
        deed.until("on")
        host.cut_driver()
        try:
            eventually(lambda: rules(host) == before["h2"]["rules"], TIMER_S)
            assert asked(fleet, "h2") == "200"
        finally:
            host.mend_driver()
        assert deed.back() == "clean"
    settled(fleet, before)


def test_recover_need_not_wait_for_the_timer(fleet: Fleet, tmp_path: Path) -> None:
    before = all_of(fleet)
    with Deed(fleet, tmp_path, LEDGER, ("packet-loss", MODES["reject"]), victims=["h1", "h2"], fault_s=300.0) as deed:
        deed.until("on")
        deed.kill()
    assert all_of(fleet) != before
    recover(fleet, tmp_path)
    assert [rules(host) for host in fleet.hosts] == [before[host.name]["rules"] for host in fleet.hosts]
    settled(fleet, before)


def recover(fleet: Fleet, folder: Path) -> None:
    done = drill(fleet, folder, "recover")
    assert done.code == 0, done.out + done.err


# ---- proxies -----------------------------------------------------------------------------------------------


def test_connections_from_before_do_not_go_past_a_proxy(fleet: Fleet, tmp_path: Path) -> None:
    before, router = all_of(fleet), fleet.host(layout.ROUTER)
    program = (
        "import http.client, sys\n"
        f"line = http.client.HTTPConnection('{layout.machine('h2').service}', {layout.ENGINE_PORT}, timeout=10)\n"
        "for _ in sys.stdin:\n"
        "    try:\n"
        "        line.request('GET', '/v1/models'); line.getresponse().read(); print('ok', flush=True)\n"
        "    except (OSError, http.client.HTTPException) as error:\n"
        "        print(type(error).__name__, flush=True); line.close()\n"
    )
    argv = ["nsenter", f"--net=/proc/{router.pid1}/ns/net", "python3", "-c", program]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) as client:
        assert client.stdin is not None
        assert client.stdout is not None

        def says() -> str:
            client.stdin.write("\n")  # type: ignore[union-attr] # seen above
            return client.stdout.readline().strip()  # type: ignore[union-attr] # seen above

        assert says() == "ok"
        with Deed(fleet, tmp_path, LEDGER, victims=["h2"]) as deed:
            proof = deed.until("proof.on")
            assert proof["ok"] is True, proof
            [seen] = proof["evidence"]
            assert (seen["through"], seen["beside"], seen["rules"]) == (True, 0, 2)
            assert f"drill-proxy-{RUN}-0p-{layout.ENGINE_PORT}.service" in units(fleet.host("h2")), (
                "no session's process"
            )
            step = deed.until("inject.step")
            assert step["let_go"]["idle"] + step["let_go"]["busy"] >= 1
            assert says() != "ok", "its connection was let go"
            assert says() == "ok"
            assert deed.back() == "clean"
        client.stdin.close()
    assert all_of(fleet) == before


def test_a_proxy_is_no_way_to_the_engine_for_anybody_but_the_router(fleet: Fleet, tmp_path: Path) -> None:
    before = all_of(fleet)
    with Deed(fleet, tmp_path, LEDGER, victims=["h1"]) as deed:
        assert deed.until("proof.on")["ok"] is True
        [spot] = deed.until("receipt")["receipt"]["prior"]["spots"]
        at = (layout.machine("h1").service, layout.machine("h1").manage)
        argv = ["curl", "--silent", "--output", "/dev/null", "--max-time", "5", f"http://HOST:{spot['listen']}/health"]
        asked_by = {
            name: [fleet.host(name).run([*argv[:-1], argv[-1].replace("HOST", one)], check=False) for one in at]
            for name in ("h1", "h3")
        }
        assert {done.returncode for all_ in asked_by.values() for done in all_} <= RESET
        router = fleet.host(layout.ROUTER).run([*argv[:-1], argv[-1].replace("HOST", at[0])], check=False)
        assert router.returncode == 0
        assert deed.back() == "clean"
    assert all_of(fleet) == before


def test_a_router_that_is_not_there_is_said(fleet: Fleet, tmp_path: Path) -> None:
    before, deed = all_of(fleet), Deed(fleet, tmp_path, LEDGER, victims=["h1"])
    file = tmp_path / "drill.yaml"
    file.write_text(file.read_text().replace(fleet.router_address, f"{layout.SERVICE}.99"))
    with deed:
        assert "nothing has come from the router (198.19.2.99) to port 8000" in deed.until("failed")["why"]
        assert deed.until("end")["restored"] == "clean"
    assert all_of(fleet) == before


def test_a_port_that_others_lead_away_gets_no_proxy(fleet: Fleet, tmp_path: Path) -> None:
    host = fleet.host("h1")
    published = ("PREROUTING", "-p", "tcp", "-m", "tcp", "--dport", str(layout.ENGINE_PORT))
    led = [*published, "-j", "DNAT", "--to-destination", "172.17.0.2:8000"]
    host.run(["iptables", "-t", "nat", "-A", *led])
    try:
        with Deed(fleet, tmp_path, LEDGER, victims=["h1"]) as deed:
            assert "traffic to port 8000 is led elsewhere already" in str(deed.until("refused")["why"])
    finally:
        host.run(["iptables", "-t", "nat", "-D", *led])


# ---- whole drills ------------------------------------------------------------------------------------------


def with_ledger(fleet: Fleet, folder: Path, fault: str, checks: str) -> Ran:
    """Run a short drill to its end at hosts of which a ledger is asked for."""
    return drill(fleet, folder, "run", str(experiment(folder, fault, checks)), instead=LEDGER_TOO)


def attempts(ran: Ran) -> list[Json]:
    """Return the lines of its ledger."""
    assert ran.folder is not None
    return [json.loads(line) for line in (ran.folder / "ledger.ndjson").read_text().splitlines()]


def test_the_drill_of_an_upstream_that_is_late(fleet: Fleet, tmp_path: Path) -> None:
    before = all_of(fleet)
    ran = drilled(fleet, tmp_path, "upstream-delay: {mode: first_byte, delay: 2s}", "  - degraded\n  - accounted")
    assert ran.code == 0, ran.out + ran.err
    [proof] = ran.events("proof.on")
    assert all("opened before the fault" in one["meaning"] for one in proof["data"]["evidence"])
    assert len(proof["data"]["evidence"]) == len(layout.HOSTS)
    assert ran.verdict["restored"] == "clean"
    settled(fleet, before)


def test_the_drill_of_a_link_that_fails(fleet: Fleet, tmp_path: Path) -> None:
    before = all_of(fleet)
    checks = "  - accounted\n  - untouched"
    ran = with_ledger(fleet, tmp_path, "packet-loss: {mode: reject}", checks)
    assert ran.code == 0, ran.out + ran.err
    [on], [off] = ran.events("proof.on"), [one for one in ran.events("revert.begin") if not one["data"].get("beside")]
    victim = on["data"]["evidence"][0]["replica"]
    through = [one for one in attempts(ran) if one["replica"] == victim]
    assert [one for one in through if on["mono"] < one["start"] < off["mono"]] == [], "nothing got to it"
    assert any(one["start"] < on["mono"] for one in through)
    assert any(one["start"] > off["mono"] for one in through)
    assert ran.verdict["restored"] == "clean"
    settled(fleet, before)


def test_a_ledger_goes_on_when_a_replica_is_killed_behind_it(fleet: Fleet, tmp_path: Path) -> None:
    before = all_of(fleet)
    checks = "  - accounted\n  - replica_restart: {within: 60s}"
    ran = with_ledger(fleet, tmp_path, "pod-kill: {how: kill-process}", checks)
    assert ran.code == 0, ran.out + ran.err
    [collected] = ran.events("collected")
    assert collected["data"]["lines"] > 0
    assert ran.events("ledger.late") == []
    assert len(attempts(ran)) == collected["data"]["lines"]
    [hit] = ran.events("inject.hit")
    [back] = [one for one in ran.events("replica") if one["data"]["change"] == "ready"]
    victim = hit["data"]["victims"][0]
    assert any(one["replica"] == victim and one["start"] > back["mono"] for one in attempts(ran)), (
        "the same proxy goes on"
    )
    settled(fleet, before)
