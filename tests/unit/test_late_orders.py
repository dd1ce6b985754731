"""Orders over a lasting link: what comes too late is not carried out, whoever gave it is told, and the link ends."""

from __future__ import annotations

import io
import json
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from drills.access import remote
from drills.access.linelink import LineLink
from drills.access.remote import WAY_S, RemoteHost, answer, serve
from drills.access.sshway import Way
from drills.errors import Unreachable
from drills.model import Completed, Json


class NotSent(Unreachable):
    """Nobody has carried it out."""


class Wire:
    """A pipe to a process there, whose lines can be held up."""

    def __init__(self) -> None:
        self.answers: queue.Queue[bytes | None] = queue.Queue()
        self.sent: list[Json] = []
        self.ended = False

    def send(self, line: bytes) -> None:
        self.sent.append(json.loads(line))
        out = io.StringIO()
        server = remote._Server(out)
        server.busy = 1
        server._one(line.decode())
        self.answers.put(out.getvalue().encode())

    def recv(self) -> tuple[bool, bytes] | None:
        data = self.answers.get(timeout=30)
        return None if data is None else (False, data)

    def shutdown(self) -> None:
        self.ended = True
        self.answers.put(None)


@pytest.fixture
def there(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A link to a process that began a moment ago; how late what is sent comes there can be set."""

    class There:
        def __init__(self) -> None:
            self.wires: list[Wire] = []
            self.link = LineLink("link", self.opened, unsent=NotSent, lost=Unreachable)
            self.host = RemoteHost("g1", self.carry)

        def opened(self, timeout_s: float) -> Wire:
            assert timeout_s > 0
            self.wires.append(Wire())
            self.late(0.0)
            return self.wires[-1]

        def late(self, seconds: float) -> None:
            monkeypatch.setattr(remote, "BEGAN_MONO", time.monotonic() - seconds)

        def carry(self, argv: Sequence[str], stdin: str, timeout_s: float) -> Completed:
            return Completed(tuple(argv), 0, self.link.ask(json.loads(stdin), timeout_s) or "", "")

    made = There()
    yield made
    made.link.close()


def test_a_deed_that_was_held_up_is_not_done(there: Any, tmp_path: Path) -> None:
    there.host.write(str(tmp_path / "in time"), "")
    there.late(WAY_S + 1)
    deeds: list[Callable[[], object]] = [
        lambda: there.host.write(str(tmp_path / "late"), ""),
        lambda: there.host.run(["touch", str(tmp_path / "late")], timeout_s=5),
        lambda: there.host.signal(1, 1, "TERM"),
        lambda: there.host.remove(str(tmp_path / "in time")),
    ]
    for deed in deeds:
        with pytest.raises(NotSent, match=r"^link: an order came too late, and was not carried out$"):
            deed()
        assert there.wires[-1].ended
        there.host.list("/")  # by a new one
        there.late(WAY_S + 1)
    assert [path.name for path in tmp_path.iterdir()] == ["in time"]


def test_a_look_that_was_held_up_is_an_answer(there: Any, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    there.host.list("/")
    there.late(3600.0)
    assert there.host.list(str(tmp_path)) == ["file"]
    assert "within_s" not in there.wires[0].sent[-1]


def test_a_link_that_is_old_makes_nothing_late(there: Any, tmp_path: Path) -> None:
    """Both ends count from the begin of the link, so that neither clock matters."""
    there.host.list("/")
    there.link._way.opened_mono -= 86400.0
    there.late(86400.0)
    there.host.write(str(tmp_path / "file"), "")
    assert there.wires[0].sent[-1]["sent_s"] >= 86400.0
    assert (tmp_path / "file").exists()


def test_a_command_of_its_own_counts_from_its_begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits for its line, which may be held up too."""

    def carry(argv: Sequence[str], stdin: str, timeout_s: float) -> Completed:
        return Completed(tuple(argv), 0, json.dumps(answer(stdin)), "")

    monkeypatch.setattr(remote, "BEGAN_MONO", time.monotonic() - WAY_S - 1)
    with pytest.raises(Unreachable, match=r"^g1: write: came 11 s late, and was not carried out$"):
        RemoteHost("g1", carry).write(str(tmp_path / "file"), "")
    assert not (tmp_path / "file").exists()


def test_an_order_and_the_end_of_the_link_in_one(tmp_path: Path) -> None:
    """It may be carried out: whoever undoes it shuts its fence first."""
    order = {"call": "write", "arguments": {"path": str(tmp_path / "file"), "text": ""}, "n": 1}
    gone = tmp_path / "receipts" / "x.json"
    serve([json.dumps({**order, "receipt": str(gone)})], out := io.StringIO())
    for thread in threading.enumerate():
        if thread.name.endswith("(_one)"):
            thread.join(10)
    assert "was not carried out" in json.loads(out.getvalue())["error"]
    assert not (tmp_path / "file").exists()


# ---- what nobody has confirmed -----------------------------------------------------------------------------


@pytest.mark.parametrize("drop", [True, False])
def test_what_a_connection_that_broke_has_not_delivered_goes_with_it(drop: bool) -> None:
    """Else the kernel sends it for many minutes, and the network may be back by then."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listening:
        ours = socket.create_connection(listening.getsockname())
        theirs, _ = listening.accept()
    ours.setblocking(False)
    sent = 0
    with suppress(BlockingIOError):
        while True:  # until it lies here and there: nobody reads
            sent += ours.send(b"x" * 65536)
    Way(None, "", [ours.close], ours).close(drop=drop)
    with closing(theirs):
        theirs.settimeout(10)
        got, reset = 0, False
        try:
            while data := theirs.recv(1 << 20):
                got += len(data)
        except ConnectionResetError:
            reset = True
    assert (reset, got < sent) == (drop, drop)
