"""Make runs as reviews see them, without files, for tests of trends, figures and pitfalls."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from drills.model import Event
from drills.report.digest import Digest

Json = dict[str, Any]


def row(check: str, verdict: str = "pass", value: Any = None, bound: Any = None, unit: str = "s", **more: Any) -> Json:
    """Return a row of a verdict."""
    base: Json = {"check": check, "verdict": verdict, "value": value, "bound": bound, "unit": unit, "n": None}
    return base | {"interval": None, "reason": "", "params": {}, "detail": {}, "events": []} | more


def ttft(value: Any, low: float | None, high: float | None, verdict: str = "pass", n: int = 1198) -> Json:
    """Return the row of the p99 of the time to first token in the fault."""
    params = {"metric": "ttft", "quantile": 0.99, "cohort": "fault", "max": "sla"}
    return row("latency", verdict, value, 1.0, interval=[low, high], n=n, params=params)


def availability(value: float, low: float, high: float, verdict: str = "pass", n: int = 1198) -> Json:
    """Return the row of the availability in the fault."""
    return row("availability", verdict, value, 0.99, "ratio", interval=[low, high], n=n, params={"cohort": "fault"})


def digest(number: int, stamp: str = "20261101T020000Z", *rows: Json, verdict: str = "pass", **more: Any) -> Digest:
    """Return a run; `more` replaces parts of its plan, `status` how it ended, `versions` what it found."""
    status, versions = more.pop("status", "completed"), more.pop("versions", {})
    drill, target, rate = more.pop("drill", "pod-kill"), more.pop("target", "lab"), more.pop("rate", 20.0)
    load = more.pop("load", {"arrivals": {"kind": "poisson", "rate": rate}})
    plan: Json = {"experiment": {"name": drill, "load": load}, "target": {"name": target}, **more}
    events = (
        Event(1, "", 0.0, "header", {"versions": versions}),
        Event(2, "", 1.0, "end", {"status": status, "reason": ""}),
    )
    said: Json = {"run": "x", "verdict": verdict, "restored": "clean", "left": "healthy", "exit_code": 0}
    slug = drill if drill.replace("-", "").isalnum() else "other"
    folder = Path(f"/reports/runs/{stamp}-{slug}-{number:08d}")
    return Digest(folder, plan, said | {"checks": list(rows)}, events, ())
