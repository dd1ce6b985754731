"""When the client asks again, and how long it waits first. Pure: time and chance are handed in."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from email.utils import mktime_tz, parsedate_tz

from drills.load.plan import RetryPlan
from drills.load.record import Attempt
from drills.model import Outcome

#: Statuses the OpenAI SDK retries; `5xx` is there too.
_STATUSES = frozenset({408, 409, 429})
#: The SDK takes up to a quarter off each wait.
_SDK_JITTER = 0.25
_SDK_RETRY_AFTER_MAX_S = 60.0


class Budget:
    """Retries allowed as a share of the requests of the last `window_s`; None allows every retry.

    It counts what this client sends, so a service that fails everything gets 1 + share as many requests,
    not 1 + max retries.
    """

    def __init__(self, share: float | None, window_s: float = 10.0) -> None:
        self._share = share
        self._window_s = window_s
        self._requests: deque[float] = deque()
        self._retries: deque[float] = deque()

    def request(self, now: float) -> None:
        """Count a first attempt."""
        if self._share is not None:
            self._requests.append(now)
            self._forget(now)

    def take(self, now: float) -> bool:
        """Return whether one more retry fits, and count it if so."""
        if self._share is None:
            return True
        self._forget(now)
        if len(self._retries) + 1 > self._share * len(self._requests):
            return False
        self._retries.append(now)
        return True

    def _forget(self, now: float) -> None:
        for stamps in (self._requests, self._retries):
            while stamps and stamps[0] <= now - self._window_s:
                stamps.popleft()


def wanted(plan: RetryPlan, attempt: Attempt, headers: Mapping[str, str]) -> bool:
    """Return whether this failed attempt is one the client would repeat.

    After the first token never: the text is already with the user. The `sdk` profile does not repeat once
    the headers of a stream are there, because the SDK has handed the stream out by then.
    """
    if attempt.attempt >= plan.max or attempt.first_token is not None:
        return False
    if attempt.outcome not in (Outcome.ERROR, Outcome.HUNG, Outcome.TRUNCATED):
        return False
    if plan.jitter == "sdk" and headers.get("x-should-retry") in ("true", "false"):
        return headers["x-should-retry"] == "true"
    if attempt.error in ("http_4xx", "http_5xx"):
        return attempt.error == "http_5xx" or attempt.status in _STATUSES
    return plan.jitter != "sdk" or attempt.headers is None


def delay_s(
    plan: RetryPlan, attempt: int, draw: float, headers: Mapping[str, str], wall: Callable[[], float] = time.time
) -> float:
    """Return the wait before the retry after attempt number `attempt` (from 0); `draw` is from [0, 1).

    `wall` tells the time of day, which a server may name instead of a wait.
    """
    if plan.jitter == "sdk":
        asked = _retry_after_s(headers, wall)
        if asked is not None:
            return asked
    wait = float(min(plan.backoff_s * 2.0**attempt, plan.backoff_max_s))
    return wait * {"full": draw, "sdk": 1.0 - _SDK_JITTER * draw, "none": 1.0}[plan.jitter]


def _retry_after_s(headers: Mapping[str, str], wall: Callable[[], float]) -> float | None:
    """Return the wait that the server asks for, in seconds; None when it asks for none, or for an odd one."""
    for name, per_second in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
        try:
            asked = float(headers.get(name, "")) / per_second
        except ValueError:
            continue
        return asked if 0.0 < asked <= _SDK_RETRY_AFTER_MAX_S else None
    asked = _moment(headers.get("retry-after", "")) - wall()
    return asked if 0.0 < asked <= _SDK_RETRY_AFTER_MAX_S else None


def _moment(text: str) -> float:
    """Return the moment that an HTTP date names, in seconds since 1970; long ago for what is none."""
    try:
        day = parsedate_tz(text)
        return mktime_tz(day) if day else 0.0
    except (ValueError, OverflowError, TypeError):  # a year 99999, a month that there is not
        return 0.0
