"""The faults, one file each; this table is the catalogue."""

from __future__ import annotations

from typing import Any

from drills.faults.engine_hang import EngineHang
from drills.faults.engine_kill import EngineKill
from drills.faults.gpu_reset import GpuReset
from drills.faults.noop import Noop
from drills.faults.packet_loss import PacketLoss
from drills.faults.pod_kill import PodKill
from drills.faults.thermal_throttle import ThermalThrottle
from drills.faults.upstream_delay import UpstreamDelay
from drills.model import Fault, Receipt

FAULTS: dict[str, Any] = {
    fault.name: fault
    for fault in (Noop, PodKill, GpuReset, EngineKill, EngineHang, UpstreamDelay, PacketLoss, ThermalThrottle)
}


def for_receipt(receipt: Receipt, kind: str) -> Fault:
    """Return the fault that wrote a receipt, able to revert it from any process."""
    made = FAULTS[receipt.fault]
    fault: Fault = made(made.Params.model_validate(receipt.params), kind)
    return fault
