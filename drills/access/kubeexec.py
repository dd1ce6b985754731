"""A command in a container: its output, its errors and its exit code, within a deadline.

The client's own websocket waits for ever, to connect and in the middle of a frame; so the channels are read here.
The command itself is not ended by the deadline: what must end, ends by itself (`timeout`).
"""

from __future__ import annotations

import json
import ssl
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

import websocket

from drills.access.kubernetes import Api
from drills.access.kubetypes import PODS, ClusterAway, ClusterError
from drills.model import Completed, Json

STDIN, STDOUT, STDERR, ERROR, CLOSE = 0, 1, 2, 3, 255
V5: Final = "v5.channel.k8s.io"  # can say that the input is over
PROTOCOLS: Final = (V5, "v4.channel.k8s.io")
OUTPUT_MAX: Final = 64 << 20  # bytes
TIMED_OUT: Final = 124
NOT_RUN: Final = 127


def run(
    api: Api,
    namespace: str,
    pod: str,
    container: str | None,
    argv: Sequence[str],
    *,
    timeout_s: float,
    stdin: str | None = None,
    sink: Callable[[bytes], object] | None = None,
) -> Completed:
    """Run a command in a container to its end; a timeout is a result. Raises ClusterError when it cannot be told.

    Status 127: it could not be started. The input ends with `stdin`, where server and kubelet know how to say so.
    `sink` takes the output as it comes, bytes of any length; then there is none in the result.
    """
    deadline = api.clock.mono() + timeout_s
    link = opened(api, namespace, pod, container, argv, timeout_s=timeout_s, stdin=stdin is not None)
    try:
        return _followed(api, link, tuple(argv), stdin, deadline, _what(namespace, pod), sink)
    finally:
        with suppress(Exception):
            link.shutdown()


def opened(
    api: Api,
    namespace: str,
    pod: str,
    container: str | None,
    argv: Sequence[str],
    *,
    timeout_s: float,
    stdin: bool,
) -> Any:
    """Start a command in a container; returns the websocket with its channels. Raises ClusterError."""
    api.note("create", PODS, "exec")
    api.note("get", PODS, "exec")  # which of the two is asked for depends on the server's version
    query = [("command", word) for word in argv] + ([("container", container)] if container else [])
    query += [("stdout", "true"), ("stderr", "true"), ("stdin", "true" if stdin else "false")]
    url = f"{api.server}{PODS.path(namespace, pod, 'exec')}?{urlencode(query)}"
    return _connected(api, url.replace("http", "ws", 1), _what(namespace, pod), timeout_s)


def _what(namespace: str, pod: str) -> str:
    return f"exec in pod {pod} in {namespace}"


def _connected(api: Api, url: str, what: str, timeout_s: float) -> websocket.WebSocket:
    c = api.configuration
    tls: Json = {"cert_reqs": ssl.CERT_REQUIRED if c.verify_ssl else ssl.CERT_NONE}
    tls |= {"ca_certs": c.ssl_ca_cert} if c.ssl_ca_cert else {}
    tls |= {"certfile": c.cert_file, "keyfile": c.key_file} if c.cert_file else {}
    tls |= {"server_hostname": c.tls_server_name} if c.tls_server_name else {}
    proxy = urlsplit(c.proxy) if c.proxy else None
    through: Json = {"http_proxy_host": proxy.hostname, "http_proxy_port": proxy.port} if proxy else {}
    through |= {"http_no_proxy": c.no_proxy.split(",")} if c.no_proxy else {}
    try:
        return websocket.create_connection(
            url,
            timeout=max(0.05, min(timeout_s, api.limits.read_s)),
            header=[f"{name}: {value}" for name, value in api.headers().items()],
            subprotocols=list(PROTOCOLS),
            sslopt=tls,
            suppress_origin=True,
            **through,
        )
    except websocket.WebSocketBadStatusException as error:
        raise api.refused(what, int(error.status_code), _body(error)) from None
    except (websocket.WebSocketException, OSError, ValueError) as error:
        late = isinstance(error, (websocket.WebSocketTimeoutException, TimeoutError))
        why = "does not answer in time" if late else "cannot be reached"
        raise ClusterAway(f"{api.where(what)}: {api.server} {why}") from None


def _body(error: Any) -> Json:
    try:
        return dict(json.loads(error.resp_body))
    except (ValueError, TypeError):
        return {}


def _followed(
    api: Api,
    link: websocket.WebSocket,
    argv: tuple[str, ...],
    stdin: str | None,
    deadline: float,
    what: str,
    sink: Callable[[bytes], object] | None,
) -> Completed:
    """Send the input and read all channels until the exit code is told, or the time is over."""
    got: dict[int, bytearray] = {STDOUT: bytearray(), STDERR: bytearray(), ERROR: bytearray()}
    try:
        if stdin is not None:
            link.send_binary(bytes([STDIN]) + stdin.encode())
            if link.getsubprotocol() == V5:
                link.send_binary(bytes([CLOSE, STDIN]))
        while not (link.connected is False or got[ERROR]):
            left_s = deadline - api.clock.mono()
            if left_s <= 0:
                return _done(argv, TIMED_OUT, got, timed_out=True)
            link.settimeout(left_s)
            data = link.recv()
            data = data.encode() if isinstance(data, str) else data
            if not data:  # the other side closed
                break
            if sink is not None and data[0] == STDOUT:
                sink(data[1:])
            elif data[0] in got:
                got[data[0]] += data[1:]
            if sum(map(len, got.values())) > OUTPUT_MAX:
                raise ClusterError(f"{api.where(what)}: more than {OUTPUT_MAX >> 20} MiB of output; it was not read on")
    except websocket.WebSocketTimeoutException:
        return _done(argv, TIMED_OUT, got, timed_out=True)
    except (websocket.WebSocketException, OSError) as error:
        if not got[ERROR]:
            why = f"broke the connection ({type(error).__name__}); how the command ended is not known"
            raise ClusterAway(f"{api.where(what)}: {api.server} {why}") from None
    return _ended(api, argv, got, what)


def _ended(api: Api, argv: tuple[str, ...], got: dict[int, bytearray], what: str) -> Completed:
    try:
        status = dict(json.loads(bytes(got[ERROR])))
    except (ValueError, TypeError):
        why = "ended the connection without saying how the command ended"
        raise ClusterAway(f"{api.where(what)}: {api.server} {why}") from None
    if status.get("status") == "Success":
        return _done(argv, 0, got)
    details = status.get("details") or {}
    codes = [str(c.get("message")) for c in details.get("causes") or () if c.get("reason") == "ExitCode"]
    if codes and codes[0].isdigit():
        return _done(argv, int(codes[0]), got)
    got[STDERR] += api.clean(str(status.get("message"))).encode()
    return _done(argv, NOT_RUN, got)


def _done(argv: tuple[str, ...], rc: int, got: dict[int, bytearray], *, timed_out: bool = False) -> Completed:
    out, err = (bytes(got[channel]).decode(errors="replace") for channel in (STDOUT, STDERR))
    return Completed(argv, rc, out, err, timed_out)
