"""Messages between API server and core over a socketpair: length, JSON, and raw bytes (token ids)."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from typing import Any

_HEAD = struct.Struct("!II")  # bytes of JSON, bytes of blob
Message = tuple[Any, bytes]


def pack(value: Any, blob: bytes = b"") -> bytes:
    """Return one framed message."""
    text = json.dumps(value, separators=(",", ":")).encode()
    return b"".join((_HEAD.pack(len(text), len(blob)), text, blob))


class Unpacker:
    """Turns a stream of bytes back into messages, whatever pieces it comes in."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Message]:
        """Add bytes and yield every message that is now complete."""
        self._buffer += data
        while len(self._buffer) >= _HEAD.size:
            text_len, blob_len = _HEAD.unpack_from(self._buffer)
            end = _HEAD.size + text_len + blob_len
            if len(self._buffer) < end:
                return
            text = bytes(self._buffer[_HEAD.size : _HEAD.size + text_len])
            blob = bytes(self._buffer[_HEAD.size + text_len : end])
            del self._buffer[:end]
            yield json.loads(text), blob
