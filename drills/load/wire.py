"""HTTP/1.1 responses as bytes: the head, and the three ways a body can end. Pure, no sockets.

A body decoder is fed what was received and gives back payload; `ended` says that the body is whole, and
`eof()` whether the end of the connection is a proper end of it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Protocol

_HEAD_MAX = 65536
_SIZE = re.compile(rb"([0-9a-fA-F]{1,15})[ \t]*(?:;.*)?$", re.DOTALL)
_LINE_MAX = 1024


class WireError(Exception):
    """The other side does not speak HTTP/1.1."""


@dataclass(frozen=True, slots=True)
class Head:
    """Status and headers (names in lower case; the last of several wins)."""

    status: int
    headers: dict[str, str]
    reusable: bool  # the connection may carry another request after the body


class Body(Protocol):
    """Takes received bytes, gives payload."""

    ended: bool

    def feed(self, data: bytes) -> bytes:
        """Return the payload in `data`; raises WireError when it is malformed."""

    def eof(self) -> bool:
        """Return whether the connection may end here."""


def split_head(data: bytes) -> tuple[Head, bytes] | None:
    """Return the response head and what follows it; None when the head is not whole yet.

    Interim responses (1xx) are skipped. Raises WireError when it is no HTTP/1.x head.
    """
    if not b"HTTP/1.".startswith(data[:7]) and not data.startswith(b"HTTP/1."):
        raise WireError(f"no HTTP/1.x status line: {data[:40]!r}")
    end = data.find(b"\r\n\r\n")
    if end < 0:
        if len(data) > _HEAD_MAX:
            raise WireError(f"response head over {_HEAD_MAX} bytes")
        return None
    head = _parse(data[:end])
    rest = data[end + 4 :]
    return split_head(rest) if 100 <= head.status < 200 else (head, rest)


def _parse(block: bytes) -> Head:
    first, *lines = block.decode("latin-1").split("\r\n")
    version, _, status = first.partition(" ")
    if len(status) < 3 or not status[:3].isascii() or not status[:3].isdigit():
        raise WireError(f"no status in {first[:40]!r}")
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon:
            raise WireError(f"no header: {line[:40]!r}")
        headers[name.strip().lower()] = value.strip()
    connection = headers.get("connection", "").lower()
    reusable = connection != "close" if version == "HTTP/1.1" else connection == "keep-alive"
    return Head(int(status[:3]), headers, reusable)


def body_of(head: Head) -> Body:
    """Return the decoder that the head calls for."""
    if head.status in (204, 304):
        return Sized(0)
    if "chunked" in head.headers.get("transfer-encoding", "").lower():
        return Chunked()
    length = head.headers.get("content-length")
    if length is None:
        return UntilClose()
    if not length.isascii() or not length.isdigit():
        raise WireError(f"content-length is {length[:40]!r}")
    return Sized(int(length))


class Sized:
    """A body with a content length."""

    def __init__(self, length: int) -> None:
        self._left = length
        self.ended = length == 0

    def feed(self, data: bytes) -> bytes:
        """Return the payload; bytes past the length are dropped."""
        part = data[: self._left]
        self._left -= len(part)
        self.ended = self._left == 0
        return part

    def eof(self) -> bool:
        """Return whether the whole length was there."""
        return self.ended


class UntilClose:
    """A body that ends with the connection."""

    ended = False

    def feed(self, data: bytes) -> bytes:
        """Return `data`."""
        return data

    def eof(self) -> bool:
        """Return True: closing is how such a body ends."""
        return True


class Chunked:
    """A body in chunks. A chunk may come in pieces, and several chunks in one piece."""

    def __init__(self) -> None:
        self.ended = False
        self._rest = b""  # an unfinished size line or trailer
        self._left = 0  # payload bytes of the open chunk still to come
        self._crlf = False  # the line break that closes a chunk is still to come
        self._trailer = False

    def feed(self, data: bytes) -> bytes:
        """Return the payload of all chunks in `data`; raises WireError on a malformed chunk."""
        if not (self._rest or self._left or self._crlf or self._trailer):
            payload = _one_chunk(data)
            if payload is not None:
                return payload
        return self._feed(data)

    def _feed(self, data: bytes) -> bytes:
        buffer = self._rest + data if self._rest else data
        self._rest = b""
        payload: list[bytes] = []
        at = 0
        while at < len(buffer) and not self.ended:
            if self._left:
                part = buffer[at : at + self._left]
                payload.append(part)
                at += len(part)
                self._left -= len(part)
                self._crlf = self._left == 0
                continue
            end = buffer.find(b"\r\n", at)
            if end < 0:
                self._keep(buffer[at:])
                break
            self._line(buffer[at:end])
            at = end + 2
        return payload[0] if len(payload) == 1 else b"".join(payload)

    def _keep(self, rest: bytes) -> None:
        if len(rest) > _LINE_MAX or (self._crlf and rest != b"\r"):
            raise WireError(f"no chunk: {rest[:40]!r}")
        self._rest = rest

    def _line(self, line: bytes) -> None:
        if self._trailer:
            self.ended = not line
        elif self._crlf:
            if line:
                raise WireError(f"chunk longer than it said: {line[:40]!r}")
            self._crlf = False
        else:
            self._left = _size(line)
            self._trailer = self._left == 0

    def eof(self) -> bool:
        """Return whether the last chunk was there."""
        return self.ended


def _one_chunk(data: bytes) -> bytes | None:
    """Return the payload when `data` is exactly one chunk, as it nearly always is; else None."""
    at = data.find(b"\r\n")
    try:
        size = int(data[:at], 16)
    except ValueError:
        return None
    whole = size > 0 and len(data) == at + size + 4 and data.endswith(b"\r\n")
    return data[at + 2 : -2] if whole else None


def _size(line: bytes) -> int:
    match = _SIZE.match(line)
    if match is None:
        raise WireError(f"no chunk size: {line[:40]!r}")
    return int(match[1], 16)
