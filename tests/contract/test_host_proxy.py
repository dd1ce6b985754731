"""Ledger proxies in a host's own network: what the router sends goes through, and everybody else goes past."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from drills.fronts import onhost, words
from drills.model import Json
from tests.contract.test_pod_proxy import NODE_IP, POD_IP, PORT, TAG, Pod, said
from tests.lab.drilling import eventually

pytestmark = pytest.mark.root


class HostPod(Pod):
    """The namespace with the engine plays the host, and the other one plays the router."""

    def inside_host(self, command: str, *spots: Json) -> list[Json]:
        """Give an order as it is given on a host."""
        order = {"spots": list(spots)}
        out = self.inside(self.pod, sys.executable, "-m", words.MODULE, command, stdin=json.dumps(order) + "\n")
        return [dict(one) for one in json.loads(out)["spots"]]

    def bare(self, **changes: object) -> Json:
        """Return what is known of a spot before it is aimed."""
        whom: Json = {"replica": "gpu-1", "role": "primary", "uid": "gpu-1", "node": "gpu-1", "python": sys.executable}
        where: Json = {"ip": POD_IP, "port": PORT, "netns": None, "sources": [NODE_IP], "stays": False}
        return {**whom, **where, **changes}

    def aimed(self, **changes: object) -> Json:
        """Return where the proxy is to stand."""
        bare = self.bare(**changes)
        [found] = self.inside_host("aim", bare)
        assert "error" not in found, found
        spot: Json = {**bare, **found, "tag": TAG, "folder": str(self.folder / "proxy")}
        return spot | words.words(spot, TAG)

    def raised(self) -> Json:
        """Put it up; what the router sends next must go through."""
        spot = self.aimed()
        [told] = self.inside_host("up", spot)
        assert "error" not in told, told
        return spot | told

    def look(self, spot: Json) -> Json:
        """Return what there is of it."""
        [found] = self.inside_host("look", spot)
        return found

    def undone(self, spot: Json) -> None:
        """Carry out its undo, as the timer on a host does."""
        program = (
            "import json, sys; from drills.access import ontarget; "
            "sys.exit(not all(step['ok'] for step in ontarget.carry_out(json.load(sys.stdin))))"
        )
        self.inside(self.pod, sys.executable, "-c", program, stdin=json.dumps(words.undo([spot])))


@pytest.fixture
def host(tmp_path: Path) -> Iterator[HostPod]:
    made = HostPod(tmp_path)
    yield made
    made.close()


def clients(spot: Json) -> list[str]:
    found: list[str] = onhost.ask(Path(spot["folder"]), "GET", "/status")["clients"]
    return found


def straight(host: HostPod, where: subprocess.Popen[bytes], address: str, spot: Json) -> str:
    """Ask a proxy's own port from a namespace; returns the answer, or the name of what went wrong."""
    ask = (
        "import http.client as h\n"
        f"line = h.HTTPConnection('{address}', {spot['listen']}, timeout=5)\n"
        "try:\n"
        "    line.request('GET', '/health'); print(line.getresponse().read().decode())\n"
        "except OSError as error:\n"
        "    print(type(error).__name__)\n"
    )
    return host.inside(where, sys.executable, "-c", ask).strip()


def from_the_host_itself(host: HostPod) -> str:
    url = f"http://{POD_IP}:{PORT}/health"
    ask = f"import urllib.request as u; print(u.urlopen({url!r}, timeout=5).read().decode())"
    return host.inside(host.pod, sys.executable, "-c", ask).strip()


def test_what_the_router_sends_goes_through_and_what_the_host_asks_itself_goes_past(host: HostPod) -> None:
    before, spot = host.rules(), host.raised()
    assert spot["upstream"] == f"127.0.0.1:{PORT}"
    seen = host.look(spot)
    assert (seen["lives"], seen["rules"], seen["through"]) == (True, 2, False)
    assert f"nothing has come from the router ({NODE_IP}) to port {PORT}" in seen["why"]
    assert from_the_host_itself(host) == "ok"
    assert clients(spot) == []
    assert host.ask("/health") == "ok"
    assert clients(spot) == [NODE_IP]
    seen = host.look(spot)
    assert (seen["through"], seen["beside"], seen.get("why")) == (True, 0, None)
    host.undone(spot)
    assert host.rules() == before
    assert not Path(spot["folder"]).exists(), "nothing of it stays on a host"
    assert host.ask("/health") == "ok"


def test_who_is_not_the_router_goes_past(host: HostPod) -> None:
    spot = host.aimed(sources=["192.0.2.99"])
    [told] = host.inside_host("up", spot)
    assert "error" not in told, told
    assert host.ask("/health") == "ok"
    assert straight(host, host.node, POD_IP, spot) == "ConnectionResetError", "a proxy is no second way to the engine"
    assert clients(spot) == []
    assert host.look(spot)["beside"] == 0, "nobody of the router is connected"
    host.undone(spot)


def test_at_the_proxys_own_port_only_the_router_and_a_proof_on_the_host_are_let_in(host: HostPod) -> None:
    spot = host.raised()
    assert straight(host, host.node, POD_IP, spot) == "ok"
    assert straight(host, host.pod, "127.0.0.1", spot) == "ok"
    assert straight(host, host.pod, POD_IP, spot) == "ConnectionResetError", "its own address is not the router's"
    assert sorted(clients(spot)) == sorted([NODE_IP, "127.0.0.1"])
    host.undone(spot)


def test_the_routers_connections_from_before_are_let_go_and_those_of_others_stay(host: HostPod) -> None:
    mine = host.client()
    assert said(mine, "/health") == "ok"
    own = host.start(
        host.pod,
        sys.executable,
        "-c",
        "import http.client, sys\n"
        f"line = http.client.HTTPConnection('{POD_IP}', {PORT}, timeout=10)\n"
        "for path in sys.stdin:\n"
        "    line.request('GET', path.strip()); print(line.getresponse().read().decode(), flush=True)\n",
    )
    assert said(own, "/health") == "ok"
    spot = host.raised()
    assert spot["let_go"] == {"idle": 1, "busy": 0}
    assert said(mine, "/health") != "ok"
    assert said(own, "/health") == "ok", "the host's own connection is nobody's business"
    host.undone(spot)


def test_a_firewall_that_keeps_the_proxys_port_shut_is_said(host: HostPod) -> None:
    spot = host.raised()
    shut = ["iptables", "-I", "INPUT", "-p", "tcp", "--dport", str(spot["listen"]), "-j", "DROP"]
    host.inside(host.pod, *shut)
    connect = f"import socket; socket.create_connection(('{POD_IP}', {PORT}), 1)"
    ask = [*host.words(host.node), sys.executable, "-c", connect]
    assert subprocess.run(ask, capture_output=True, timeout=20, check=False).returncode != 0
    seen = host.look(spot)
    assert (seen["through"], "firewall" in seen["why"]) == (False, True)
    host.undone(spot)


def test_a_proxy_that_is_killed_is_passed_by_soon(host: HostPod) -> None:
    spot = host.raised()
    assert host.ask("/health") == "ok"
    pid = json.loads((Path(spot["folder"]) / "proxy.json").read_text())["pid"]
    os.kill(pid, 9)
    eventually(lambda: host.ask("/health") == "ok", 20.0)
    assert host.look(spot)["through"] is False
    host.undone(spot)


def test_two_units_of_one_host_find_two_ports(host: HostPod) -> None:
    first, second = host.inside_host("aim", host.bare(), host.bare(replica="gpu-1b", uid="gpu-1b", port=PORT + 1))
    assert "nobody listens on port 8001" in second["error"]
    assert first["listen"] != second.get("listen")


def test_an_undo_may_be_repeated(host: HostPod) -> None:
    spot = host.raised()
    before = host.rules()
    host.undone(spot)
    after = host.rules()
    host.undone(spot)
    assert host.rules() == after != before
