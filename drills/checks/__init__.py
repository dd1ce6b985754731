"""The checks, by name. A new check is one file and one line here."""

from __future__ import annotations

from typing import Any

from drills.checks.accounted import Accounted
from drills.checks.alert import Alert
from drills.checks.automation import Automation
from drills.checks.availability import Availability
from drills.checks.base import Check
from drills.checks.cache_recovery import CacheRecovery
from drills.checks.degraded import Degraded
from drills.checks.engine_vs_client import EngineVsClient
from drills.checks.failover import Failover
from drills.checks.goodput import Goodput
from drills.checks.health_honest import HealthHonest
from drills.checks.latency import Latency
from drills.checks.metrics import Metrics
from drills.checks.recovery import Recovery
from drills.checks.rejoin import Rejoin
from drills.checks.replica_restart import ReplicaRestart
from drills.checks.retried import Retried
from drills.checks.retry_storm import RetryStorm
from drills.checks.sessions import Sessions
from drills.checks.streams import Streams
from drills.checks.untouched import Untouched

CHECKS: dict[str, type[Check[Any]]] = {
    "accounted": Accounted,
    "alert": Alert,
    "automation": Automation,
    "availability": Availability,
    "cache_recovery": CacheRecovery,
    "degraded": Degraded,
    "engine_vs_client": EngineVsClient,
    "failover": Failover,
    "goodput": Goodput,
    "health_honest": HealthHonest,
    "latency": Latency,
    "metrics": Metrics,
    "recovery": Recovery,
    "rejoin": Rejoin,
    "replica_restart": ReplicaRestart,
    "retried": Retried,
    "retry_storm": RetryStorm,
    "sessions": Sessions,
    "streams": Streams,
    "untouched": Untouched,
}
