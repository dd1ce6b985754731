"""Lines that begin on another machine: held there between orders, timed there, and given up from here."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from drills.access import farlines
from drills.access.farlines import FarLine
from drills.access.local import LocalHost
from tests.contract.peers import free_port
from tests.lab.drilling import eventually

HOST = LocalHost()


class Server(ThreadingHTTPServer):
    daemon_threads = True
    late_s = 0.0
    seen: list[int]


class Models(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        server: Any = self.server
        server.seen.append(self.client_address[1])
        time.sleep(server.late_s)
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server(("127.0.0.1", 0), Models)
    made.seen = []
    thread = threading.Thread(target=made.serve_forever, args=(0.05,))
    thread.start()
    yield made
    made.shutdown()
    made.server_close()
    thread.join(10)


def keepers(folder: Path) -> list[int]:
    """Return the pids of the keepers that serve in that folder."""
    return [
        int(entry.name)
        for entry in Path("/proc").iterdir()
        if entry.name.isdigit() and f"serve\0{folder}/lines\0".encode() in command(entry)
    ]


def command(entry: Path) -> bytes:
    try:
        return (entry / "cmdline").read_bytes()
    except OSError:
        return b""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(farlines, "PROGRAM", ())  # this machine's own network
    yield tmp_path
    for pid in keepers(tmp_path):
        os.kill(pid, signal.SIGKILL)


def line(folder: Path, server: Server, since: str = "opened before") -> FarLine:
    return FarLine(HOST, str(folder), "vllm-0", f"http://127.0.0.1:{server.server_port}", since)


def test_a_connection_is_kept_from_one_order_to_the_next(folder: Path, server: Server) -> None:
    one = line(folder, server)
    farlines.ask_all([one], 5.0)
    assert (one.error, one.since) == ("", "opened before")
    server.late_s = 0.4
    farlines.ask_all([one], 5.0)
    assert one.took_s is not None
    assert 0.4 <= one.took_s < 2.0
    assert len(set(server.seen)) == 1
    assert len(keepers(folder)) == 1


def test_a_request_may_be_on_its_way_before_it_is_asked_for(folder: Path, server: Server) -> None:
    one = line(folder, server)
    farlines.send_all([one])
    farlines.ask_all([one], 5.0)
    assert one.took_s is not None
    assert len(server.seen) == 1


def test_nobody_who_answers_is_an_error_in_words(folder: Path) -> None:
    one = FarLine(HOST, str(folder), "vllm-0", f"http://127.0.0.1:{free_port()}", "new")
    farlines.ask_all([one], 1.0)
    assert one.took_s is None
    assert "refused" in one.error


def test_who_hurries_does_not_wait_for_a_late_answer(folder: Path, server: Server) -> None:
    one = line(folder, server)
    farlines.ask_all([one], 5.0)
    server.late_s = 30.0
    began = time.monotonic()
    farlines.ask_all([one], 60.0, lambda: True)
    assert one.took_s is None
    assert time.monotonic() - began < 20.0


def test_a_keeper_that_is_gone_is_made_anew_and_its_lines_are_new(folder: Path, server: Server) -> None:
    one = line(folder, server)
    farlines.ask_all([one], 5.0)
    [pid] = keepers(folder)
    os.kill(pid, signal.SIGKILL)
    other = line(folder, server)
    farlines.ask_all([other], 5.0)
    assert other.error == ""
    assert keepers(folder) != [pid]
    farlines.close_all([one, other])


def test_a_passing_keeper_ends_when_it_holds_nothing_and_another_one_comes_when_asked(
    server: Server, folder: Path
) -> None:
    url = f"http://127.0.0.1:{server.server_port}"
    line = FarLine(HOST, str(folder), "r", url, "new", passing=True)
    farlines.ask_all([line], 5.0)
    assert line.took_s is not None, line.error
    [first] = keepers(folder)
    line.close()
    eventually(lambda: not keepers(folder), 20.0)
    assert list(folder.iterdir()) == []
    again = FarLine(HOST, str(folder), "r", url, "new", passing=True)
    farlines.ask_all([again], 5.0)
    assert again.took_s is not None, again.error
    assert keepers(folder) != [first]
