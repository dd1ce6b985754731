"""Ledger proxies that a run brings along: put in front of the engines before the load, and taken away after it.

They go the way of what is put on beside a fault (`drills.beside`): receipt, timer, deed, proof, way back. What knows
pods and nodes is the target's (`BringsProxies`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final, cast

from drills import receipts
from drills.errors import DrillError
from drills.faults.common import receipt_of
from drills.model import (
    BringsProxies,
    Context,
    Json,
    Observation,
    Receipt,
    Replica,
    Restored,
    Target,
)
from drills.params import Params

#: For a proxy that was told to end: longer than it lets open requests go on.
DRAINED_S: Final = 25.0
POLL_S: Final = 0.5


class LedgerProxies:
    """One proxy in front of each of some replicas."""

    name: ClassVar[str] = "ledger-proxies"
    held: ClassVar[bool] = True
    effect: ClassVar[bool] = False

    class Params(Params):
        """None: the target knows ports and names."""

    def __init__(self, params: Params, kind: str) -> None:
        self.params, self.kind = params, kind

    def needs(self) -> frozenset[str]:
        """Return that the target must know how, and that its nodes must be reached."""
        return frozenset({"BringsProxies", "NodeAccess"})

    def preflight(self, target: Target, victims: Sequence[Replica]) -> list[str]:
        """Return why no proxy can stand in front of one of them."""
        try:
            _bringing(target).aim_proxies(victims, "0-0")
        except DrillError as error:
            return [str(error)]
        return []

    def aim(self, target: Target, victims: Sequence[Replica], *, run: str, receipt: str, deadline_s: float) -> Receipt:
        """Note what stands in their networks, and write down how the proxies will be taken away."""
        tag = receipt.removesuffix(f"-{self.name}")
        aimed = _bringing(target).aim_proxies(victims, f"{tag}p")
        # On each machine; without it nothing is put up any more.
        spots = [spot | {"receipt": f"{target.receipts_dir_of(spot['node'])}/{receipt}.json"} for spot in aimed]
        undo, prior = _bringing(target).undo_of_proxies(spots), {"spots": spots}
        return receipt_of(
            self, target, victims, run=run, receipt=receipt, deadline_s=deadline_s, prior=prior, undo=undo
        )

    def inject(self, target: Target, receipt: Receipt, ctx: Context) -> None:
        """Put them up. Raises DrillError when one does not stand, with nothing said of the others."""
        ctx.tell("inject.hit", {"receipt": receipt.id, "victims": [v["name"] for v in receipt.victims]})
        problems = []
        spots = receipt.prior["spots"]
        for spot, said in zip(spots, _bringing(target).put_up_proxies(spots), strict=True):
            step = {"receipt": receipt.id, "step": "proxy.up", "replica": spot["replica"], "ok": "error" not in said}
            ctx.tell("inject.step", step | said)
            problems += [f"{spot['replica']}: {said['error']}"] if "error" in said else []
        if problems:
            raise DrillError(f"ledger proxies: {'; '.join(problems)}")

    def observe(self, target: Target, receipt: Receipt, ctx: Context) -> Observation:  # noqa: ARG002 - of the protocol
        """Say for each whether a new connection leads through it, and how many go past it."""
        seen = [
            {"what": "ledger proxy", "replica": spot["replica"], **{k: v for k, v in said.items() if k != "changed"}}
            for spot, said in self._looks(target, receipt)
        ]
        up = [one.get("through") and not one.get("beside") for one in seen]
        down = [not (one.get("rules") or one.get("lives")) and "error" not in one for one in seen]
        on = True if all(up) else False if all(down) else None
        return Observation(on, tuple(seen), bystanders_ok=True)

    def _looks(self, target: Target, receipt: Receipt) -> list[tuple[Json, Json]]:
        spots = receipt.prior["spots"]
        return list(zip(spots, _bringing(target).look_at_proxies(spots), strict=True))

    def revert(self, target: Target, receipt: Receipt, ctx: Context) -> Restored:
        """Take the redirects away, then wait for the proxies to answer what is open and end."""
        restored = receipts.revert(target, receipt, ctx)
        deadline = ctx.mono() + DRAINED_S
        looks = self._looks(target, receipt)
        while any(said.get("lives") for _, said in looks) and ctx.mono() < deadline:
            ctx.sleep(POLL_S)
            looks = self._looks(target, receipt)
        left = [f"# {spot['replica']}: its proxy still runs" for spot, said in looks if said.get("lives")]
        left += [f"# {spot['replica']}: {line}" for spot, said in looks for line in said.get("changed", ())]
        left += [f"# {spot['replica']}: {said['error']}" for spot, said in looks if "error" in said]
        if restored is Restored.CLEAN and left:
            ctx.tell("undo.failed", {"receipt": receipt.id, "manual": left})
            return Restored.DIRTY
        return restored


def _bringing(target: Target) -> BringsProxies:
    return cast("BringsProxies", target)
