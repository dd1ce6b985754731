"""Put back what a drill capped at a GPU, its clocks or its power; runs on the target, may run twice.

    gpu_clocks --note NOTE --uuid UUID --cap-mhz MHZ [--clocks LOW,HIGH] --smi COMMAND
    gpu_clocks --note NOTE --uuid UUID --cap-w W --prior-w W [--default-w W] --smi COMMAND

NOTE is written before the setting is changed, and removed once it is back: without it nothing was changed and nothing
is done. A clock lock is taken off, or set to the site's own, LOW,HIGH MHz, where it had one. A power limit is set to
what it was while it is the drill's, or the default that a reset made of it; one that somebody else set meanwhile is
theirs. Either is read back. Standard library only.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from drills.access.gpu_restore import Problem, lock_clocks, run_smi

SLACK_MHZ = 30  # a card takes the nearest step of its own
SLACK_W = 0.01
#: Clock event reasons that explain a low clock by themselves: idle, power cap, slowdown, thermal, power brake.
IDLE, LOW = 0x1, 0x1 | 0x4 | 0x8 | 0x20 | 0x40 | 0x80
VERIFY_S = 5.0
POLL_S = 0.25
REASONS = ("clocks_event_reasons.active", "clocks_throttle_reasons.active")  # the second as older ones call it


def main(argv: list[str] | None = None) -> int:
    """Put the setting back; status 1 with a sentence on stderr when it could not be."""
    parser = argparse.ArgumentParser(description="put back what a drill capped at a GPU")
    parser.add_argument("--note", required=True)
    parser.add_argument("--uuid", required=True)
    parser.add_argument("--cap-mhz", type=int)
    parser.add_argument("--clocks")
    parser.add_argument("--cap-w", type=float)
    parser.add_argument("--prior-w", type=float)
    parser.add_argument("--default-w", type=float)
    parser.add_argument("--smi", nargs=argparse.REMAINDER, required=True)
    asked = parser.parse_args(argv)
    if not Path(asked.note).exists():
        return 0
    try:
        if asked.cap_mhz is not None:
            _unlock(asked.smi, asked.uuid, asked.cap_mhz, asked.clocks)
        else:
            _uncap(asked)
    except Problem as problem:
        print(f"GPU {asked.uuid}: {problem}", file=sys.stderr)
        return 1
    Path(asked.note).unlink(missing_ok=True)
    return 0


def _unlock(smi: list[str], uuid: str, cap_mhz: int, lock: str | None) -> None:
    """Take the lock off, or set the one that was there; see the clock above ours, or low for a reason of its own."""
    if lock is None:
        run_smi(smi, "-rgc", "-i", uuid)
    else:
        lock_clocks(smi, uuid, lock)
    again = f"nvidia-smi {'-rgc' if lock is None else f'-lgc {lock}'} -i {uuid}"
    deadline = time.monotonic() + VERIFY_S
    while True:
        clock_mhz, reasons = _clock(smi, uuid)
        if clock_mhz > cap_mhz + SLACK_MHZ or reasons & LOW:
            return
        if time.monotonic() > deadline:
            raise Problem(f"its clock stays at {clock_mhz} MHz, though our lock is off: {again}")
        time.sleep(POLL_S)


def _clock(smi: list[str], uuid: str) -> tuple[int, int]:
    """Return the SM clock in MHz, and why it is where it is."""
    said = ""
    for field in REASONS:
        try:
            said = run_smi(smi, f"--query-gpu=clocks.sm,{field}", "--format=csv,noheader,nounits", "-i", uuid).strip()
            clock, _, reasons = said.partition(",")
            return int(clock), int(reasons, 16)
        except ValueError:
            continue
        except Problem as problem:
            if "is not a valid field" not in str(problem):
                raise
    raise Problem(f"its lock was taken off, and whether its clock follows cannot be read ({said or 'no answer'})")


def _uncap(asked: argparse.Namespace) -> None:
    """Set the limit that was there before, where it is not somebody else's by now."""
    back = f"nvidia-smi -pl {asked.prior_w:.2f} -i {asked.uuid}"
    now = _limit_w(asked, back)
    if _same(now, asked.prior_w) or not (_same(now, asked.cap_w) or _same(now, asked.default_w)):
        return
    run_smi(asked.smi, "-pl", f"{asked.prior_w:.2f}", "-i", asked.uuid)
    if not _same(now := _limit_w(asked, back), asked.prior_w):
        raise Problem(f"its power limit stays at {now:.2f} W: {back}")


def _same(now: float, limit: float | None) -> bool:
    return limit is not None and abs(now - limit) <= SLACK_W


def _limit_w(asked: argparse.Namespace, back: str) -> float:
    query = ("--query-gpu=power.limit", "--format=csv,noheader,nounits", "-i", asked.uuid)
    said = run_smi(asked.smi, *query).strip()
    try:
        return float(said)
    except ValueError:
        raise Problem(f"its power limit cannot be read ({said or 'no answer'}): {back}") from None


if __name__ == "__main__":
    sys.exit(main())
