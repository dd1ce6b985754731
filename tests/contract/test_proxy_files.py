"""A fault is on while its file is there, whatever the control port does and however many streams are open."""

from __future__ import annotations

import json
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from drills.access.local import LocalHost
from tests.contract.peers import (
    SSE_END,
    SSE_HEAD,
    Peer,
    ProxyUnderTest,
    Upstream,
    answer,
    event,
    eventually,
    free_port,
    http,
    post,
    proxy,
)

LONG_S = 60.0  # longer than any test: what arrives in one was let go, not waited for
HOST = LocalHost()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "faults"


@pytest.fixture
def upstream() -> Iterator[Upstream]:
    peer = Upstream()
    yield peer
    peer.close()


@pytest.fixture
def front(tmp_path: Path, folder: Path, upstream: Upstream) -> Iterator[ProxyUnderTest]:
    with proxy(tmp_path, upstream.port, "--faults-dir", str(folder)) as running:
        yield running


def write(folder: Path, name: str = "r1", **fault: Any) -> None:
    content = {"id": name, "mode": "first_byte", "delay_s": LONG_S} | fault
    HOST.write(str(folder / f"{name}.json"), json.dumps(content))


def status(front: ProxyUnderTest) -> Any:
    return http("GET", f"{front.control}/status")


def on(front: ProxyUnderTest) -> list[str]:
    return [fault["id"] for fault in status(front)["faults"]]


def held_stream(front: ProxyUnderTest, upstream: Upstream, name: str) -> tuple[Peer, Peer]:
    """Open a stream whose answer the proxy holds back."""
    client = front.connect()
    engine = upstream.accept()
    client.send(post(name))
    engine.request()
    engine.send(SSE_HEAD + event(name))
    return client, engine


def test_a_removed_file_lets_open_streams_go_at_once_while_the_control_port_is_full_of_silence(
    front: ProxyUnderTest, folder: Path, upstream: Upstream
) -> None:
    write(folder)
    eventually(lambda: on(front) == ["r1"])
    host, _, port = front.control.removeprefix("http://").rpartition(":")
    silent = [socket.create_connection((host, int(port))) for _ in range(200)]
    streams = [held_stream(front, upstream, str(number)) for number in range(20)]
    assert all(client.silent(0.01) for client, _ in streams)
    removed = time.monotonic()
    HOST.remove(str(folder / "r1.json"))
    for number, (client, _) in enumerate(streams):
        assert client.until(event(str(number)))
    took_s = time.monotonic() - removed
    assert took_s < 1.0, took_s  # 0.1 s by the clock of an idle machine; far from the 60 s of the fault
    for _, engine in streams:
        engine.send(SSE_END)
    for client, _ in streams:
        client.until(SSE_END)
    for sock in silent:
        sock.close()


def test_a_file_bites_on_a_connection_that_was_there_before(
    front: ProxyUnderTest, folder: Path, upstream: Upstream
) -> None:
    client = front.connect()
    engine = upstream.accept()
    client.send(post("before"))
    engine.request()
    engine.send(answer(b"{}"))
    client.until(b"{}")
    write(folder)
    eventually(lambda: on(front) == ["r1"])
    client.send(post("late"))
    engine.request()
    engine.send(answer(b"{}"))
    assert client.silent()
    HOST.remove(str(folder / "r1.json"))
    assert client.until(b"{}")


def test_a_proxy_that_starts_again_has_the_fault_before_its_first_client(
    tmp_path: Path, folder: Path, upstream: Upstream
) -> None:
    write(folder)
    for _ in range(2):
        with proxy(tmp_path, upstream.port, "--faults-dir", str(folder)) as front:
            client, engine = held_stream(front, upstream, "first of all")
            assert client.silent()
            engine.close()
            front.child.send_signal(signal.SIGKILL)
            front.child.wait()


def test_what_is_no_fault_is_told_and_has_no_effect(front: ProxyUnderTest, folder: Path) -> None:
    HOST.write(str(folder / "torn.json"), '{"id": "r1", "mo')
    HOST.write(str(folder / "odd.json"), '{"id": "r1", "mode": "first_bite"}')
    (folder / "folder.json").mkdir()
    (folder / "nowhere.json").symlink_to(folder / "missing")
    (folder / ".new-1-2-x.json").write_text('{"id": "r1", "mode": "stall"}')
    (folder / "notes.txt").write_text("hello")
    write(folder, "good", mode="refuse")
    eventually(lambda: on(front) == ["good"])
    said = status(front)["faults_dir"]
    assert said["files"] == ["folder.json", "good.json", "nowhere.json", "odd.json", "torn.json"]
    broken = {row["file"]: row["error"] for row in said["broken"]}
    assert set(broken) == {"folder.json", "nowhere.json", "odd.json", "torn.json"}
    assert "did you mean 'first_byte'?" in broken["odd.json"]
    write(folder, "torn", mode="stall")  # mended
    eventually(lambda: sorted(on(front)) == ["good", "torn"])
    HOST.write(str(folder / "good.json"), "")  # broken again: off, and told
    eventually(lambda: on(front) == ["torn"])
    (folder / "folder.json").rmdir()
    (folder / "nowhere.json").unlink()
    eventually(lambda: [row["file"] for row in status(front)["faults_dir"]["broken"]] == ["good.json", "odd.json"])


def test_a_file_s_fault_is_its_file_s_and_no_command_s(front: ProxyUnderTest, folder: Path) -> None:
    write(folder, "a", mode="refuse")
    eventually(lambda: on(front) == ["a"])
    assert front.lift("a")["removed"] is False
    front.fault("stall", name="a")
    HOST.remove(str(folder / "a.json"))
    eventually(lambda: [fault["mode"] for fault in status(front)["faults"]] == ["stall"])
    assert front.lift("a")["removed"] is True


def test_a_folder_that_goes_away_takes_its_faults_with_it(front: ProxyUnderTest, folder: Path) -> None:
    write(folder)
    eventually(lambda: on(front) == ["r1"])
    folder.rename(folder.with_name("elsewhere"))
    eventually(lambda: on(front) == [])
    folder.with_name("elsewhere").rename(folder)
    eventually(lambda: on(front) == ["r1"])


def test_an_honest_health_answer_is_not_delayed(tmp_path: Path, folder: Path, upstream: Upstream) -> None:
    write(folder)
    with proxy(tmp_path, upstream.port, "--health", "honest", "--faults-dir", str(folder)) as front:
        client = front.connect()
        upstream.accept()  # the connection's own
        client.send(b"GET /health HTTP/1.1\r\nHost: t\r\n\r\n")
        probe = upstream.accept()
        probe.request()
        probe.send(answer(b'{"choices":[{"text":" yes","finish_reason":"length"}],"usage":{"completion_tokens":1}}'))
        assert client.until(b"\r\n\r\n").startswith(b"HTTP/1.1 200")


def test_without_a_folder_there_is_none(tmp_path: Path) -> None:
    with proxy(tmp_path, free_port()) as front:
        assert status(front)["faults_dir"] is None
