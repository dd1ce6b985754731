"""What faults share: the parameters of victims, and the identity a receipt pins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar, Protocol

from pydantic import AfterValidator, BaseModel

from drills.access import procs
from drills.errors import Refused
from drills.model import Json, Receipt, Replica, Target
from drills.params import Params


def _count(value: int | str) -> int | str:
    if isinstance(value, bool) or (isinstance(value, int) and value < 1):
        raise ValueError("at least 1 victim")
    if isinstance(value, str):
        number, sign = value[:-1].strip(), value[-1:]
        if sign != "%" or not number.replace(".", "", 1).isdigit() or not 0 < float(number) <= 100:
            raise ValueError("a number of victims, or a percentage up to 100%")
    return value


#: A number of victims, or a share of the eligible replicas such as "34%".
Victims = Annotated[int | str, AfterValidator(_count)]


class FaultParams(Params):
    """What every fault takes."""

    victims: Victims = 1


def how_for(how: str | dict[str, str], kind: str) -> str | None:
    """Return the way a fault is done on that kind of target; None when the experiment does not say."""
    return how if isinstance(how, str) else how.get(kind)


def pinned(replica: Replica) -> Json:
    """Return what names this incarnation of a replica, for the receipt."""
    return {
        "name": replica.name,
        "uid": replica.uid,
        "host": replica.host,
        "pid": replica.pid,
        "pid_start": replica.pid_start,
        "engine_pid": replica.engine_pid,
        "engine_start": replica.engine_start,
        "gpus": list(replica.gpus),
        "gate": replica.gate,
        "restarts": replica.restarts,
    }


class Written(Protocol):
    """What a receipt must know of the fault that writes it."""

    name: ClassVar[str]

    @property
    def params(self) -> BaseModel:
        """Its parameters."""


def receipt_of(
    fault: Written,
    target: Target,
    victims: Sequence[Replica],
    *,
    run: str,
    receipt: str,
    deadline_s: float,
    prior: Json,
    undo: Sequence[Json] = (),
) -> Receipt:
    """Return the receipt of a fault on these victims, the first one's host being the receipt's own."""
    return Receipt(
        id=receipt,
        run=run,
        fault=fault.name,
        target=target.name,
        host=victims[0].host,
        victims=tuple(pinned(victim) for victim in victims),
        prior=prior,
        holds=(),
        undo=tuple(undo),
        deadline_s=deadline_s,
        params=fault.params.model_dump(mode="json"),
    )


def offspring(target: Target, replica: Replica) -> list[Json]:
    """Return {pid, start, title} of the engine and of every other descendant of the replica's server, engine first.

    Resource trackers are left out: they clean up and end by themselves once the others are gone.
    """
    host = target.host(replica.host)
    engine = {"pid": replica.engine_pid, "start": replica.engine_start, "title": "engine"}
    found = [engine] if replica.engine_pid else []
    if replica.pid and replica.pid_start:
        found += [p for p in host.tree(replica.pid, replica.pid_start) if p["pid"] != replica.engine_pid]
    return [p for p in found if not procs.is_tracker(str(p["title"]))]


def burial(host: str, pid: int | None, start: int | None, left: Sequence[Json]) -> tuple[Json, ...]:
    """Return the undo steps that end what a process leaves behind, each by pid and start, once it is gone."""
    once_gone = {"host": host, "signal": "KILL", "once_gone": {"pid": pid, "start": start}}
    kill = ({"do": "signal", "pid": p["pid"], "start": p["start"], **once_gone} for p in left)
    return tuple(kill) if pid and start else ()


def bystanders(target: Target, victims: Sequence[Replica]) -> list[Json]:
    """Return the identity of every replica that is not a victim."""
    names = {v.name for v in victims}
    return [pinned(r) for r in target.replicas() if r.name not in names]


def untouched(pinned_before: Sequence[Json], now: Sequence[Replica]) -> bool:
    """Whether these replicas are still the same processes of the same incarnation."""
    by_name = {r.name: pinned(r) for r in now}
    same = ("uid", "pid", "pid_start", "engine_pid", "engine_start", "restarts")
    return all(b["name"] in by_name and all(by_name[b["name"]][k] == b[k] for k in same) for b in pinned_before)


def still_the_one(victim: Json, now: Sequence[Replica]) -> Replica | None:
    """Return the replica if it is still the pinned incarnation, engine included.

    Processes that nobody knew when it was pinned tell nothing: its machine may have been reached only since.
    """
    same = ("pid", "pid_start", "engine_pid", "engine_start")
    for replica in now:
        if replica.name == victim["name"]:
            known = {"uid": victim["uid"], **{k: victim[k] for k in same if victim[k] is not None}}
            return replica if all(getattr(replica, k) == v for k, v in known.items()) else None
    return None


def refuse_others(receipt: Receipt, now: Sequence[Replica]) -> None:
    """Raise Refused unless all victims are still those that were aimed at."""
    for victim in receipt.victims:
        if still_the_one(victim, now) is None:
            raise Refused(f"{victim['name']}: is no longer the replica that was aimed at; nothing was touched")
