"""One HTTP request with a deadline and no retries: a probe that retries measures something else."""

from __future__ import annotations

import json
from typing import Any

import urllib3

from drills.model import HasHttp


class ProbeError(Exception):
    """A measurement that could not be made; its text is the reason."""


def pool(key: str | None = None) -> urllib3.PoolManager:
    """Return a pool of connections; each thread uses its own. `key` goes with each request, as a bearer token."""
    return urllib3.PoolManager(retries=False, num_pools=8, headers={"Authorization": f"Bearer {key}"} if key else None)


def pool_for(target: object) -> urllib3.PoolManager:
    """Return a pool that reaches the target's replicas: its own way where it has one."""
    return target.http() if isinstance(target, HasHttp) else pool()


def request(
    http: urllib3.PoolManager,
    method: str,
    url: str,
    *,
    timeout_s: float,
    body: Any = None,
    headers: dict[str, str] | None = None,
) -> tuple[int, bytes]:
    """Return status and body. Raises ProbeError when there is no complete answer within `timeout_s`."""
    if not url.startswith("http"):
        raise ProbeError("it has no address yet")
    data = None if body is None else json.dumps(body).encode()
    try:
        answer = http.request(
            method,
            url,
            body=data,
            headers={**http.headers, **({"Content-Type": "application/json"} if data else {}), **(headers or {})},
            timeout=urllib3.Timeout(total=timeout_s),
        )
    except urllib3.exceptions.HTTPError as error:
        raise ProbeError(reason(error)) from None
    return answer.status, answer.data


def reason(error: Exception) -> str:
    """Return a short reason without addresses of Python objects."""
    if isinstance(error, urllib3.exceptions.NewConnectionError):  # by its class it is a time-out as well
        return "connection refused" if "refused" in str(error) else "cannot connect"
    if isinstance(error, urllib3.exceptions.TimeoutError):
        return "timed out"
    if isinstance(error, urllib3.exceptions.ProtocolError):
        return "connection broken"
    return type(error).__name__
