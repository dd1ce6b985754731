"""What the notes of a reset prove, and what is made of them when the driver died: for both ways with notes."""

from __future__ import annotations

from collections.abc import Sequence

from drills.faults import gpu_notes, reset_outcome
from drills.model import Context, Host, Json, Receipt, Target
from drills.probes import gpu_host


def conclude(target: Target, receipt: Receipt, ctx: Context) -> None:
    """Judge the resets of a driver that died before it could, by their notes and by how the GPUs are now."""
    prior = receipt.prior["machine"]
    for uuid, base in receipt.prior["bases"].items():

        def problems(reset: gpu_notes.Reset, uuid: str = uuid) -> Sequence[str]:
            now = gpu_host.look(target, receipt.host)
            before = {**prior, "boot_id": now["boot_id"]}  # a boot since then is no doing of the reset
            return reset_outcome.verify(uuid, before, now, gpu_notes.elapsed_s(now, reset)).problems

        gpu_notes.conclude(target.host(receipt.host), base, prior["gpus"][uuid]["pci"], ctx, problems)


def reset_evidence(receipt: Receipt, now: Json, uuid: str, reset: gpu_notes.Reset | None) -> Json:
    """Return the proof, one way or the other, that this GPU was reset."""
    prior = receipt.prior["machine"]
    rc, text = (reset.rc, reset.text) if reset else (None, "")
    outcome = reset_outcome.classify(rc, text, prior["gpus"][uuid]["pci"]) if reset else "not begun"
    if outcome != "ok":
        meaning = reset_outcome.OUTCOMES.get(outcome, outcome)
        return {"what": "reset", "gpu": uuid, "outcome": outcome, "meaning": meaning, "proven": False, "rc": rc}
    found = reset_outcome.verify(uuid, prior, now, gpu_notes.elapsed_s(now, reset))
    meaning = "its uptime restarted" if found.proven else reset_outcome.OUTCOMES[found.outcome]
    if found.proven is None:
        meaning = "reset reported, not independently proven: its uptime, or when it began, is not told"
    proof = {"outcome": found.outcome, "meaning": meaning, "proven": found.proven, "rc": rc}
    return {"what": "reset", **proof, "problems": list(found.problems), **found.evidence}


def engine_evidence(host: Host, victim: Json) -> Json:
    """Return whether the engine that a victim had is gone."""
    gone = not host.alive(victim["engine_pid"], victim["engine_start"])
    return {"what": "engine of the victim", "replica": victim["name"], "pid": victim["engine_pid"], "gone": gone}
