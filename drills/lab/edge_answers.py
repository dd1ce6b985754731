"""What the edge understands of a request and of an answer, and the answer it keeps in store. Pure."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any

from drills.model import Json

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"

#: A stored answer is no longer than this, whatever is asked (tokens).
MAX_STORED_TOKENS = 4096
_DEFAULT_TOKENS = 16  # the API's own default
_SENTENCE = "This answer was kept for a moment like this one, when no model could answer in time."
_MAX_EVENT = 1 << 20


@dataclass(frozen=True)
class Ask:
    """A request as its user sent it. `json` is None when the body is none: then only the model can say so."""

    path: str
    body: bytes
    headers: Mapping[str, str]
    json: Json | None

    @property
    def stream(self) -> bool:
        """Whether the answer is to come token by token."""
        return self.json is not None and self.json.get("stream") is True

    @property
    def tokens(self) -> int:
        """How many tokens are asked for."""
        asked = self.json or {}
        for name in ("max_completion_tokens", "max_tokens"):
            value = asked.get(name)
            if isinstance(value, int) and value > 0:
                return min(value, MAX_STORED_TOKENS)
        return _DEFAULT_TOKENS

    def body_for(self, model: str) -> bytes:
        """Return the body with another model in it."""
        return json.dumps((self.json or {}) | {"model": model}).encode()


def parse_ask(path: str, body: bytes, headers: Mapping[str, str]) -> Ask:
    """Read a request; a body that is no JSON object is kept as it is."""
    try:
        read = json.loads(body)
    except ValueError:
        read = None
    return Ask(path, body, headers, read if isinstance(read, dict) else None)


class FirstEvent:
    """Watches a stream for its first event: `seen` becomes "token", or "error" for an error or an empty stream."""

    __slots__ = ("_early", "seen")

    def __init__(self) -> None:
        self.seen = ""
        self._early = b""

    def feed(self, data: bytes) -> str:
        """Take bytes of the stream; return `seen`."""
        if self.seen:
            return self.seen
        *lines, self._early = (self._early + data).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                self.seen = _kind(line[5:].strip())
                break
        if len(self._early) > _MAX_EVENT:
            self.seen = "error"
        return self.seen


def _kind(payload: bytes) -> str:
    try:
        event = json.loads(payload)
    except ValueError:  # also [DONE]: a stream that ends before it began
        return "error"
    return "error" if not isinstance(event, dict) or "error" in event else "token"


class Ending:
    """Watches how a stream ends: properly, with an error in band, or aborted. By bytes, since it sees every chunk."""

    __slots__ = ("_tail", "wrong")

    def __init__(self) -> None:
        self._tail = b""
        self.wrong = ""

    def feed(self, data: bytes) -> None:
        """Take bytes of the stream."""
        window = self._tail + data
        if b'"finish_reason":"abort"' in window:
            self.wrong = "abort"
        elif b'data: {"error"' in window or b'data:{"error"' in window:
            self.wrong = "sse_error"
        self._tail = window[-32:]

    def close(self) -> str:
        """Take the end; return what was wrong with the stream, or nothing."""
        return self.wrong or ("" if b"[DONE]" in self._tail else "unfinished")


def stored_answer(ask: Ask, model: str) -> tuple[str, bytes]:
    """Return content type and body of the stored answer, in the form and length asked for."""
    words = list(islice(cycle(_SENTENCE.split()), ask.tokens))
    usage = {"prompt_tokens": 0, "total_tokens": len(words), "completion_tokens": len(words)}
    chat = ask.path == CHAT
    name = ("chat.completion" if chat else "text_completion") + (".chunk" if chat and ask.stream else "")
    base = {
        "id": f"{'chatcmpl' if chat else 'cmpl'}-{ask.headers.get('x-request-id', 'cached')}",
        "object": name,
        "created": int(time.time()),
        "model": (ask.json or {}).get("model") or model,
        "system_fingerprint": "edge-cache",
        "cached": True,
    }
    if not ask.stream:
        choice = _whole(" ".join(words), chat=chat)
        return "application/json", json.dumps(base | {"choices": [choice], "usage": usage}).encode()
    return "text/event-stream; charset=utf-8", b"".join(_events(ask, base, words, usage, chat=chat))


def made_up_end(ask: Ask, model: str) -> bytes:
    """Return the end that no model said: what some gateways put behind a stream that was cut."""
    chat = ask.path == CHAT
    said: Json = {"delta": {}} if chat else {"text": ""}
    event = {
        "object": "chat.completion.chunk" if chat else "text_completion",
        "model": (ask.json or {}).get("model") or model,
        "choices": [{"index": 0, **said, "finish_reason": "stop"}],
    }
    return b"data: " + json.dumps(event).encode() + b"\n\ndata: [DONE]\n\n"


def _whole(text: str, *, chat: bool) -> Json:
    said: Json = {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
    return {"index": 0, **said, "logprobs": None, "finish_reason": "length"}


def _events(ask: Ask, base: Json, words: list[str], usage: Json, *, chat: bool) -> list[bytes]:
    def event(*choices: Json, **more: Any) -> bytes:
        return b"data: " + json.dumps(base | {"choices": choices} | more).encode() + b"\n\n"

    def said(text: str, finish: str | None) -> Json:
        delta: Json = {"delta": {"content": text}} if chat else {"text": text}
        return {"index": 0, **delta, "logprobs": None, "finish_reason": finish}

    start = {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
    events = [event(start)] if chat else []
    last = len(words) - 1
    events += [event(said(word + " ", "length" if at == last else None)) for at, word in enumerate(words)]
    options = (ask.json or {}).get("stream_options")
    if isinstance(options, dict) and options.get("include_usage"):
        events.append(event(usage=usage))
    return [*events, b"data: [DONE]\n\n"]
