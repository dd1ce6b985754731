"""How the model's connection broke, and how the user's is broken the same way."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct

import aiohttp


def kind(error: BaseException) -> str:
    """Return refused or reset."""
    if isinstance(error, aiohttp.ClientConnectorError | ConnectionRefusedError):
        return "refused"
    return "reset"


def is_reset(error: BaseException | None) -> bool:
    """Whether it ended with RST rather than with FIN."""
    return isinstance(error, OSError) and not isinstance(error, aiohttp.ServerDisconnectedError)


def die(transport: asyncio.BaseTransport | None, *, reset: bool) -> None:
    """End the user's connection the way the model's ended: with RST, or with FIN and no terminal chunk."""
    if not isinstance(transport, asyncio.WriteTransport):
        return
    if not reset:
        transport.close()
        return
    with contextlib.suppress(OSError):
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()
