"""`drill recover`: put back what a run that was cut short left behind. May be repeated.

It works from the receipts that lie on the target; where the run's journal is at hand it is continued.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from drills import active, lock, receipts
from drills.clock import Clock
from drills.errors import Refused
from drills.faults import for_receipt
from drills.journal import Journal, read
from drills.model import Context, Fault, Host, Json, Receipt, Restored, Target
from drills.receipts import Outstanding

FINISHED = frozenset({"end"})


@dataclass
class Recovered:
    """What a recovery did: a line for each thing, and what could not be put back."""

    lines: list[str] = field(default_factory=list)
    manual: list[str] = field(default_factory=list)
    folders: list[Path] = field(default_factory=list)  # of the runs whose journals were continued
    restored: Restored = Restored.CLEAN


def outstanding(host: Host, state_dir: str, run: str | None = None) -> list[Outstanding]:
    """Return the receipts on the target, of one run or of all."""
    return [o for o in receipts.outstanding(host, state_dir) if run in (None, o.receipt.run)]


def recover(
    host: Host, state_dir: str, target: Target | None, run: str | None, folders: dict[str, Path], clock: Clock
) -> Recovered:
    """Undo every outstanding receipt, newest first, and let the dead run's lock go.

    `target` is None when the target itself is gone: then there is nothing to harm, and undoing what lies
    on the host is enough. `folders` are the run folders by run id. Raises Refused while the run lives.
    """
    held = lock.read(host, state_dir)
    if held is not None and run in (None, held.run) and not held.dead(clock) and held.pid != os.getpid():
        raise Refused(f"run {held.run} is alive (pid {held.pid}); stop it with `drill stop {held.run}`")
    done = Recovered()
    for left in reversed(outstanding(host, state_dir, run)):
        _undo(left, host, state_dir, target, folders.get(left.receipt.run), clock, done)
    if held is not None and run in (None, held.run) and done.restored is Restored.CLEAN:
        lock.release(host, state_dir, held.run)
        done.lines.append(f"lock of run {held.run} released")
        folders = folders | {held.run: Path(held.folder)}
        _close_journal(held.run, folders.get(held.run), done)
    return done


def _undo(
    left: Outstanding,
    host: Host,
    state_dir: str,
    target: Target | None,
    folder: Path | None,
    clock: Clock,
    done: Recovered,
) -> None:
    receipt = left.receipt
    journal = Journal(folder / "journal.jsonl") if folder and folder.is_dir() else None

    def tell(event: str, data: Json) -> None:
        if journal is not None:
            journal.tell(event, data)

    tell("revert.begin", {"receipt": receipt.id, "by": "recover", "timer": left.timer})
    if target is None:
        restored, manual = receipts.undo(host, state_dir, receipt)
        why = "the target is gone"
    else:
        fault = for_receipt(receipt, target.kind)
        context = Context(tell, clock.sleep, clock.mono, lambda: False)
        restored, why = active.revert(fault, target, receipt, context)
        manual = [receipts.manual(step) for step in receipt.undo]
        tell("proof.off", _proof(fault, target, receipt, context))
    clean = restored is Restored.CLEAN and receipts.disarm(host, state_dir, receipt)
    restored = Restored.CLEAN if clean else Restored.DIRTY
    outcome = {"restored": restored.value, "manual": [] if clean else manual, "by": "recover", "reason": why}
    tell("revert.end", {"receipt": receipt.id, **outcome})
    if journal is not None:
        journal.close()
    names = ", ".join(str(v["name"]) for v in receipt.victims)
    done.lines.append(
        f"run {receipt.run}: {receipt.fault} on {names}: {'put back' if clean else 'NOT put back: ' + why}"
    )
    if not clean:
        done.restored = Restored.DIRTY
        done.manual += manual


def _proof(fault: Fault, target: Target, receipt: Receipt, context: Context) -> Json:
    proof: Json = {"receipt": receipt.id, "fault": fault.name, "held": fault.held, "effect": fault.effect}
    try:
        seen = fault.observe(target, receipt, context)
    except Exception as error:
        return proof | {"ok": None, "evidence": [{"what": "error", "error": str(error)}], "bystanders_ok": None}
    off = (None if seen.on is None else not seen.on) if fault.held else True
    return proof | {"ok": off, "evidence": list(seen.evidence), "bystanders_ok": seen.bystanders_ok}


def _close_journal(run: str, folder: Path | None, done: Recovered) -> None:
    """Say in the journal of a run that was cut short that it ended here."""
    if folder is None or not (folder / "journal.jsonl").is_file():
        return
    if any(event.event in FINISHED for event in read(folder / "journal.jsonl")):
        return
    journal = Journal(folder / "journal.jsonl")
    journal.tell("lock.released", {"by": "recover"})
    journal.tell("end", {"status": "crashed", "reason": "the driver was cut short; put back by drill recover"})
    journal.close()
    done.folders.append(folder)
    done.lines.append(f"run {run}: journal closed")
