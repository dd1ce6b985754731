"""A lasting link to a container: answers find who asked, in any order, and a link that breaks is made anew."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from drills.access.kubelink import Link
from drills.access.kubernetes import Limits, connect
from drills.access.kubetypes import ClusterAway
from drills.model import Json
from tests.contract.kube_talk import kubeconfig
from tests.contract.test_kubernetes_exec import frame, upgraded
from tests.unit.scripted import Script, Server

Act = Callable[[socket.socket], None]


def order(connection: socket.socket) -> Json:
    """Read one line that was sent, out of its masked frame."""
    head = connection.recv(2, socket.MSG_WAITALL)
    mask = connection.recv(4, socket.MSG_WAITALL)
    masked = connection.recv(head[1] & 0x7F, socket.MSG_WAITALL)
    line = bytes(byte ^ mask[i % 4] for i, byte in enumerate(masked))
    assert line[:1] == b"\0"  # standard input
    assert line[-1:] == b"\n"
    found: Json = json.loads(line[1:])
    return found


def said(asked: Json) -> bytes:
    return json.dumps({"n": asked["n"], "ok": True, "value": asked["call"]}).encode() + b"\n"


@pytest.fixture
def linked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Act], tuple[Link, Server]]]:
    opened: list[tuple[Link, Server]] = []

    def link_to(act: Act) -> tuple[Link, Server]:
        servers: list[Server] = []

        def script(connection: socket.socket, number: int) -> bool:
            accept: Script = upgraded(act, servers)
            return accept(connection, number)

        server = Server(script).__enter__()
        servers.append(server)
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig(tmp_path, f"http://127.0.0.1:{server.port}")))
        api = connect(limits=Limits(connect_s=0.5, read_s=0.5, deadline_s=1.0))
        opened.append((Link(api, "llm", "helper", "helper", ["serve"]), server))
        return opened[-1]

    yield link_to
    for link, server in opened:
        link.close()
        server.__exit__(None, None, None)


def answers(link: Link, *calls: str) -> dict[str, str]:
    """Ask from a thread each; returns what each was told."""
    got: dict[str, str] = {}

    def ask(call: str) -> None:
        line = link.ask({"call": call}, 5.0)
        got[call] = json.loads(line)["value"] if line else "nothing"

    threads = [threading.Thread(target=ask, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    return got


def test_many_calls_share_one_connection(linked: Callable[[Act], tuple[Link, Server]]) -> None:
    def act(connection: socket.socket) -> None:
        for _ in range(3):
            connection.sendall(frame(1, said(order(connection))))

    link, server = linked(act)
    assert [json.loads(link.ask({"call": str(i)}, 5.0) or "{}")["value"] for i in range(3)] == ["0", "1", "2"]
    assert server.connections == 1


def test_answers_in_another_order_and_in_pieces_find_who_asked(linked: Callable[[Act], tuple[Link, Server]]) -> None:
    def act(connection: socket.socket) -> None:
        first, second = order(connection), order(connection)
        both = said(second) + said(first)
        connection.sendall(frame(1, both[:10]) + frame(2, b"a warning") + frame(1, both[10:]))

    link, _ = linked(act)
    assert answers(link, "a", "b") == {"a": "a", "b": "b"}


def test_a_link_that_breaks_says_so_and_the_next_call_makes_another(
    linked: Callable[[Act], tuple[Link, Server]],
) -> None:
    def act(connection: socket.socket) -> None:
        asked = order(connection)
        if asked["call"] == "break":
            connection.sendall(frame(2, b"Terminated"))
        else:
            connection.sendall(frame(1, said(asked)))

    link, server = linked(act)
    with pytest.raises(ClusterAway, match="the answer is not known: Terminated"):
        link.ask({"call": "break"}, 5.0)
    assert json.loads(link.ask({"call": "again"}, 5.0) or "{}")["value"] == "again"
    assert server.connections == 2


def test_no_answer_in_time_is_none_and_ends_the_link(linked: Callable[[Act], tuple[Link, Server]]) -> None:
    asked: list[Json] = []

    def act(connection: socket.socket) -> None:
        asked.append(order(connection))
        while len(asked) == 1 and connection.recv(100):
            pass

    link, server = linked(act)
    assert link.ask({"call": "hang"}, 0.2) is None
    assert server.connections == 1


def test_a_link_that_ends_late_fails_no_answer_of_the_next_one(
    linked: Callable[[Act], tuple[Link, Server]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who gave up on a link has ended it, and its reader may notice only when the next one is in use."""
    ended, asked_again = threading.Event(), threading.Event()

    def act(connection: socket.socket) -> None:
        asked = order(connection)
        if asked["call"] == "again":
            asked_again.set()
            assert ended.wait(10)
            connection.sendall(frame(1, said(asked)))
        elif asked["call"] == "hang":
            while connection.recv(100):
                pass

    link, _ = linked(act)
    readers: list[threading.Thread] = []
    read = link._read

    def late(one: Any, way: Any) -> None:
        """As `_read`, but the first one comes to its end only once the second one has been asked."""
        readers.append(threading.current_thread())
        first = len(readers) == 1
        read(Late(one) if first else one, way)
        if first:
            ended.set()

    class Late:
        def __init__(self, one: Any) -> None:
            self.one = one

        def send(self, line: bytes) -> None:
            raise AssertionError(line)

        def recv(self) -> None:
            assert asked_again.wait(10)

        def shutdown(self) -> None:
            self.one.shutdown()

    monkeypatch.setattr(link, "_read", late)
    assert link.ask({"call": "hang"}, 0.2) is None
    assert json.loads(link.ask({"call": "again"}, 5.0) or "{}")["value"] == "again"
