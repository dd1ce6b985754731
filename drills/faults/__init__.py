"""The faults, one file each; this table is the catalogue."""

from __future__ import annotations

from typing import Any

from drills.faults.noop import Noop
from drills.faults.pod_kill import PodKill

FAULTS: dict[str, Any] = {fault.name: fault for fault in (Noop, PodKill)}
