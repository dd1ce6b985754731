"""A real Alertmanager that notifies somebody else: what the drill can tell of it, with and without a token."""

from __future__ import annotations

import json
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from drills.lab import monitoring
from drills.model import Json
from drills.probes.http import ProbeError
from drills.probes.notified import Notifications
from drills.probes.prometheus import Alertmanager, Prometheus

START_TIMEOUT_S, TIMEOUT_S, POLL_S = 30.0, 20.0, 0.05
CANARY = "tok-canary-5c1d"


class Pager(BaseHTTPRequestHandler):
    """A receiver that takes what it is told, or does not."""

    accepts: ClassVar[bool] = True
    url: ClassVar[str]
    told: ClassVar[list[Json]] = []

    def do_POST(self) -> None:
        """Take a notification."""
        self.told.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(200 if self.accepts else 500)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def pager() -> Iterator[type[Pager]]:
    """Return a receiver's class; `url` is where it listens."""

    class Own(Pager):
        told: ClassVar[list[Json]] = []

    server = ThreadingHTTPServer(("127.0.0.1", 0), Own)
    Own.url = f"http://127.0.0.1:{server.server_port}/"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield Own
    server.shutdown()
    server.server_close()


@pytest.fixture
def server(tmp_path: Path, pager: type[Pager]) -> Iterator[str]:
    """Run Alertmanager with that receiver for pages, and one that tells nobody for everything else."""
    program = monitoring.binaries().alertmanager
    if program is None:
        pytest.skip(f"needs Alertmanager: {monitoring.INSTALL}")
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    config = {
        "route": {
            "receiver": "nobody", "group_by": ["alertname"], "group_wait": "0s", "group_interval": "1s",
            "routes": [{"matchers": ['severity="page"'], "receiver": "pager"}],
        },
        "receivers": [{"name": "nobody"}, {"name": "pager", "webhook_configs": [{"url": pager.url}]}],
    }  # fmt: skip
    (tmp_path / "alertmanager.yml").write_text(json.dumps(config))
    runnable, folder = monitoring.runnable(program, tmp_path)
    argv = [runnable, f"--config.file={tmp_path / 'alertmanager.yml'}", f"--storage.path={tmp_path / 'data'}"]
    argv += [f"--web.listen-address=127.0.0.1:{port}", "--cluster.listen-address=", "--log.level=error"]
    with subprocess.Popen(argv, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        url = f"http://127.0.0.1:{port}"
        try:
            until(lambda: answers(url), START_TIMEOUT_S)
            yield url
        finally:
            process.kill()


def until(true: Callable[[], object], within_s: float = TIMEOUT_S) -> None:
    """Wait until something is true."""
    deadline = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < deadline, f"not within {within_s} s"
        time.sleep(POLL_S)


def answers(url: str) -> bool:
    try:
        Alertmanager(url).alerts()
    except ProbeError:
        return False
    return True


def fire(server: str, name: str, severity: str) -> None:
    Alertmanager(server).tell([{"labels": {"alertname": name, "severity": severity}}])


def watch(server: str) -> tuple[Notifications, list[Json]]:
    told: list[Json] = []
    seen = Notifications(Alertmanager(server), lambda _, data: told.append(data))
    seen.look()
    return seen, told


def test_an_alert_that_was_passed_on_is_notified_and_a_ticket_for_nobody_is_not(
    server: str, pager: type[Pager]
) -> None:
    seen, told = watch(server)
    fire(server, "Ticket", "ticket")
    fire(server, "Down", "page")
    until(lambda: seen.look() and told)
    assert [(one["alert"], one["labels"]) for one in told] == [("Down", {"severity": "page"})]
    assert [one["alerts"][0]["labels"]["alertname"] for one in pager.told] == ["Down"]


def test_an_alert_that_the_receiver_does_not_take_is_not_notified(server: str, pager: type[Pager]) -> None:
    pager.accepts = False
    seen, told = watch(server)
    fire(server, "Down", "page")
    until(lambda: seen.look() and len(pager.told) > 1)  # asked again, and refused again
    seen.look()
    assert told == []
    pager.accepts = True
    until(lambda: seen.look() and told)


def test_an_alert_that_is_silenced_is_not_notified(server: str, pager: type[Pager]) -> None:
    silence = {
        "matchers": [{"name": "alertname", "value": "Down", "isRegex": False, "isEqual": True}],
        "startsAt": "2020-01-01T00:00:00Z", "endsAt": "2099-01-01T00:00:00Z", "createdBy": "test", "comment": "test",
    }  # fmt: skip
    Alertmanager(server).silence(silence)
    seen, told = watch(server)
    fire(server, "Down", "page")
    fire(server, "Other", "page")
    until(lambda: seen.look() and told)
    assert [one["alert"] for one in told] == ["Other"]
    assert len(pager.told) == 1


# ---- who asks ----------------------------------------------------------------------------------------


class Guarded(BaseHTTPRequestHandler):
    """Stands for the proxy in front of a Prometheus or Alertmanager that wants a token."""

    def do_GET(self) -> None:
        """Answer whoever has the token."""
        good = self.headers["Authorization"] == f"Bearer {CANARY}"
        body = {"data": {"alerts": [], "groups": [], "result": []}, "status": "success"} if good else {}
        data = json.dumps([] if self.path.startswith("/api/v2") and good else body).encode()
        self.send_response(200 if good else 401)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def guarded() -> Iterator[str]:
    """Return the address of a server that wants the token."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Guarded)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_the_token_goes_with_each_request(guarded: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login somebody password else\n")
    monkeypatch.setenv("NETRC", str(tmp_path / ".netrc"))
    prometheus, manager = Prometheus(guarded, bearer=CANARY), Alertmanager(guarded, bearer=CANARY)
    assert (prometheus.alerts(), prometheus.rules(), prometheus.query("up")) == ([], [], [])
    assert (manager.alerts(), manager.groups()) == ([], [])


def test_a_token_that_is_not_taken_is_said_without_it(guarded: str) -> None:
    for ask in (Prometheus(guarded, bearer=f"{CANARY}x").alerts, Alertmanager(guarded, bearer=f"{CANARY}x").alerts):
        with pytest.raises(ProbeError, match="401") as caught:
            ask()
        assert CANARY not in str(caught.value)
