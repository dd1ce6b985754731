"""A sign of life in the kernel: a redirect that asks for it ends by itself when the proxy dies or hangs.

A rule `-m recent --rcheck --seconds N --name LIST --rdest` matches only while the address it leads to was put into the
list within N seconds. The proxy puts it there again and again, from the loop that also serves its connections.
"""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

BEAT_S = 0.5
#: After so many seconds without a beat new connections go past the proxy: whole seconds, as iptables has them.
VALID_S = 3


def _say(file: Path, address: str) -> None:
    """Put the address into the list; the kernel takes it at once."""
    file.write_text(f"+{address}\n")


async def beating(file: Path, address: str) -> None:
    """Say it for ever; there is no list before there is a rule."""
    while True:
        with contextlib.suppress(OSError):
            _say(file, address)
        await asyncio.sleep(BEAT_S)
