"""The checks, by name. A new check is one file and one line here."""

from __future__ import annotations

from typing import Any

from drills.checks.accounted import Accounted
from drills.checks.alert import Alert
from drills.checks.availability import Availability
from drills.checks.base import Check
from drills.checks.failover import Failover
from drills.checks.latency import Latency
from drills.checks.recovery import Recovery
from drills.checks.rejoin import Rejoin
from drills.checks.replica_restart import ReplicaRestart
from drills.checks.streams import Streams
from drills.checks.untouched import Untouched

CHECKS: dict[str, type[Check[Any]]] = {
    "accounted": Accounted,
    "alert": Alert,
    "availability": Availability,
    "failover": Failover,
    "latency": Latency,
    "recovery": Recovery,
    "rejoin": Rejoin,
    "replica_restart": ReplicaRestart,
    "streams": Streams,
    "untouched": Untouched,
}
