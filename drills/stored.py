"""What is stored of a run, told without judging it: is it still going, what was kept, what is to be put back."""

from __future__ import annotations

import shlex
from datetime import datetime
from pathlib import Path

from drills import files, journal, receipts, runfolder, shapes, strictjson
from drills.errors import FileProblem
from drills.model import Event, Json, Restored
from drills.strictjson import Shape

VERDICT = "verdict.json"
#: What a run that had load cannot be judged without. It is large, and need not be kept beside the postmortem.
RAW = ("requests.ndjson", "samples.ndjson")


def not_kept(folder: Path) -> list[str]:
    """Return which raw files of a run that had load are not here; without them it stays as it was judged."""
    begun = (folder / "load.json").is_file()
    return [name for name in RAW if begun and not (folder / name).exists()]


def verdict(folder: Path) -> Json | None:
    """Return what was judged of the run, None when that was not stored. Raises FileProblem for a damaged file."""
    path = folder / VERDICT
    return shaped(path, shapes.VERDICT, "a verdict") if path.exists() else None


def shaped(path: Path, shape: Shape, what: str) -> Json:
    """Return a JSON file of a run that has a shape; raises FileProblem where it has not, or cannot be read."""
    try:
        found = strictjson.loads(files.read(path))
    except (OSError, ValueError) as error:
        raise FileProblem(path, f"cannot be read ({getattr(error, 'strerror', None) or error})") from None
    if said := strictjson.misfit(found, shape):
        raise FileProblem(path, f"not {what} ({said})")
    return dict(found)


# ---- a run that is still going ------------------------------------------------------------------------


def is_going(folder: Path) -> bool:
    """Whether its driver, on this machine, is still at it."""
    return journal.being_written(folder / "journal.jsonl")


def going(folder: Path) -> list[str]:
    """Say of a run that is still going what it is, since when, and how far it has come, a line each."""
    events = journal.read(folder / "journal.jsonl")
    run, pid = runfolder.run_id(folder), _writer(folder / "journal.jsonl")
    if any(event.event == "revert.begin" and event.data.get("by") == "recover" for event in events):
        return [f"run {run}: `drill recover` is putting it back at this moment"]
    header = events[0].data if events and events[0].event == "header" else {}
    what = f"{header.get('experiment', 'its experiment')} at target {header.get('target', '?')}"
    status, stop = (_command(events, *words) for words in (("status",), ("stop", run)))
    since = f", since {_time(events[0])}" if events else ""
    by = f", pid {pid}" if pid else ""
    return [
        f"run {run} is still going: {what}{since}; {_stage(events)}{by}",
        f"how it went is told when it has ended; `{status}` says what is on, `{stop}` ends it",
    ]


def _stage(events: list[Event]) -> str:
    """Say how far the journal has come."""
    told = [event for event in events if event.event in ("phase", "load.stopping")]
    if not told:
        return "not yet under load"
    if told[-1].event == "load.stopping":
        return f"its load is off since {_time(told[-1])}, it is ending"
    return f"phase {told[-1].data.get('phase')} since {_time(told[-1])}"


def _command(events: list[Event], *words: str) -> str:
    """Return a command of `drill` about the target of the run."""
    target = next((str(e.data["target"]) for e in events if e.event == "header" and e.data.get("target")), "lab")
    return shlex.join(["drill", *words, *([] if target == "lab" else ["--target", target])])


def _time(event: Event) -> str:
    try:
        return f"{datetime.fromisoformat(event.time):%H:%M:%S} UTC"
    except ValueError:
        return "an unknown time"


def _writer(path: Path) -> int | None:
    """Return the process that holds the journal's lock; None when the kernel does not say, or not to us."""
    try:
        inode, real = str(path.stat().st_ino), str(path.resolve())
        for line in Path("/proc/locks").read_text().splitlines():
            words = line.split()
            if "FLOCK" in words and len(words) > 5 and words[5].rpartition(":")[2] == inode:
                pid = int(words[4])
                if any(str(link.resolve()) == real for link in Path(f"/proc/{pid}/fd").iterdir()):
                    return pid
    except (OSError, ValueError):
        return None
    return None


# ---- a run that was not put back ----------------------------------------------------------------------


def to_put_back(folder: Path) -> list[str]:
    """Return what is to be done about a run that is not restored: `drill recover`, and the commands to type."""
    events = journal.read(folder / "journal.jsonl")
    lines = [f"NOT RESTORED: run `{_command(events, 'recover', runfolder.run_id(folder))}`, and look at what it says"]
    return lines + [f"NOT RESTORED, by hand, if that cannot: {command}" for command in _by_hand(events)]


def _by_hand(events: list[Event]) -> list[str]:
    """Return the commands of all receipts whose revert did not end clean."""
    ends = {str(e.data.get("receipt")): e.data for e in events if e.event == "revert.end"}
    commands: list[str] = []
    for receipt in (e.data.get("receipt") for e in events if e.event == "receipt"):
        if not isinstance(receipt, dict):
            continue
        end = ends.get(str(receipt.get("id")), {})
        if end.get("restored") != Restored.CLEAN:
            told = end.get("manual")
            commands += map(str, told if isinstance(told, list) and told else _undo(receipt))
    return commands


def _undo(receipt: Json) -> list[str]:
    steps = receipt.get("undo")
    try:
        return [receipts.manual(step, str(receipt.get("host", ""))) for step in steps or ()]
    except (AttributeError, KeyError, TypeError):  # a damaged receipt names no command
        return []
