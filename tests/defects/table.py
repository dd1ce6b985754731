"""The one table of planted defects: which drill finds each, by which check, and which other checks may fail with it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from drills.errors import EXIT_FAIL, EXIT_PASS, EXIT_REFUSED

EXPERIMENTS = Path(__file__).parent / "experiments"


@dataclass(frozen=True)
class Row:
    """One drill of one lab. `must_fail`: at least one of them fails; nothing outside both sets does."""

    drill: str  # an experiment of this folder
    defect: str | None
    must_fail: frozenset[str] = frozenset()
    may_fail: frozenset[str] = frozenset()
    code: int = EXIT_FAIL
    needs_root: bool = False
    startup: str = "7s"

    @property
    def id(self) -> str:
        """Return the name of the row's test."""
        return f"{self.drill}-{self.defect or 'healthy'}"

    @property
    def experiment(self) -> Path:
        """Return the experiment's file."""
        return EXPERIMENTS / f"{self.drill}.yaml"


def _row(drill: str, defect: str, must: str, may: str = "", **more: Any) -> Row:
    return Row(drill, defect, frozenset(must.split()), frozenset(may.split()), **more)


def _healthy(drill: str, **more: Any) -> Row:
    return Row(drill, None, code=EXIT_PASS, **more)


#: What a victim that does not come back fails as well: it serves nothing, and who was paged stays paged.
STAYS_AWAY = "rejoin alert cache_recovery"
#: What users feel when nobody helps them.
HURT = "failover latency availability goodput sessions metrics"

ROWS = (
    _healthy("packet-loss", needs_root=True),
    _row("packet-loss", "no-retries", "retried", HURT, needs_root=True),
    _row("packet-loss", "retry-storm", "retry_storm", f"{HURT} retried recovery", needs_root=True),
    _healthy("upstream-delay"),
    _row("upstream-delay", "no-fallback", "degraded", "latency"),
    _row("upstream-delay", "slow-fallback", "degraded", "latency"),
    _healthy("pod-kill"),
    _row("pod-kill", "no-alert", "alert"),
    _row("pod-kill", "wrong-alert-labels", "alert"),
    _row("pod-kill", "alert-already-firing", "", code=EXIT_REFUSED),
    _row("pod-kill", "slow-restart", "replica_restart", STAYS_AWAY),
    _row("pod-kill", "truncating-gateway", "streams"),
    _row("pod-kill", "splicing-gateway", "streams"),
    _row("pod-kill", "breaker-too-long", "rejoin", "cache_recovery"),
    _healthy("pod-delete"),
    _row("pod-delete", "no-prefix-cache", "cache_recovery", "metrics"),
    # The streams of the neighbour are cut too, and the router tries again for both.
    _row("pod-delete", "wrong-victim", "untouched", "streams retry_storm"),
    _healthy("gpu-reset"),
    _row("gpu-reset", "restart-never", "replica_restart", STAYS_AWAY),
    _healthy("engine-kill"),
    _row("engine-kill", "restart-on-failure", "replica_restart", STAYS_AWAY),
    _healthy("engine-hang"),
    _row("engine-hang", "lying-health", "health_honest", "failover"),
)
