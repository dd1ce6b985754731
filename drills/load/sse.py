"""What a streamed answer shows, event by event. Pure, no sockets.

A plain delta is recognised by its bytes; only the first event, the last ones and whatever is out of the
ordinary are parsed as JSON. That is where the time of a load client goes otherwise.
"""

from __future__ import annotations

import itertools
import json
import re
from typing import Any

_DELTA = b'"delta":{"content":"'
_OPEN = b'"finish_reason":null'
_EVENT_MAX = 1 << 20
_NUMBERED = re.compile(rb"t(\d+)")


class Answer:
    """One answer as far as it has come."""

    __slots__ = ("_hold", "cached", "chunks", "done", "error", "finish", "garbage", "model", "parts", "tokens")

    def __init__(self) -> None:
        self._hold = b""  # an unfinished event
        self.cached = False
        self.chunks: list[float] = []  # one stamp for each chunk with content
        self.done = False
        self.error: str | None = None  # message of an in-band error
        self.finish: str | None = None
        self.garbage: str | None = None  # an event that is no JSON
        self.model: str | None = None
        self.parts: list[bytes] = []  # content
        self.tokens: int | None = None  # by usage

    def feed(self, data: bytes, now: float) -> None:
        """Take payload that was received at `now` (monotonic seconds)."""
        if self.model is not None and not self._hold and not self.done and data.find(b"\n\n") == len(data) - 2:
            text = _plain_delta(data)  # exactly one event, and a plain one: nearly always
            if text:
                self.chunks.append(now)
                self.parts.append(text)
                return
        if self._hold:
            data = self._hold + data
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n")
        events = data.split(b"\n\n")
        self._hold = events.pop()
        if len(self._hold) > _EVENT_MAX:
            self.garbage = self.garbage or f"an event over {_EVENT_MAX} bytes"
            self._hold = b""
        for event in events:
            self._event(event, now)

    def close(self, now: float) -> None:
        """Take the end of a body that ended properly: its last event may lack the blank line."""
        event, self._hold = self._hold.strip(), b""
        try:
            whole = event == b"data: [DONE]" or isinstance(json.loads(_data(event)), dict)
        except ValueError:
            return  # half an event: it shows in what is missing
        if whole:
            self._event(event, now)

    def whole(self, document: bytes, now: float) -> None:
        """Take an answer that came as one JSON document instead of a stream; its end is the end of the body."""
        self._json(document, now)
        self.done = self.garbage is None and self.error is None

    def _event(self, event: bytes, now: float) -> None:
        if self.done:
            return
        if self.model is not None:
            text = _plain_delta(event)
            if text is not None:
                if text:
                    self.chunks.append(now)
                    self.parts.append(text)
                return
        data = _data(event)
        if data == b"[DONE]":
            self.done = True
        elif data:
            self._json(data, now)

    def _json(self, data: bytes, now: float) -> None:
        try:
            self._take(json.loads(data), now)
        except (ValueError, TypeError, AttributeError):  # no JSON, or JSON of another shape
            self.garbage = self.garbage or data[:80].decode("utf-8", "replace")

    def _take(self, event: dict[str, Any], now: float) -> None:
        if event.get("error") or event.get("object") == "error":
            self.error = self.error or _message(event)
            return
        self.model = event.get("model") or self.model or ""
        usage = event.get("usage")
        if isinstance(usage, dict) and isinstance(usage.get("completion_tokens"), int):
            self.tokens = usage["completion_tokens"]
        for choice in event.get("choices") or []:
            self._choice(choice, now)

    def _choice(self, choice: dict[str, Any], now: float) -> None:
        said = choice.get("delta") or choice.get("message") or {}
        content = said.get("content") or said.get("reasoning_content") or said.get("reasoning")
        if content:
            self.chunks.append(now)
            self.parts.append(str(content).encode())
        self.finish = choice.get("finish_reason") or self.finish

    def numbers(self) -> list[int] | None:
        """Return the token numbers when every word of the answer is a numbered one (`t17`), else None."""
        words = b"".join(self.parts).split()
        found = [_NUMBERED.fullmatch(word) for word in words]
        if len(words) < 2 or not all(found):
            return None
        return [int(match[1]) for match in found if match]

    def duplicated(self) -> bool:
        """Return whether numbered tokens repeat or skip; answers without numbers cannot show it."""
        numbers = self.numbers()
        return numbers is not None and any(b != a + 1 for a, b in itertools.pairwise(numbers))


def _plain_delta(event: bytes) -> bytes | None:
    """Return the content of a delta that carries nothing else, None for every other event."""
    start = event.find(_DELTA)
    if start < 0:
        return None
    start += len(_DELTA)
    end = event.find(b'"', start)
    text = event[start:end]
    odd = b"\\" in text or event.find(_OPEN, end) < 0 or b'"usage":{' in event or b'"error"' in event
    return None if odd else text


def _data(event: bytes) -> bytes:
    """Return the data of an event; comments and other fields do not matter here."""
    if b"\n" not in event:
        return event[5:].strip() if event.startswith(b"data:") else b""
    lines = [line[5:].strip() for line in event.split(b"\n") if line.startswith(b"data:")]
    return b"\n".join(lines)


def _message(event: dict[str, Any]) -> str:
    error = event.get("error")
    if isinstance(error, dict):
        return str(error.get("message") or error)
    return str(error or event.get("message") or event)
