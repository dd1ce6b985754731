"""What became of a `nvidia-smi --gpu-reset`: by status and text, then by the GPU itself. Pure.

Most refusals end with status 255, so the status alone does not tell "in use" from "not supported"; and a
status of 0 has been seen when nothing had happened, so success is what the GPU shows afterwards.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from drills.model import Json

#: outcome -> what it means, for people
OUTCOMES = {
    "ok": "reset, says nvidia-smi",
    "in_use": "refused: in use by another client",
    "in_use_old": "refused: in use by another process (an old driver's words)",
    "unsupported_a": "refused: a reset of this GPU is not supported here",
    "unsupported_b": "refused: a reset of this GPU is not supported here",
    "blocked": "refused: unknown error, which is what a hypervisor that blocks resets looks like",
    "lost": "the GPU fell off the bus; a reset cannot help",
    "no_permission": "refused: not root",
    "timeout": "nvidia-smi did not end in time",
    "partial": "some of the GPUs were reset and some were not",
    "unknown": "nvidia-smi ended in a way that is not documented",
    "no_effect": "nvidia-smi said success, but the GPU's uptime went on: nothing happened",
}
#: The GPU was left alone, and everything goes on as before.
HARMLESS = frozenset({"in_use", "in_use_old", "unsupported_a", "unsupported_b", "blocked", "no_permission"})
#: Nobody knows how the GPU is, not even where nvidia-smi and the GPU tell two stories: never repeated, a person looks.
NEEDS_HUMAN = frozenset({"lost", "timeout", "partial", "unknown", "no_effect"})

#: The GPU is fine, and will not be reset on this machine tomorrow either.
UNSUPPORTED = frozenset({"unsupported_a", "unsupported_b", "blocked"})

TIMED_OUT = (124, 137)  # of coreutils' timeout: ended by TERM, by KILL
NO_PERMISSION, GPU_LOST = 4, 15
UPTIME_SLACK_S = 1.0
OWN_XIDS = (45,)  # killed holders leave it: our own footprint
_DONE = re.compile(r"GPU (\S+) was successfully reset")
_REFUSED = re.compile(r"^\s+GPU (\S+): (.+)$", re.MULTILINE)
_BUS = re.compile(r"^(?:[0-9a-f]+:)?([0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f])$", re.IGNORECASE)


def classify(rc: int | None, text: str, pci: str) -> str:
    """Return the outcome of a reset of the one GPU at that PCI id; `rc` is None when it did not end in time."""
    if rc is None or rc in TIMED_OUT:
        return "timeout"
    if rc == GPU_LOST or "GPU is lost" in text or "Unable to determine the device handle" in text:
        return "lost"
    done = {_bus(p) for p in _DONE.findall(text)}
    refused = {_bus(p): why for p, why in _REFUSED.findall(text)}
    if done and refused:
        return "partial"
    if done:
        return "ok" if rc == 0 and done == {_bus(pci)} else "unknown"
    if rc == 0:
        return "unknown"
    if rc == NO_PERMISSION or "Insufficient Permissions" in text:
        return "no_permission"
    for words, outcome in (
        ("In use by another client", "in_use"),
        ("is currently in use by another process", "in_use_old"),
        ("is not supported", "unsupported_a"),
        (": Not Supported", "unsupported_b"),
        ("Unknown Error", "blocked"),
    ):
        if words in text:
            return outcome
    return "unknown"


def _bus(pci: str) -> str:
    """Return bus, device and function: the domain is written with 4 or 8 digits, or left out."""
    found = _BUS.match(pci)
    return found[1].lower() if found else pci.lower()


@dataclass(frozen=True)
class Verified:
    """What the GPU shows after a reset that was reported as done. `proven` is None without an uptime, or a begin."""

    outcome: str
    proven: bool | None
    problems: tuple[str, ...]  # not as it was before: a person has to look
    evidence: Json


def verify(uuid: str, prior: Json, now: Json, elapsed_s: float) -> Verified:
    """Compare the answers of `drills.probes.gpu` from before and after; `elapsed_s` is since the reset began.

    0, or less, is an `elapsed_s` that is not known: nothing is proven by it, and nothing denied.
    """
    before, after = prior["gpus"][uuid], now["gpus"].get(uuid)
    evidence = {
        "gpu": uuid,
        "uptime_before_s": before["uptime_s"],
        "uptime_s": after and after["uptime_s"],
        "elapsed_s": round(elapsed_s, 2),
        "boot_id": now["boot_id"],
        "same_boot": now["boot_id"] == prior["boot_id"],
        "gpus": now["count"],
        "recovery_action": after and after["recovery_action"],
        "source": now["source"],
    }
    problems = list(_machine_problems(prior, now))
    if after is None:
        said = "; ".join(now["errors"]) or "nothing"
        return Verified("lost", False, (*problems, f"GPU {uuid} is not there any more (said: {said})"), evidence)
    problems += _gpu_problems(before, after)
    uptime_s = after["uptime_s"]
    if uptime_s is None or elapsed_s <= 0:
        return Verified("ok", None, tuple(problems), evidence)
    if uptime_s < elapsed_s + UPTIME_SLACK_S:
        return Verified("ok", evidence["same_boot"], tuple(problems), evidence)
    return Verified("no_effect", False, (*problems, OUTCOMES["no_effect"]), evidence)


def _machine_problems(prior: Json, now: Json) -> Sequence[str]:
    problems = []
    if now["source"] is None:
        problems.append(f"neither NVML nor nvidia-smi answers ({'; '.join(now['errors'])})")
    if now["boot_id"] != prior["boot_id"]:
        problems.append("the machine was rebooted meanwhile (its boot id changed)")
    if now["count"] != prior["count"]:
        problems.append(f"{now['count']} GPUs are there, {prior['count']} were")
    return problems


def _gpu_problems(before: Json, after: Json) -> Sequence[str]:
    problems = []
    if after["recovery_action"] != "None":
        asked = after["recovery_action"] or "unknown"
        problems.append(f"recovery action is {asked}, not None")
    same = [name for name in ("mig", "fabric", "compute_mode", "ecc_mode") if name in before]
    problems += [f"{name} is {after[name]}, was {before[name]}" for name in same if after[name] != before[name]]
    rows = ("pending", "failure")
    problems += [f"row remapping: {r}" for r in rows if after["remapped"][r] and not before["remapped"][r]]
    new = Counter(_xid_key(x) for x in after["xids"] or ()) - Counter(_xid_key(x) for x in before["xids"] or ())
    problems += [f"new Xid {xid}: {text}" for _, xid, text in new if not _own_xid(xid, text)]
    return problems


def _xid_key(xid: Json) -> tuple[float, int, str]:
    return xid["at_s"], xid["xid"], xid["text"]


def _own_xid(xid: int, text: str) -> bool:
    """Whether a reset leaves it: 45 of killed holders, and 154 on the way back to None."""
    return xid in OWN_XIDS or (xid == 154 and "to 0x0" in text)
