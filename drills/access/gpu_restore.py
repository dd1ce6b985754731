"""Put back the settings of a GPU that a reset dropped; runs on the target, may run twice.

    gpu_restore --base BASE --uuid UUID [--persistence 0|1] [--power-limit W --default-limit W] [--clocks LOW,HIGH]
                [--keep] --smi COMMAND

It first waits for a reset that is still under way (it never ends one, never starts one). A setting is changed only
while it carries what the reset made of it: persistence off, power limit at the default. A clock lock, which nobody
can read, is set again in any case. BASE.* are the notes of
the reset; they are removed at the end unless --keep. BASE.human says that a person has to look at the GPU first:
then the settings are put back and the status is 1 until that file is gone. So it is, without that file, after a
reset that was started and ended without a status, or with one other than 0 that no driver has judged. Standard
library only.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

try:
    from drills.access import procs
except ImportError:  # copied to a host, beside procs.py
    import procs  # type: ignore[import-not-found, no-redef] # there only on a host

WAIT_S = 140.0
START_S = 5.0  # between the note that a reset begins and its process
COMMAND_TIMEOUT_S = 20.0
NOTES = ("begun", "pid", "out", "rc", "seen")


class Problem(Exception):
    """What could not be put back, in a sentence."""


def main(argv: list[str] | None = None) -> int:
    """Put the settings back; status 1 with a sentence on stderr when something could not be."""
    parser = argparse.ArgumentParser(description="put back the settings of a GPU that a reset dropped")
    parser.add_argument("--base", required=True)
    parser.add_argument("--uuid", required=True)
    parser.add_argument("--persistence", choices=["0", "1"])
    parser.add_argument("--power-limit", type=float)
    parser.add_argument("--default-limit", type=float)
    parser.add_argument("--clocks")
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--smi", nargs=argparse.REMAINDER, required=True)
    asked = parser.parse_args(argv)
    try:
        _wait_for_reset(asked.base)
        _put_back(asked)
        _nothing_open(asked.base, keep=asked.keep)
    except Problem as problem:
        print(f"GPU {asked.uuid}: {problem}", file=sys.stderr)
        return 1
    if not asked.keep:
        for note in NOTES:
            Path(f"{asked.base}.{note}").unlink(missing_ok=True)
    return 0


def _wait_for_reset(base: str) -> None:
    deadline = time.monotonic() + WAIT_S
    started = time.monotonic() + START_S
    while _under_way(base, patient=time.monotonic() < started):
        if time.monotonic() > deadline:
            raise Problem(f"the reset is still under way after {WAIT_S:.0f} s; its output is in {base}.out")
        time.sleep(0.1)


def _under_way(base: str, *, patient: bool) -> bool:
    """Whether a reset has begun and not ended; one whose process is gone without a status has ended too."""
    if not Path(f"{base}.begun").exists() or Path(f"{base}.rc").exists():
        return False
    try:
        pid, start = Path(f"{base}.pid").read_text().split()[:2]
    except (FileNotFoundError, ValueError):
        return patient
    return procs.alive(int(pid), int(start))


def _nothing_open(base: str, *, keep: bool) -> None:
    """Raise when a person has to look, or when the driver died before it could judge a reset that went wrong."""
    if why := _for_a_person(base) or (None if keep else _not_judged(base)):
        raise Problem(why)


def open_question(base: str) -> str | None:
    """Say what keeps the GPU of these notes from being used; None when nothing does."""
    return _for_a_person(base) or _not_judged(base)


def _for_a_person(base: str) -> str | None:
    human = Path(f"{base}.human")
    if not human.exists():
        return None
    return f"{human.read_text().strip()}; when it is well: rm {human}, then `drill recover`"


def _not_judged(base: str) -> str | None:
    """Say how a reset went wrong that no driver has judged."""
    status, runner = Path(f"{base}.rc"), Path(f"{base}.pid")
    if not Path(f"{base}.begun").exists() or Path(f"{base}.seen").exists():
        return None
    if not status.exists() and not runner.exists():
        return None  # its driver died before it could start it
    if not status.exists():
        return f"its reset ended without a status; look at it; when it is well: rm {base}.begun"
    if (code := status.read_text().split()[0]) != "0":
        return f"its reset ended with status {code}, not judged yet: `drill recover`"
    return None


def _put_back(asked: argparse.Namespace) -> None:
    """Set what is not as it was; the clock lock last, for with persistence mode off it does not last at all."""
    _put_settings_back(asked)
    if asked.clocks is not None:
        lock_clocks(asked.smi, asked.uuid, asked.clocks)


def _put_settings_back(asked: argparse.Namespace) -> None:
    smi, uuid = asked.smi, asked.uuid
    if asked.persistence is None and asked.power_limit is None:
        return
    persistence, limit = _settings(smi, uuid)
    if asked.persistence == "1" and persistence == "Disabled":
        run_smi(smi, "-pm", "1", "-i", uuid)
    if _differs(asked.power_limit, limit) and not _differs(asked.default_limit, limit):
        run_smi(smi, "-pl", f"{asked.power_limit:.2f}", "-i", uuid)
    persistence_now, limit_now = _settings(smi, uuid)
    if asked.persistence == "1" and persistence_now == "Disabled":
        raise Problem(f"persistence mode stays off; put it on: nvidia-smi -pm 1 -i {uuid}")
    if _differs(asked.power_limit, limit_now) and not _differs(asked.default_limit, limit_now):
        raise Problem(f"power limit stays at {limit_now} W: nvidia-smi -pl {asked.power_limit:.2f} -i {uuid}")


def lock_clocks(smi: list[str], uuid: str, lock: str) -> None:
    """Lock the clocks to LOW,HIGH MHz. Raises Problem; nvidia-smi calls a card that takes no lock a success."""
    said = run_smi(smi, "-lgc", lock, "-i", uuid)
    if "not supported" in said:
        raise Problem(f"its clock lock is gone and is not taken back: nvidia-smi -lgc {lock} -i {uuid}: {said.strip()}")


def _differs(wanted: float | None, found: str) -> bool:
    """Whether the two are known and not the same limit."""
    try:
        return wanted is not None and abs(float(found) - wanted) > 0.01
    except ValueError:
        return False


def _settings(smi: list[str], uuid: str) -> tuple[str, str]:
    out = run_smi(smi, "--query-gpu=persistence_mode,power.limit", "--format=csv,noheader,nounits", "-i", uuid)
    persistence, _, limit = out.strip().partition(",")
    return persistence.strip(), limit.strip()


def run_smi(smi: list[str], *argv: str) -> str:
    """Return what nvidia-smi says. Raises Problem when it fails or does not answer."""
    try:
        done = subprocess.run(
            [*smi, *argv],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=COMMAND_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise Problem(f"nvidia-smi {' '.join(argv)}: no answer within {COMMAND_TIMEOUT_S:.0f} s") from None
    except OSError as error:
        raise Problem(f"{smi[0]}: {error.strerror}") from None
    if done.returncode != 0:
        why = " ".join((done.stdout + done.stderr).split())[:200]
        raise Problem(f"nvidia-smi {' '.join(argv)}: status {done.returncode}: {why}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
