"""What a health endpoint says, as a router that asks it would take it: no answer is an answer too."""

from __future__ import annotations

import time

import urllib3

from drills.model import Json
from drills.probes.http import ProbeError, request


def ask(http: urllib3.PoolManager, url: str, *, timeout_s: float) -> Json:
    """Return {endpoint, status, ms, error}; the status is None when nobody answered within `timeout_s`.

    A refusal is no failure to measure: it tells the router, and us, that this replica is not to be used.
    """
    began = time.monotonic()
    status, error = None, None
    try:
        status, _ = request(http, "GET", url, timeout_s=timeout_s)
    except ProbeError as said:
        error = str(said)
    return {"endpoint": url, "status": status, "ms": round((time.monotonic() - began) * 1e3, 3), "error": error}
