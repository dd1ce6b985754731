"""A command in a container, over a websocket spoken by hand: channels, exit codes, deadlines."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import socket
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from drills.access import kubeexec
from drills.access.kubernetes import Limits, connect
from drills.access.kubetypes import ClusterAway, ClusterError
from drills.model import Completed
from tests.contract.kube_talk import TOKEN, kubeconfig, says, status
from tests.unit.scripted import Script, Server, reset, silence

GUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
SUCCESS = {"status": "Success"}


def failed(code: int) -> dict[str, Any]:
    causes = [{"reason": "ExitCode", "message": str(code)}]
    return {"status": "Failure", "reason": "NonZeroExitCode", "details": {"causes": causes}}


def frame(channel: int, data: bytes) -> bytes:
    payload = bytes([channel]) + data
    assert len(payload) < 65536
    size = (
        struct.pack(">BB", 0x82, len(payload)) if len(payload) < 126 else struct.pack(">BBH", 0x82, 126, len(payload))
    )
    return size + payload


def upgraded(act: Callable[[socket.socket], None], server: list[Server], protocol: str = "v5.channel.k8s.io") -> Script:
    """Return a script that accepts the websocket and goes on with `act`."""

    def script(connection: socket.socket, number: int) -> bool:
        asked = server[0].requests[number].decode()
        key = re.search(r"sec-websocket-key: *(\S+)", asked, re.IGNORECASE)
        assert key is not None
        accept = base64.b64encode(hashlib.sha1(f"{key[1]}{GUID}".encode()).digest()).decode()
        head = ["HTTP/1.1 101 Switching Protocols", "Upgrade: websocket", "Connection: Upgrade"]
        head += [f"Sec-WebSocket-Accept: {accept}", f"Sec-WebSocket-Protocol: {protocol}"]
        connection.sendall("\r\n".join([*head, "", ""]).encode())
        act(connection)
        return False

    return script


def sends(*frames: bytes) -> Callable[[socket.socket], None]:
    def act(connection: socket.socket) -> None:
        for one in frames:
            connection.sendall(one)

    return act


Run = Callable[..., Completed]


@pytest.fixture
def execute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    def run(make: Callable[[list[Server]], Script], *, timeout_s: float = 2.0, **more: Any) -> Completed:
        servers: list[Server] = []
        script = make(servers)
        with Server(script) as server:
            servers.append(server)
            monkeypatch.setenv("KUBECONFIG", str(kubeconfig(tmp_path, f"http://127.0.0.1:{server.port}")))
            api = connect(limits=Limits(connect_s=0.5, read_s=0.5, deadline_s=1.0))
            done = kubeexec.run(api, "llm", "vllm-0", "vllm", ["echo", "a b&c"], timeout_s=timeout_s, **more)
            assert f"authorization: bearer {TOKEN}" in server.requests[0].decode().lower()
            return done

    return run


def test_output_errors_and_exit_code_come_apart(execute: Run) -> None:
    frames = (frame(1, b"out "), frame(2, b"err"), frame(1, "put é".encode()), frame(3, json.dumps(failed(3)).encode()))
    done = execute(lambda servers: upgraded(sends(*frames), servers))
    assert (done.rc, done.out, done.err, done.timed_out) == (3, "out put é", "err", False)


def test_a_sink_takes_the_output_byte_for_byte_as_it_comes(execute: Run) -> None:
    parts, taken = [bytes(range(256)), b"", b"\xff\x00", b"\xc3"], bytearray()
    frames = [frame(1, part) for part in parts]
    frames += [frame(2, b"tar: note"), frame(3, json.dumps(SUCCESS).encode())]
    done = execute(lambda servers: upgraded(sends(*frames), servers), sink=taken.extend)
    assert (done.rc, done.out, done.err) == (0, "", "tar: note")
    assert bytes(taken) == b"".join(parts)


def test_success_is_zero(execute: Run) -> None:
    done = execute(lambda servers: upgraded(sends(frame(3, json.dumps(SUCCESS).encode())), servers))
    assert done.rc == 0


def test_the_words_of_the_command_arrive_as_they_are(tmp_path: Path, execute: Run) -> None:
    asked: list[str] = []

    def make(servers: list[Server]) -> Script:
        def act(connection: socket.socket) -> None:
            asked.append(servers[0].requests[0].decode().split(" ")[1])
            connection.sendall(frame(3, json.dumps(SUCCESS).encode()))

        return upgraded(act, servers)

    execute(make)
    assert asked[0].startswith("/api/v1/namespaces/llm/pods/vllm-0/exec?command=echo&command=a+b%26c&container=vllm")


def test_what_cannot_be_started_says_so(execute: Run) -> None:
    said = {"status": "Failure", "reason": "InternalError", "message": 'exec: "echo": not found in $PATH'}
    done = execute(lambda servers: upgraded(sends(frame(3, json.dumps(said).encode())), servers))
    assert (done.rc, "not found" in done.err) == (127, True)


def test_a_command_that_does_not_end_is_a_result(execute: Run) -> None:
    def act(connection: socket.socket) -> None:
        connection.sendall(frame(1, b"half"))
        silence(connection)

    done = execute(lambda servers: upgraded(act, servers), timeout_s=0.4)
    assert (done.rc, done.timed_out, done.out) == (124, True, "half")


def test_half_a_frame_does_not_hold_it_up(execute: Run) -> None:
    def act(connection: socket.socket) -> None:
        connection.sendall(frame(1, b"0123456789")[:6])
        silence(connection)

    assert execute(lambda servers: upgraded(act, servers), timeout_s=0.4).timed_out


def test_input_is_sent_and_ended(execute: Run) -> None:
    got: list[bytes] = []

    def act(connection: socket.socket) -> None:
        while len(got) < 2:
            head = connection.recv(2, socket.MSG_WAITALL)
            mask = connection.recv(4, socket.MSG_WAITALL)
            data = connection.recv(head[1] & 127, socket.MSG_WAITALL)
            got.append(bytes(byte ^ mask[i % 4] for i, byte in enumerate(data)))
        connection.sendall(frame(3, json.dumps(SUCCESS).encode()))

    assert execute(lambda servers: upgraded(act, servers), stdin="hello\n").rc == 0
    assert got == [b"\x00hello\n", b"\xff\x00"]


@pytest.mark.parametrize("frames", [(), (frame(1, b"x"),), (frame(3, b"nonsense"),)])
def test_an_end_without_an_exit_code_is_no_success(execute: Run, frames: tuple[bytes, ...]) -> None:
    with pytest.raises(ClusterAway, match="ended") as caught:
        execute(lambda servers: upgraded(sends(*frames), servers))
    assert TOKEN not in str(caught.value)


@pytest.mark.parametrize(
    ("script", "kind", "words"),
    [
        (says(403, status(403, "Forbidden", "cannot create pods/exec")), ClusterError, "cannot create pods/exec"),
        (says(401, status(401, "Unauthorized")), ClusterAway, "sign in again"),
        (lambda c, n: silence(c), ClusterAway, "in time"),
        (lambda c, n: reset(c), ClusterAway, "cannot be reached"),
    ],
)
def test_a_server_that_does_not_let_it_in_is_one_line(
    execute: Run, script: Script, kind: type[ClusterError], words: str
) -> None:
    with pytest.raises(kind) as caught:
        execute(lambda _: script)
    text = str(caught.value)
    assert words in text
    assert len(text.splitlines()) == 1
    assert TOKEN not in text
