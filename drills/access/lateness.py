"""How late a server answers: small requests over connections that are kept, all at the same time.

A connection may be older than the fault it is to show, and a request may be on its way while the fault goes.
"""

from __future__ import annotations

import http.client
import socket
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from urllib.parse import urlsplit

#: Answered by every server of the OpenAI API, without work for its engine.
PATH = "/v1/models"
CONNECT_TIMEOUT_S = 0.5
POLL_S, HURRY_S = 0.05, 1.5


class Line:
    """One connection to a server. `took_s` is how long the last answer took to begin, None with `error` when none did.

    `since` says in words how old the connection is: one that the server closed meanwhile is opened anew, and is "new".
    """

    def __init__(self, name: str, url: str, since: str) -> None:
        self.name, self.since = name, since
        self.took_s: float | None = None
        self.error = ""
        parts = urlsplit(url)
        self._connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=CONNECT_TIMEOUT_S)
        self._sent: float | None = None
        self._opened = self._given_up = False

    def send(self) -> bool:
        """Put a request on its way; False, with `error`, when that is not possible. Takes half a second at most."""
        try:
            if self._connection.sock is None:
                self.since = "new" if self._opened else self.since
                self._connection.connect()
                self._opened = True
            self._connection.request("GET", PATH)
        except (OSError, http.client.HTTPException) as error:
            self._failed(error)
            return False
        self._sent = time.monotonic()
        return True

    def ask(self, patience_s: float) -> None:
        """Measure one answer: of the request that is on its way, else of a new one."""
        reused = self._opened and self._sent is None
        if (self._sent is not None or self.send()) and self._receive(patience_s):
            return
        if reused and not self._given_up and self.send():  # servers close connections that are idle
            self._receive(patience_s)

    def _receive(self, patience_s: float) -> bool:
        sent, self._sent = self._sent, None
        if sent is None:
            return False
        try:
            self._connection.sock.settimeout(patience_s)
            answer = self._connection.getresponse()
            self.took_s, self.error = round(time.monotonic() - sent, 4), ""
            answer.read()
        except (OSError, http.client.HTTPException) as error:
            self._failed(error)
            return False
        return True

    def _failed(self, error: Exception) -> None:
        self.took_s, self._sent = None, None
        self.error = "timed out" if isinstance(error, TimeoutError) else str(error) or type(error).__name__
        self._connection.close()

    def give_up(self) -> None:
        """Wake whoever waits for an answer on it, from another thread."""
        self._given_up = True
        if (sock := self._connection.sock) is not None:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection; a line that nobody keeps does so by itself."""
        self._connection.close()

    __del__ = close


def ask_all(lines: Sequence[Line], patience_s: float, hurry: Callable[[], bool] = lambda: False) -> None:
    """Measure one answer on each line, all at the same time. Once `hurry` says so, it waits for a moment more only."""
    with ThreadPoolExecutor(max(1, len(lines))) as pool:
        asked = [pool.submit(line.ask, patience_s) for line in lines]
        left_s = HURRY_S
        while (waits := wait(asked, timeout=POLL_S).not_done) and left_s > 0:
            left_s -= POLL_S if hurry() else 0.0
        if waits:
            for line in lines:
                line.give_up()
