"""What a run puts on beside its faults and takes off after them, such as a silence of its alerts.

It goes the way of a fault: receipt, deed, proof, and the way back whatever happens, also by `drill recover`. But it
hits no replica, so in the journal its receipt and its revert are marked `beside`, and every other event of it begins
with `beside.`: nothing that judges a fault takes it for one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from drills import faults
from drills.model import Fault, Json, Receipt, Replica, Restored, Target
from drills.proxies import LedgerProxies
from drills.silence import Silence

Tell = Callable[[str, Json], object]
#: By the name in their receipts. `drill recover` finds them here as it finds faults in their table.
BESIDE: Final[dict[str, type[Silence] | type[LedgerProxies]]] = {
    Silence.name: Silence,
    LedgerProxies.name: LedgerProxies,
}
#: What `drill recover` must find under its own name.
KEPT: Final = ("receipt", "revert.begin", "revert.end", "undo.failed")
PREFIX: Final = "beside."


def telling(tell: Tell) -> Callable[[str, Json], None]:
    """Return what tells the journal of something that is put on beside the faults."""

    def told(event: str, data: Json) -> None:
        if event in KEPT:
            tell(event, data | {"beside": True})
        else:
            tell(f"{PREFIX}{event}", data)

    return told


def wanted(plan: Json, target: Target, victims: Sequence[Replica]) -> list[Fault]:
    """Return what this plan puts on beside its faults."""
    silence = Silence.of(plan, target, victims)
    return [] if silence is None else [silence]


def for_receipt(receipt: Receipt, kind: str) -> Fault:
    """Return what wrote a receipt, be it a fault or beside one, able to revert it from any process."""
    if receipt.fault == Silence.name:
        return Silence(Silence.Params.model_validate(receipt.params), kind)
    if receipt.fault == LedgerProxies.name:
        return LedgerProxies(LedgerProxies.Params(), kind)
    return faults.for_receipt(receipt, kind)


def worst(*states: Restored) -> Restored:
    """Return the worst of them: dirty, then unknown, then clean."""
    return next((one for one in (Restored.DIRTY, Restored.UNKNOWN) if one in states), Restored.CLEAN)
