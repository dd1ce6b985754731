"""What the faults of an engine process share: naming it, and sending it a signal."""

from __future__ import annotations

from collections.abc import Sequence

from drills.access.podprocs import ENGINE_TITLE
from drills.errors import DrillError
from drills.faults.common import refuse_others, still_the_one
from drills.model import Context, Json, Receipt, Replica, Target


def unknown_engines(victims: Sequence[Replica]) -> list[str]:
    """Return a reason to refuse for each victim whose engine cannot be named."""
    lost = [v for v in victims if not (v.engine_pid and v.engine_start)]
    return [f"{v.name}: its engine process is not known, so it cannot be signalled safely" for v in lost]


def engines_of(replica: Replica, tree: Sequence[Json]) -> list[Json]:
    """Return those of a server's processes that are engines: the one that is known, and all of that title."""
    titled = [p for p in tree if p["pid"] == replica.engine_pid or str(p["title"]).startswith(ENGINE_TITLE)]
    return [{"pid": p["pid"], "start": p["start"]} for p in titled]


def signal_engines(target: Target, receipt: Receipt, ctx: Context, signal: str, *, done: str) -> None:
    """Signal each victim's engine, if all are still those that were aimed at; each is looked at again right before.

    `done` says what that makes of it: "killed", "stopped". Raises Refused before the deed, DrillError after it.
    """
    refuse_others(receipt, target.replicas())
    for victim in receipt.victims:
        if still_the_one(victim, target.replicas()) is None:
            raise DrillError(f"{victim['name']}: became another replica during the deed; it was not {done}")
        ctx.tell("inject.hit", {"receipt": receipt.id, "victims": [victim["name"]]})
        hit = target.host(victim["host"]).signal(victim["engine_pid"], victim["engine_start"], signal)
        step = {"receipt": receipt.id, "step": f"engine.{done}", "ok": hit, "pid": victim["engine_pid"]}
        ctx.tell("inject.step", step | {"replica": victim["name"]})
        if not hit:
            raise DrillError(f"{victim['name']}: its engine was gone before it could be {done}")
