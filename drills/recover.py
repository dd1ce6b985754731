"""`drill recover`: put back what a run that was cut short left behind. May be repeated.

It works from the receipts that lie on the target, and from the run's journal where that is at hand: the journal
is continued, and what it tells of and the target does not know any more is undone as well.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from drills import active, beside, lock, receipts
from drills.clock import Clock
from drills.custody import Custody, Found, Outstanding
from drills.errors import DrillError, Refused
from drills.journal import Journal, being_written, read
from drills.model import Context, Event, Fault, Json, Receipt, Restored, Target


@dataclass
class Recovered:
    """What a recovery did: a line for each thing, and what could not be put back."""

    lines: list[str] = field(default_factory=list)
    manual: list[str] = field(default_factory=list)
    folders: list[Path] = field(default_factory=list)  # of the runs whose journals were continued
    restored: Restored = Restored.CLEAN


def recover(
    custody: Custody, target: Target | None, run: str | None, folders: dict[str, Path], clock: Clock
) -> Recovered:
    """Undo every outstanding receipt, newest first, and let the dead run's lock go.

    `target` is None when the target itself is gone: then there is nothing to harm, and undoing what is in
    custody is enough. `folders` are the run folders by run id. Raises Refused while the run lives, and while the lock
    is damaged: then nobody can tell whether it does.
    """
    held = custody.held()
    if held is not None and run in (None, held.run) and not lock.dead(held, clock):
        raise Refused(f"run {held.run} is alive (pid {held.pid}); stop it with `drill stop {held.run}`")
    done = Recovered()
    found = custody.found()
    there = [o for o in found.outstanding if run in (None, o.receipt.run)]
    lost = _lost(found, run, run or (held.run if held else None), folders)
    for left in reversed([*there, *lost]):
        _undo(left, custody, target, folders.get(left.receipt.run), clock, done)
    _say_silent(found, done)
    _say_unreadable(custody.found() if found.unreadable else found, run, done)
    if done.restored is Restored.CLEAN:
        if held is not None and run in (None, held.run):
            custody.release(held.run)
            done.lines.append(f"lock of run {held.run} released")
        for name, folder in folders.items():
            if run in (None, name) and _close_journal(name, folder, done):
                custody.release(name)  # it may have died while it took the lock
    custody.sweep([o.receipt for o in (*there, *lost)])
    return done


def _lost(found: Found, run: str | None, cut_short: str | None, folders: dict[str, Path]) -> list[Outstanding]:
    """Return what only journals tell of: what the target of a run that was cut short lost, or has damaged."""
    known = [o.receipt.id for o in found.outstanding]
    lost = _journalled(folders.get(cut_short), known) if cut_short else []
    for bad in found.unreadable:
        if run in (None, bad.run) and bad.run != cut_short:
            lost += [o for o in _journalled(folders.get(bad.run), known) if o.receipt.id == bad.id]
    return lost


def _say_silent(found: Found, done: Recovered) -> None:
    """Say which machines do not answer: what lies there is not known, and what is known was put back all the same."""
    for one in found.silent:
        done.lines.append(f"{one}: what lies there is not known; its timers undo it at their deadlines")
        done.manual.append("drill recover  # when it can be reached again")
        done.restored = Restored.DIRTY


def _say_unreadable(found: Found, run: str | None, done: Recovered) -> None:
    """Name what could not be read: it stops nothing else, and what is not known to be off is not restored."""
    for bad in (one for one in found.unreadable if run is None or one.run in ("", run)):
        done.lines.append(bad.what)
        done.manual.append(f"{bad.remove}  # when what that run changed is put back")
        done.restored = Restored.DIRTY


def _journalled(folder: Path | None, known: list[str]) -> list[Outstanding]:
    """Return the receipts that a journal tells of, which are neither known nor put back."""
    events = _events(folder) if folder else []
    ends = [e.data for e in events if e.event == "revert.end"]
    put_back = [str(end.get("receipt")) for end in ends if end.get("restored") == Restored.CLEAN]
    told = [receipt for e in events if e.event == "receipt" if (receipt := _receipt(e)) is not None]
    return [Outstanding(receipt, {}) for receipt in told if receipt.id not in {*known, *put_back}]


def _receipt(event: Event) -> Receipt | None:
    try:
        return receipts.from_json(event.data.get("receipt"))
    except receipts.Damaged:
        return None


def _events(folder: Path) -> list[Event]:
    try:
        return read(folder / "journal.jsonl")
    except DrillError:  # damaged, or never begun
        return []


def _undo(
    left: Outstanding,
    custody: Custody,
    target: Target | None,
    folder: Path | None,
    clock: Clock,
    done: Recovered,
) -> None:
    """Undo one receipt; whatever goes wrong with it does not stop the others."""
    receipt, notes = left.receipt, _Notes(folder, done)
    notes.beside = receipt.fault in beside.BESIDE
    notes.tell("revert.begin", {"receipt": receipt.id, "by": "recover", "timer": left.timer})
    context = Context(notes.tell, clock.sleep, clock.mono, lambda: False)
    fault = _fault_of(receipt, target)
    try:
        if target is None or fault is None:
            restored, manual = custody.undo(receipt)
            why = "" if restored is Restored.CLEAN else "an undo step failed"
        else:
            restored, why = active.revert(fault, target, receipt, context)
            manual = receipts.by_hand(receipt)
            notes.tell("proof.off", _proof(fault, target, receipt, context))
        clean = restored is Restored.CLEAN
        if clean and not custody.disarm(receipt):
            clean, why = False, "its on-target timer could not be ended"
    except Exception as error:
        clean, why, manual = False, f"{type(error).__name__}: {error}", receipts.by_hand(receipt)
    restored = Restored.CLEAN if clean else Restored.DIRTY
    outcome = {"restored": restored.value, "manual": [] if clean else manual, "by": "recover", "reason": why}
    notes.tell("revert.end", {"receipt": receipt.id, **outcome})
    notes.close()
    names = ", ".join(str(v["name"]) for v in receipt.victims)
    done.lines.append(
        f"run {receipt.run}: {receipt.fault} on {names}: {'put back' if clean else 'NOT put back: ' + why}"
    )
    if not clean:
        done.restored = Restored.DIRTY
        done.manual += manual or [*_end_timer(left), f"drill recover {receipt.run}"]


def _end_timer(left: Outstanding) -> list[str]:
    """Return the command that ends a timer which does not end by itself."""
    if left.timer_state not in ("armed", "released"):
        return []
    unit, where = left.timer.get("unit"), str(left.timer.get("node", left.receipt.host))
    return [receipts.there(where, f"systemctl stop {unit}.timer" if unit else f"kill -9 {left.timer['pid']}")]


def _fault_of(receipt: Receipt, target: Target | None) -> Fault | None:
    """Return the fault that wrote the receipt; None for one of another version, whose undo steps are enough."""
    try:
        return beside.for_receipt(receipt, target.kind) if target else None
    except Exception:
        return None


class _Notes:
    """The run's journal, where it can be continued: a full disk may cost a line, never a revert."""

    def __init__(self, folder: Path | None, done: Recovered) -> None:
        self._journal: Journal | None = None
        self._done = done
        self.beside = False  # of what was put on beside a fault
        try:
            if folder is not None and folder.is_dir():
                self._journal = Journal(folder / "journal.jsonl")
        except DrillError as error:
            self._give_up(error)

    def tell(self, event: str, data: Json) -> None:
        try:
            if self._journal is not None:
                tell = beside.telling(self._journal.tell) if self.beside else self._journal.tell
                tell(event, data)
        except DrillError as error:
            self.close()
            self._give_up(error)

    def close(self) -> None:
        if self._journal is not None:
            self._journal.close()
        self._journal = None

    def _give_up(self, error: DrillError) -> None:
        line = f"not written down: {error}"
        if line not in self._done.lines:
            self._done.lines.append(line)


def _proof(fault: Fault, target: Target, receipt: Receipt, context: Context) -> Json:
    proof: Json = {"receipt": receipt.id, "fault": fault.name, "held": fault.held, "effect": fault.effect}
    try:
        seen = fault.observe(target, receipt, context)
    except Exception as error:
        return proof | {"ok": None, "evidence": [{"what": "error", "error": str(error)}], "bystanders_ok": None}
    off = (None if seen.on is None else not seen.on) if fault.held else True
    return proof | {"ok": off, "evidence": list(seen.evidence), "bystanders_ok": seen.bystanders_ok}


def _close_journal(run: str, folder: Path, done: Recovered) -> bool:
    """Say in the journal of a run that was cut short that it ended here; not while something is still open."""
    events = _events(folder)
    if not events or any(event.event == "end" for event in events) or _journalled(folder, []):
        return False
    if being_written(folder / "journal.jsonl"):  # of a run that lives, on another target
        return False
    notes = _Notes(folder, done)
    notes.tell("lock.released", {"by": "recover"})
    deeds = any(event.event == "receipt" for event in events)
    what = "put back by drill recover" if deeds else "nothing was to be put back"
    notes.tell("end", {"status": "crashed", "reason": f"the driver was cut short; {what}"})
    notes.close()
    done.folders.append(folder)
    done.lines.append(f"run {run}: journal closed")
    return True
