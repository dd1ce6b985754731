"""Receipts that lead to several machines: each machine has its own part of one, with a timer of its own.

Where a machine keeps its part (a folder on it, a helper on a node) is for who inherits from `Parted` to say.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final, Protocol

from drills.custody import Outstanding
from drills.errors import DrillError, Refused, Unreachable
from drills.model import Json, Receipt, Restored
from drills.receipts import by_hand as by_hand_of

#: What timers may say, the worst first.
ORDER: Final = ("undo failed", "dead", "failed", "unreadable", "none", "undone", "disarmed", "released", "armed")


class Keeper(Protocol):
    """What keeps the part of one machine."""

    def arm(self, receipt: Receipt) -> Json:
        """Lay it down and start its timer. Raises Refused."""

    def undo(self, receipt: Receipt) -> tuple[Restored, list[str]]:
        """Carry out the undo steps; returns with it the manual commands for what could not be done."""

    def disarm(self, receipt: Receipt) -> bool:
        """End the timer and take the part away."""


class Parted:
    """Arms, undoes and disarms receipts machine by machine; one that fails does not stop the others."""

    machine = "host"  # the word for one

    def _keeper(self, run: str, name: str) -> Keeper:
        """Return what keeps the parts of that run on that machine. Raises Refused."""
        raise NotImplementedError

    def _refuse(self, part: Receipt) -> None:
        """Raise Refused where that part could not be watched over to its end."""

    def _is_gone(self, run: str, name: str) -> bool:  # noqa: ARG002 - for those who can tell
        """Whether the machine is gone for good, and with it what was changed there."""
        return False

    def arm(self, receipt: Receipt) -> Json:
        """Start a timer on each machine the receipt leads to. Refused, with none left, when one cannot be armed."""
        armed: Json = {}
        for name, part in parts(receipt).items():
            try:
                self._refuse(part)
                armed[name] = self._keeper(receipt.run, name).arm(part)
            except Exception as error:
                self._call_off(receipt, armed)
                if isinstance(error, DrillError):
                    raise Refused(f"{self.machine} {name}: {error}") from None
                raise
        first = armed[receipt.host] if receipt.host in armed else next(iter(armed.values()))
        return {**first, f"{self.machine}s": sorted(armed)}

    def _call_off(self, receipt: Receipt, armed: Iterable[str]) -> None:
        for name, part in parts(receipt).items():
            if name in armed:
                with suppress(DrillError):
                    self._keeper(receipt.run, name).disarm(part)

    def undo(self, receipt: Receipt) -> tuple[Restored, list[str]]:
        """Carry out the undo steps, each on its machine; one machine that fails does not stop the others.

        What was changed on one that is gone is gone with it, which is all that is said of it.
        Raises Unreachable when all that is wrong is that one does not answer now.
        """
        restored, by_hand = Restored.CLEAN, []
        silent: Unreachable | None = None
        for name, part in parts(receipt).items():
            try:
                if self._is_gone(receipt.run, name):
                    by_hand.append(f"# {self.machine} {name} is gone, and with it what was changed there")
                    continue
                state, commands = self._keeper(receipt.run, name).undo(part)
            except Unreachable as error:
                silent = silent or error
                continue
            except DrillError as error:
                state = Restored.UNKNOWN
                commands = [f"# {self.machine} {name}: {error}", *by_hand_of(part)]
            by_hand += commands
            restored = restored if state is Restored.CLEAN else state
        if silent is not None and restored is Restored.CLEAN:
            raise silent
        if silent is not None:
            by_hand.append(f"# {silent}")
        return restored, by_hand


def worst(timers: Iterable[Json]) -> Json:
    """Return what the worst of a receipt's timers says."""
    return min(timers, key=lambda one: ORDER.index(one.get("state", "none")), default={})


def parts(receipt: Receipt) -> dict[str, Receipt]:
    """Return for each machine its part of a receipt. An undo step that names no host is for the receipt's own."""
    names = {str(step.get("host", receipt.host)) for step in receipt.undo}
    names |= {receipt.host} if receipt.holds or not names else set()
    return {
        name: replace(
            receipt,
            host=name,
            holds=receipt.holds if name == receipt.host else (),
            undo=tuple(step for step in receipt.undo if step.get("host", receipt.host) == name),
        )
        for name in sorted(names)
    }


def whole(found: Sequence[tuple[str, Outstanding]]) -> Iterator[Outstanding]:
    """Yield the receipts whose parts were found on these machines, oldest first, each with its worst timer."""
    by_id: dict[str, list[tuple[str, Outstanding]]] = {}
    for name, one in found:
        by_id.setdefault(one.receipt.id, []).append((name, one))
    for _, mine in sorted(by_id.items()):
        first = str(mine[0][1].receipt.victims[0].get("host", ""))
        home = next((one.receipt for name, one in mine if name == first), mine[0][1].receipt)
        timers = [{**one.timer, "node": name} for name, one in mine]
        yield Outstanding(replace(home, undo=_steps(home, mine), holds=_holds(mine)), worst(timers))


def _steps(home: Receipt, mine: Sequence[tuple[str, Outstanding]]) -> tuple[Json, ...]:
    """Return all undo steps; those of other machines than the receipt's own say whose they are."""
    return tuple(
        step if one.receipt.host == home.host else {**step, "host": one.receipt.host}
        for _, one in mine
        for step in one.receipt.undo
    )


def _holds(mine: Sequence[tuple[str, Outstanding]]) -> tuple[str, ...]:
    return tuple(path for _, one in mine for path in one.receipt.holds)
