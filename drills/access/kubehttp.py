"""What the wrapped API needs of HTTP: bodies read by a deadline, why there is no answer, when to come again."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from email.utils import parsedate_to_datetime

import urllib3

from drills.model import Json

CHUNK: int = 65536
LINE_MAX = 8 << 20  # bytes; an object in etcd is smaller than 2 MiB


class NoAnswer(Exception):
    """There is no (whole) answer. `sent` is False when the request surely never arrived."""

    def __init__(self, why: str, *, sent: bool = True) -> None:
        super().__init__(why)
        self.sent = sent


def no_answer(error: Exception) -> NoAnswer:
    """Return why there is none, without the address of Python objects or of a proxy with its password."""
    if isinstance(error, urllib3.exceptions.ProxyError):
        return NoAnswer("cannot be reached through the proxy of the environment or kubeconfig", sent=False)
    if isinstance(error, urllib3.exceptions.NameResolutionError):
        return NoAnswer("has a name that does not resolve", sent=False)
    if isinstance(error, urllib3.exceptions.NewConnectionError):
        return NoAnswer("refuses connections" if "refused" in str(error) else "cannot be reached", sent=False)
    if isinstance(error, urllib3.exceptions.ConnectTimeoutError):
        return NoAnswer("does not accept connections in time", sent=False)
    if isinstance(error, urllib3.exceptions.TimeoutError):
        return NoAnswer("does not answer in time")
    if isinstance(error, urllib3.exceptions.SSLError):
        return NoAnswer("does not speak TLS as the kubeconfig says (certificate, CA)", sent=False)
    if isinstance(error, urllib3.exceptions.ProtocolError):
        return NoAnswer("broke the connection")
    return NoAnswer(f"cannot be asked ({type(error).__name__})")


@contextmanager
def given_back(response: urllib3.BaseHTTPResponse) -> Iterator[None]:
    """Give a response's connection back when it was read to its end, else close it."""
    try:
        yield
    finally:
        with suppress(Exception):
            if response.closed:
                response.release_conn()
            else:
                response.close()


def parts(response: urllib3.HTTPResponse) -> Iterator[bytes]:
    """Yield a body as it comes, each part as soon as it is there. Raises NoAnswer when it is cut."""
    while True:
        try:
            part = response.read1(CHUNK)
        except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
            raise no_answer(error) from None
        if not part:
            return
        yield part


def lines(response: urllib3.HTTPResponse) -> Iterator[bytes]:
    """Yield the whole lines of a body; what is cut off at its end is no line."""
    rest = b""
    for part in parts(response):
        *whole, rest = (rest + part).split(b"\n")
        yield from (line for line in whole if line.strip())
        if len(rest) > LINE_MAX:
            raise NoAnswer("answers with a line that does not end")


def parsed(text: bytes) -> Json:
    """Return a JSON object. Raises NoAnswer."""
    try:
        data = json.loads(text)
    except ValueError:
        data = None
    if not isinstance(data, dict):
        raise NoAnswer("answers with something that is no JSON object")
    return data


def seconds(retry_after: str | None, now_wall: float) -> float:
    """Return how long a Retry-After asks to wait: seconds, or a date; 0 when it says nothing of use."""
    if retry_after is None:
        return 0.0
    if retry_after.strip().isdigit():
        return float(retry_after)
    try:
        return max(0.0, parsedate_to_datetime(retry_after).timestamp() - now_wall)
    except (ValueError, TypeError, OverflowError, OSError):
        return 0.0


def wall(text: str | None) -> float | None:
    """Return a time of the API (RFC 3339) as seconds since the epoch; None when there is none."""
    from datetime import datetime

    if not text:
        return None
    try:
        return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()
    except ValueError:
        return None


def micro(wall_s: float) -> str:
    """Return a wall time as the API's MicroTime."""
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(wall_s)) + f".{int(wall_s % 1 * 1e6):06d}Z"
