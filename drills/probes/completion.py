"""A one-token completion straight at a replica: the only proof that it serves."""

from __future__ import annotations

import json
import time

import urllib3

from drills.model import Json
from drills.probes.http import ProbeError, request

#: A ledger proxy in front of the replica lets it through as if it were not there (`drills.ledger.PROBE`).
PAST_FAULTS = {"X-Drill-Probe": "completion"}

KEY = "it wants a key: name it in endpoint.api_key; none gets through the API server, so `kubernetes.reach: direct` too"


def complete(http: urllib3.PoolManager, url: str, model: str, *, timeout_s: float) -> Json:
    """Return {ttft_ms, tokens} of one token from the server at `url` (without /v1).

    Raises ProbeError unless the answer is 200 with a non-empty text: an HTTP 200 alone proves nothing.
    """
    began = time.monotonic()
    body = {
        "model": model,
        "messages": [{"role": "user", "content": "ping"}],
        "max_tokens": 1,
        "temperature": 0,
        "user": "drill-probe",
    }
    way = f"{url}/v1/chat/completions"
    status, data = request(http, "POST", way, timeout_s=timeout_s, body=body, headers=PAST_FAULTS)
    took_ms = round((time.monotonic() - began) * 1e3, 3)
    if status in (401, 403):
        raise ProbeError(f"HTTP {status}: {KEY}")
    if status != 200:
        raise ProbeError(f"HTTP {status}")
    try:
        answer = json.loads(data)
        choice = answer["choices"][0]
        tokens = answer["usage"]["completion_tokens"]
    except (ValueError, LookupError, TypeError):
        raise ProbeError("the answer is not a completion") from None
    if choice.get("finish_reason") == "abort" or not tokens:
        raise ProbeError(f"no token (finish_reason {choice.get('finish_reason')})")
    return {"ttft_ms": took_ms, "tokens": tokens, "model": answer.get("model")}
