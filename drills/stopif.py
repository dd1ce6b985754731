"""`limits.stop_if`: what real users feel ends a drill. PromQL, asked all the time; each query is one number.

0 means that all is well, anything else ends the run: `sum(rate(errors_total[1m])) > bool 5`. A query that is a filter
instead (`> 5` without `bool`) yields no series while all is well, which cannot be told from a metric that is gone.
So no answer counts as none, and a query that is not answered for a while ends the run as well.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Sequence
from typing import Final

from drills.clock import Clock
from drills.model import Json, Target
from drills.probes import promql
from drills.probes.http import ProbeError
from drills.probes.prometheus import Prometheus, prometheus_of
from drills.probes.sampler import Job

INTERVAL_S: Final = 2.0
#: One look that fails, or a Prometheus that restarts, is no reason; from here on nobody knows how users fare.
BLIND_S: Final = 10.0
ADVICE: Final = "write it so that it is 0 while all is well and something else when not: `... > bool 0.05`"


def refusals(queries: Sequence[str], target: Target) -> list[str]:
    """Return why the queries could not guard a run: one that is not answered, or that holds already. Reads only."""
    if not queries:
        return []
    server = prometheus_of(target)
    if server is None:
        return ["limits.stop_if: there is no Prometheus to ask"]
    found = []
    for query in queries:
        try:
            value = promql.ask(server, query)["value"]
        except ProbeError as error:
            found.append(f"limits.stop_if: {query}: is not answered ({error}); {ADVICE}")
            continue
        if value != 0:
            found.append(f"limits.stop_if: {query}: is {value:g} before the drill has begun: this is no time for one")
    return found


class StopIf:
    """The queries of one run, each with its last answer."""

    def __init__(self, queries: Sequence[str], target: Target, clock: Clock) -> None:
        self._target, self._clock, self._lock = target, clock, threading.Lock()
        self._answers: dict[str, tuple[float, float]] = {query: (clock.mono(), 0.0) for query in queries}
        self._reasons: dict[str, str] = {}

    def jobs(self) -> list[Job]:
        """Return the probes that ask, one a query: a slow one keeps no other waiting."""
        with self._lock:  # the time since the last answer counts from now
            self._answers = {query: (self._clock.mono(), value) for query, (_, value) in self._answers.items()}
        server = prometheus_of(self._target)
        return [
            Job("stop_if", query, INTERVAL_S, functools.partial(self._look, server, query))
            for query in self._answers
            if server is not None
        ]

    def _look(self, server: Prometheus, query: str) -> Json:
        try:
            answer = promql.ask(server, query)
        except ProbeError as error:
            with self._lock:
                self._reasons[query] = str(error)
            raise
        with self._lock:
            self._answers[query] = (self._clock.mono(), float(answer["value"]))
            self._reasons.pop(query, None)
        return answer

    def tripped(self) -> Json | None:
        """Return {guard, value, bound, query} of the first query that ends the run, None when all is well."""
        now = self._clock.mono()
        with self._lock:
            for query, (at, value) in self._answers.items():
                if value != 0:
                    return {"guard": "stop_if", "value": value, "bound": 0, "query": query}
                if now - at > BLIND_S:
                    why = self._reasons.get(query, "no answer")
                    said = f"not answered for {now - at:.0f} s ({why})"
                    return {"guard": "stop_if", "value": said, "bound": 0, "query": query}
        return None
