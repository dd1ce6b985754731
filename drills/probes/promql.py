"""The PromQL that the plan's checks ask for: one number now, or the reason why there is none."""

from __future__ import annotations

import math
from typing import Any

from drills.model import Json
from drills.probes.http import ProbeError
from drills.probes.prometheus import Prometheus

#: An older sample is stale; left alone, Prometheus shows it as the present value for five minutes. A server that does
#: not know `lookback_delta` ignores it; a series whose target is gone ends at once either way.
LOOKBACK = "1m"


def wanted(plan: Json) -> dict[str, str]:
    """Return the queries of the plan's `metrics` checks by the names of their rows."""
    found: dict[str, str] = {}
    for item in plan["experiment"]["checks"]:
        params = item["params"] if item["check"] == "metrics" else {}
        rows = [*(params.get("rows") or ()), {"name": "business", **(params.get("business") or {})}]
        found |= {row["name"]: row["promql"] for row in rows if row.get("promql")}
    return found


def ask(server: Prometheus, promql: str) -> Json:
    """Return {value} of a query that means one series. Raises ProbeError: none, several, NaN, no answer."""
    return {"value": single(server.query(promql, lookback=LOOKBACK))}


def single(found: Any) -> float:
    """Return the one value of a query's result, a vector or a scalar. Raises ProbeError."""
    scalar = isinstance(found, list) and len(found) == 2 and not isinstance(found[0], dict)
    samples = [{"value": found}] if scalar else found
    if not samples:
        raise ProbeError("no series, or none with a sample of the last minute")
    if len(samples) > 1:
        raise ProbeError(f"{len(samples)} series where one is meant; aggregate them in the query")
    try:
        value = float(samples[0]["value"][1])
    except (LookupError, TypeError, ValueError):
        raise ProbeError("the answer is no instant vector") from None
    if not math.isfinite(value):
        raise ProbeError(f"the value is {samples[0]['value'][1]}")
    return value
