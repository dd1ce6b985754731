"""Ledger proxies put in front of an engine in a network namespace of its own, as a helper does it on a node."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from drills.access import iptables, ontarget, procs
from drills.access.local import LocalHost
from drills.fronts import onhost, words
from drills.lab import network
from drills.model import Json
from drills.proxy_beat import VALID_S
from tests.lab.drilling import eventually

pytestmark = pytest.mark.root
HOST = LocalHost()
NODE_IP, POD_IP, PORT = "192.0.2.1", "192.0.2.2", 8000
TAG = "0a1b2c3d-0p"
#: An engine that keeps connections, and answers /slow after a second.
ENGINE = f"""
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
class H(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        time.sleep(1.0 if self.path == "/slow" else 0.0)
        self.send_response(200); self.send_header("Content-Length", "2"); self.end_headers(); self.wfile.write(b"ok")
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"])); self.do_GET()
    def log_message(self, *args): pass
ThreadingHTTPServer.handle_error = lambda *args: None
ThreadingHTTPServer(("0.0.0.0", {PORT}), H).serve_forever()
"""
#: Keeps a connection in the node's namespace: asks for the path of each line, prints how it went.
CLIENT = f"""
import http.client, sys
line = http.client.HTTPConnection("{POD_IP}", {PORT}, timeout=10)
for path in sys.stdin:
    try:
        line.request("GET", path.strip()); print(line.getresponse().read().decode(), flush=True)
    except OSError as error:
        print(type(error).__name__, flush=True)
"""


class Pod:
    """A namespace with an engine in it, reached from another one that plays the node."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.node, self.pod = (subprocess.Popen(["sleep", "600"], preexec_fn=network._unshare) for _ in range(2))
        self.started: list[subprocess.Popen[str]] = []
        self.inside(self.node, "ip", "link", "add", "n0", "type", "veth", "peer", "p0", "netns", str(self.pod.pid))
        for holder, device, ip in ((self.node, "n0", NODE_IP), (self.pod, "p0", POD_IP)):
            self.inside(holder, "ip", "address", "add", f"{ip}/24", "dev", device)
            for name in ("lo", device):
                self.inside(holder, "ip", "link", "set", name, "up")
        self.engine = self.start(self.pod, sys.executable, "-c", ENGINE)
        eventually(lambda: self.ask("/health") == "ok", 10.0)

    def words(self, holder: subprocess.Popen[bytes]) -> list[str]:
        return ["nsenter", f"--net=/proc/{holder.pid}/ns/net"]

    def inside(self, holder: subprocess.Popen[bytes], *argv: str, stdin: str = "") -> str:
        done = subprocess.run(
            [*self.words(holder), *argv], input=stdin, capture_output=True, text=True, timeout=60, check=True
        )
        return done.stdout

    def start(self, holder: subprocess.Popen[bytes], *argv: str) -> subprocess.Popen[str]:
        made = subprocess.Popen(
            [*self.words(holder), *argv], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        self.started.append(made)
        return made

    @property
    def netns(self) -> Json:
        inode = Path(f"/proc/{self.pod.pid}/ns/net").stat().st_ino
        return {"pid": self.pod.pid, "start": procs.start(self.pod.pid), "inode": inode}

    def told(self, command: str, spot: Json) -> Json:
        """Give a helper's order; returns what is said of the spot."""
        order = json.dumps({"spots": [spot]}) + "\n"
        said = self.inside(self.node, sys.executable, "-m", words.MODULE, command, stdin=order)
        [found] = json.loads(said)["spots"]
        return dict(found)

    def spot(self) -> Json:
        """Return where the proxy is to stand."""
        bare = {
            "replica": "vllm-0",
            "role": "primary",
            "node": "node1",
            "netns": self.netns,
            "ip": POD_IP,
            "port": PORT,
            "python": sys.executable,
            "sources": None,
            "stays": True,
        }
        aimed = self.told("aim", bare)
        assert "error" not in aimed, aimed
        spot: Json = bare | aimed | {"tag": TAG, "folder": str(self.folder / "proxy")}
        return spot | words.words(spot, TAG)

    def up(self) -> Json:
        spot = self.spot()
        said = self.told("up", spot)
        assert "error" not in said, said
        return spot | said

    def client(self) -> subprocess.Popen[str]:
        return self.start(self.node, sys.executable, "-c", CLIENT)

    def ask(self, path: str) -> str:
        """Return what a new connection from the node is answered."""
        client = self.client()
        out, _ = client.communicate(f"{path}\n", timeout=20)
        return out.strip()

    def rules(self) -> list[str]:
        saved = iptables.snapshot(HOST, self.words(self.pod), iptables.find(HOST))
        return [line for lines in saved.values() for line in lines]

    def close(self) -> None:
        """End everything in both namespaces, the proxy too."""
        with suppress(OSError, ValueError, LookupError):
            os.kill(json.loads((self.folder / "proxy" / "proxy.json").read_text())["pid"], signal.SIGKILL)
        everybody: list[subprocess.Popen[Any]] = [*self.started, self.node, self.pod]
        for process in everybody:
            process.kill()
            process.communicate()


@pytest.fixture
def pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pod]:
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")  # for steps that run python3
    made = Pod(tmp_path)
    yield made
    made.close()


def said(client: subprocess.Popen[str], path: str) -> str:
    assert client.stdin is not None
    assert client.stdout is not None
    client.stdin.write(f"{path}\n")
    client.stdin.flush()
    return client.stdout.readline().strip()


def test_traffic_goes_through_and_everything_goes_again(pod: Pod) -> None:
    before = pod.rules()
    spot = pod.up()
    assert pod.told("look", spot) | {"changed": []} == {
        "lives": True, "rules": 2, "through": True, "beside": 0, "changed": []
    }  # fmt: skip
    pod.inside(
        pod.node, sys.executable, "-c",
        f"import http.client as h; c=h.HTTPConnection('{POD_IP}',{PORT}); "
        "c.request('POST','/v1/completions',b'{}',{'X-Request-Id':'r-1-0'}); c.getresponse().read()",
    )  # fmt: skip
    [line] = pod.told("collect", spot)["lines"]
    seen = json.loads(line)
    assert (seen["id"], seen["replica"], seen["close"]) == ("r-1-0", "vllm-0", "complete")
    assert all(step["ok"] for step in ontarget.carry_out(words.undo([spot])))
    assert not onhost.running(Path(spot["folder"]))
    assert pod.rules() == before
    assert pod.told("look", spot)["changed"] == []
    assert pod.ask("/health") == "ok"


def test_only_what_began_since_then_is_collected(tmp_path: Path) -> None:
    """A long ledger stays text, and where it is; a torn last line is none."""
    lines = [json.dumps({"id": f"r-{n}-0", "start": float(n)}) for n in range(5)]
    (tmp_path / "ledger.ndjson").write_text("\n".join(lines) + '\n{"id": "r-9')
    said = onhost.collect({"folder": str(tmp_path), "since": 3.0})
    assert said == {"lines": lines[3:], "lost": 0}


def test_a_connection_from_before_is_let_go_when_it_is_idle(pod: Pod) -> None:
    client = pod.client()
    assert said(client, "/health") == "ok"
    spot = pod.up()
    assert spot["let_go"] == {"idle": 1, "busy": 0}
    assert said(client, "/health") in ("ConnectionResetError", "BrokenPipeError", "RemoteDisconnected")


def test_a_request_that_is_open_is_answered_before_its_connection_is_let_go(pod: Pod) -> None:
    client = pod.client()
    assert client.stdin is not None
    assert client.stdout is not None
    assert said(client, "/health") == "ok"
    spot = pod.spot()
    client.stdin.write("/slow\n")
    client.stdin.flush()
    assert "error" not in pod.told("up", spot)
    assert client.stdout.readline().strip() == "ok"
    assert pod.told("look", spot)["beside"] == 0


def test_what_is_open_through_a_proxy_is_answered_before_it_goes(pod: Pod) -> None:
    before, spot = pod.rules(), pod.up()
    client, idle = pod.client(), pod.client()
    assert client.stdin is not None
    assert client.stdout is not None
    assert said(idle, "/health") == said(client, "/health") == "ok"
    client.stdin.write("/slow\n")
    client.stdin.flush()
    assert all(step["ok"] for step in ontarget.carry_out(words.undo([spot])))
    assert client.stdout.readline().strip() == "ok"
    assert said(idle, "/health") in (
        "RemoteDisconnected",
        "BrokenPipeError",
    )  # told of the end, not left waiting
    assert pod.rules() == before


@pytest.mark.parametrize("how", ["SIGKILL", "SIGSTOP"])
def test_a_proxy_that_dies_or_hangs_is_passed_by_soon(pod: Pod, how: str) -> None:
    spot = pod.up()
    pid = json.loads((Path(spot["folder"]) / "proxy.json").read_text())["pid"]
    os.kill(pid, signal.Signals[how])
    eventually(lambda: pod.ask("/health") == "ok", VALID_S + 10.0)
    assert pod.told("look", spot) | {"changed": []} == {
        "lives": how == "SIGSTOP", "rules": 2, "through": False, "beside": 0, "changed": []
    }  # fmt: skip


def test_an_order_that_was_called_off_leaves_nothing(pod: Pod) -> None:
    before = pod.rules()
    said = pod.told("up", pod.spot() | {"receipt": str(pod.folder / "gone.json")})
    assert "called off" in said["error"]
    assert pod.rules() == before
    assert not onhost.running(pod.folder / "proxy")


def test_traffic_that_somebody_else_redirects_is_left_alone(pod: Pod) -> None:
    mesh = ["-A", "PREROUTING", "-p", "tcp", "-j", "REDIRECT", "--to-ports", "15006"]
    pod.inside(pod.pod, "iptables", "-t", "nat", *mesh)
    bare = {"replica": "vllm-0", "role": "primary", "netns": pod.netns, "ip": POD_IP, "port": PORT}
    assert "service mesh" in pod.told("aim", bare)["error"]


def test_a_proxy_that_is_gone_when_its_request_is_open_cuts_it(pod: Pod) -> None:
    spot = pod.up()
    client = pod.client()
    assert said(client, "/health") == "ok"
    os.kill(json.loads((Path(spot["folder"]) / "proxy.json").read_text())["pid"], signal.SIGKILL)
    assert said(client, "/health") != "ok"
