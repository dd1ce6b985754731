"""The notes a reset leaves on its host, so that any process, at any time, can tell how far it got.

BASE.begun   written before the reset is started: from here on it is never started again by itself
BASE.pid     "pid start host-uptime boot-id" of the process of it     BASE.out   what nvidia-smi said
BASE.rc      "status host-uptime" at its end                          BASE.seen  its outcome is judged
BASE.human   why a person has to look at the GPU; only a person removes it
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from drills.errors import DrillError, Unreachable
from drills.faults import reset_outcome
from drills.model import Context, Host, Json

COMMAND_TIMEOUT_S = 10.0
BOOT_ID = "/proc/sys/kernel/random/boot_id"
START_S = 5.0  # between the note that a reset begins and its process
RESTORE_TIMEOUT_S = 150  # longer than a reset may take

#: Nothing runs before its note is there, nor after an undo has taken the notes away.
RUN_RESET = """
printf '%s %s %s %s\\n' "$$" "$(cut -d' ' -f22 /proc/$$/stat)" "$(cut -d' ' -f1 /proc/uptime)" \\
  "$(cat /proc/sys/kernel/random/boot_id)" > "$0.pid" || exit
[ -e "$0.begun" ] || exec rm "$0.pid"
"$@"
rc=$?
printf '%s %s\\n' "$rc" "$(cut -d' ' -f1 /proc/uptime)" > "$0.rc.new" && mv "$0.rc.new" "$0.rc"
"""


@dataclass(frozen=True)
class Reset:
    """A reset as its notes tell it. `rc` is None while there is no status."""

    begun_s: float | None  # on the host's own uptime clock
    rc: int | None
    text: str
    boot_id: str | None = None  # of the boot in which it began


def begin(host: Host, base: str, command: Sequence[str], receipt: str) -> None:
    """Start the command so that it outlives the driver; the note of it comes first."""
    host.run(["mkdir", "-p", base.rsplit("/", 1)[0]], timeout_s=COMMAND_TIMEOUT_S)
    for note in ("pid", "out", "rc", "seen"):
        host.remove(f"{base}.{note}")
    host.write(f"{base}.begun", receipt)
    host.spawn(["/bin/sh", "-c", RUN_RESET, base, *command], log=f"{base}.out")


def read(host: Host, base: str) -> Reset | None:
    """Return what the notes tell; None when no reset was begun."""
    if host.read(f"{base}.begun") is None:
        return None
    begun, ended = (host.read(f"{base}.pid") or "").split(), (host.read(f"{base}.rc") or "").split()
    return Reset(
        begun_s=float(begun[2]) if len(begun) >= 3 else None,
        rc=int(ended[0]) if ended else None,
        text=host.read(f"{base}.out") or "",
        boot_id=begun[3] if len(begun) == 4 else None,
    )


def cut_short(host: Host, reset: Reset) -> bool:
    """Whether the machine was booted anew in the middle of it: then it never ends, and the GPU was set up anew."""
    return reset.rc is None and reset.boot_id is not None and (host.read(BOOT_ID) or "").strip() != reset.boot_id


def elapsed_s(now: Json, reset: Reset | None) -> float:
    """Return seconds since the reset began, all on the host's own clock; 0, which proves nothing, when not known.

    A boot since then has set the GPU up anew: then it is since that boot.
    """
    if reset is None or reset.begun_s is None or now["host_uptime_s"] is None:
        return 0.0
    booted = reset.boot_id is not None and reset.boot_id != now["boot_id"]
    return float(now["host_uptime_s"]) - (0.0 if booted else reset.begun_s)


def mark_seen(host: Host, base: str) -> None:
    """Note that the outcome is judged."""
    host.write(f"{base}.seen", "")


def need_human(host: Host, base: str, sentence: str) -> None:
    """Note why a person has to look; no undo calls this GPU put back until the note is gone."""
    host.run(["mkdir", "-p", base.rsplit("/", 1)[0]], timeout_s=COMMAND_TIMEOUT_S)
    host.write(f"{base}.human", f"a person has to look at it: {sentence}")


def unsupported_note(folder: str, uuid: str) -> str:
    """Return the file that says of a GPU that it cannot be reset there."""
    return f"{folder}/unsupported-{uuid}"


def mark_unsupported(host: Host, folder: str, uuid: str, prior: Json, text: str) -> None:
    """Note that a reset of that GPU is not supported, by this driver and since this boot, in nvidia-smi's words."""
    said = {key: prior[key] for key in ("driver_version", "boot_id")}
    host.write(unsupported_note(folder, uuid), json.dumps({**said, "text": " ".join(text.split())[:300]}))


def unsupported(host: Host, folder: str, uuid: str) -> Json | None:
    """Return {driver_version, boot_id, text} of such a note; None where there is none that can be read."""
    try:
        found = json.loads(host.read(unsupported_note(folder, uuid)) or "null")
    except ValueError:
        return None
    whole = isinstance(found, dict) and found.keys() >= {"driver_version", "boot_id", "text"}
    return dict(found) if whole else None


#: Returns what is not as it was at a GPU whose reset was reported as done. Raises DrillError.
LookAt = Callable[[Reset], Sequence[str]]


def conclude(host: Host, base: str, pci: str, ctx: Context, look: LookAt) -> None:
    """Judge a reset whose driver died before it could; one under way is waited for, bounded, and never ended."""
    began = ctx.mono()
    while under_way(host, base, patient=ctx.mono() - began < START_S) and ctx.mono() - began < RESTORE_TIMEOUT_S:
        ctx.sleep(0.1)
    reset = read(host, base)
    if reset is None or host.read(f"{base}.seen") is not None:
        return
    if reset.rc is None and not cut_short(host, reset):
        return
    if why := _trouble(reset, pci, look):
        need_human(host, base, why)
    mark_seen(host, base)


def _trouble(reset: Reset, pci: str, look: LookAt) -> str:
    """Return why a person has to look at the GPU after that reset; empty when nobody has to."""
    outcome = "ok" if reset.rc is None else reset_outcome.classify(reset.rc, reset.text, pci)
    if outcome in reset_outcome.NEEDS_HUMAN:
        return f"its reset ended as '{outcome}': {reset_outcome.OUTCOMES[outcome]}"
    if outcome != "ok":
        return ""
    try:
        problems = look(reset)
    except Unreachable:
        raise
    except DrillError as error:
        return f"nobody could look at it after its reset: {error}"
    return f"after its reset: {'; '.join(problems)}" if problems else ""


def under_way(host: Host, base: str, *, patient: bool) -> bool:
    """Whether a reset was begun and has not ended; `patient` while its process may still have to come up."""
    reset = read(host, base)
    if reset is None or reset.rc is not None:
        return False
    runner = (host.read(f"{base}.pid") or "").split()
    return host.alive(int(runner[0]), int(runner[1])) if len(runner) >= 3 else patient


def restore(python: str, base: str, uuid: str, gpu: Json, smi: Sequence[str], *, keep: bool = False) -> list[str]:
    """Return the command that puts the GPU's settings back, on its host; `keep` leaves the notes."""
    argv = [python, "-m", "drills.access.gpu_restore", "--base", base, "--uuid", uuid]
    if gpu["persistence"] is not None:
        argv += ["--persistence", "1" if gpu["persistence"] else "0"]
    if gpu["power_limit_w"] is not None and gpu["power_default_w"] is not None:
        argv += ["--power-limit", f"{gpu['power_limit_w']:.2f}", "--default-limit", f"{gpu['power_default_w']:.2f}"]
    if gpu.get("clock_lock"):  # the site's own
        argv += ["--clocks", ",".join(map(str, gpu["clock_lock"]))]
    return [*argv, *(["--keep"] if keep else []), "--smi", *smi]


def undo_step(python: str, base: str, uuid: str, gpu: Json, smi: Sequence[str]) -> Json:
    """Return the undo step of a receipt that does so and removes the notes; one slow GPU does not keep the others."""
    argv = restore(python, base, uuid, gpu, smi)
    return {"do": "run", "argv": argv, "timeout_s": RESTORE_TIMEOUT_S, "beside": True}
