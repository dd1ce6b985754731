"""A month as `drill monthly` leaves it: six runs that passed, failed, and did not come to their end, with true shapes.

Small: six arrivals a second are enough for a p99 and for the windows of the recovery band.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from drills import verdict
from tests.unit import runs
from tests.unit.runs import FAULT, HIT, MOVED, RECOVERY, START, Json, Run

RATE = 6.0
CHECKS: list[Json] = [
    {"check": "failover", "params": {"within": 5.0}},
    {"check": "latency", "params": {"metric": "ttft", "quantile": 0.99, "cohort": "fault", "max": "sla"}},
    {"check": "availability", "params": {"cohort": "fault", "min": "sla"}},
    {"check": "replica_restart", "params": {"within": 60.0}},
    {"check": "alert", "params": {"name": "VllmReplicaDown", "within": 20.0, "resolves_within": 40.0}},
    {"check": "streams", "params": {"max_cut": "in_flight_on_victim"}},
    {"check": "recovery", "params": {"within": 40.0}},
    {"check": "metrics", "params": {"preset": "serving-minimum"}},
    {"check": "accounted", "params": {}},
]


def passed() -> Run:
    """Return a run in which everything went as it should."""
    return runs.healthy(RATE)


def failed() -> Run:
    """Return a run in which a fifth of what was begun in the fault got no answer."""
    run = passed()
    run.fail(run.between(MOVED, RECOVERY)[::5])
    run.recount()
    return run


def inconclusive() -> Run:
    """Return a run whose generator was too busy to be trusted."""
    run = passed()
    for sample in run.samples:
        if sample["probe"] == "load":
            sample["values"]["cpu"] = 0.95
    for data in run.of("load.stopped"):
        data["cpu_max"] = 0.95
    return run


def stopped() -> Run:
    """Return a run that somebody stopped in its baseline."""
    run = runs.quiet(RATE)
    run.tell(START + 65, "stop", by="file", how="drill stop")
    run.tell(START + 66, "load.stopping")
    run.tell(START + 67, "load.stopped", errors={}, lag_p99_ms=1.0, cpu_max=0.3, died=False, reason="")
    run.tell(START + 68, "left", left="healthy", replicas=[])
    run.tell(START + 69, "end", status="stopped", reason="drill stop, by ada")
    run.requests = run.between(START, START + 64)
    run.recount()
    return run


def dirty() -> Run:
    """Return a run that could not put everything back."""
    run = passed()
    for data in run.of("revert.end"):
        data |= {"restored": "dirty", "manual": ["iptables -D INPUT -m comment --comment drill"]}
    for data in run.of("left"):
        data |= {"left": "degraded"}
    return run


def cut_short() -> Run:
    """Return a run whose driver was killed in the middle of the fault."""
    run = passed()
    run.events = [event for event in run.events if event["mono"] < HIT + 0.15]
    run.requests = run.between(START, FAULT + 20)
    return run


def store(reports: Path, stamp: str, drill: str, run: Run, *, ident: str, judge: bool = True, **plan: object) -> Path:
    """Write a run under `runs`, judged, and return its folder; `plan` replaces values of the plan, `target__name=…`."""
    run.plan["experiment"] |= {"name": drill, "checks": CHECKS}
    for way, value in plan.items():
        *parts, last = way.split("__")
        place = run.plan
        for part in parts:
            place = place[part]
        place[last] = value
    folder = run.write(reports / "runs" / f"{stamp}-{drill}-{ident}")
    for path in folder.iterdir():
        path.write_text(path.read_text().replace(runs.RUN, ident))
    if judge:
        verdict.write(folder)
        (folder / "postmortem.md").write_text(f"# {drill}\n")
    return folder


def tear(folder: Path) -> None:
    """Cut the last line of what was being written in half, as SIGKILL does."""
    for name in ("journal.jsonl", "requests.ndjson", "samples.ndjson"):
        path = folder / name
        path.write_text(path.read_text() + '{"n": 99, "time": "2026-')


#: stamp, drill, how it went, id
SIX: tuple[tuple[str, str, Callable[[], Run], str], ...] = (
    ("20261101T020000Z", "upstream-delay", passed, "00000001"),
    ("20261101T021000Z", "packet-loss", failed, "00000002"),
    ("20261101T022000Z", "pod-kill", inconclusive, "00000003"),
    ("20261108T020000Z", "gpu-reset", stopped, "00000004"),
    ("20261115T020000Z", "packet-loss", dirty, "00000005"),
    ("20261122T020000Z", "pod-kill", cut_short, "00000006"),
)


def write(reports: Path) -> Path:
    """Write the month of six runs and what `drill monthly` was asked for; returns the folder of the reports."""
    for stamp, drill, made, ident in SIX:
        folder = store(reports, stamp, drill, made(), ident=ident, judge=made is not cut_short)
        if made is cut_short:
            tear(folder)
    asked(reports, "2026-11", "20261101T020000Z", ["upstream-delay", "packet-loss", "pod-kill", "gpu-reset", "noop"])
    return reports


def asked(reports: Path, month: str, stamp: str, drills: list[str], target: str = "lab") -> None:
    """Write what one `drill monthly` was asked for, as it stands when nothing has been noted of any drill."""
    began = f"{stamp[:4]}-{stamp[4:6]}-{stamp[6:8]}T{stamp[9:11]}:{stamp[11:13]}:{stamp[13:15]}.000000Z"
    rows = [{"drill": one, "run": None, "exit_code": None, "why": "not begun: what was before it"} for one in drills]
    folder = reports / month
    folder.mkdir(parents=True, exist_ok=True)
    content = {"began": began, "target": target, "drills": rows, "exit_code": None}
    (folder / f"{stamp}-{target}.json").write_text(json.dumps(content))


def copies(place: Path, source: Path, number: int) -> Iterator[Path]:
    """Yield copies of a folder of reports, for tests that spoil one."""
    for n in range(number):
        yield Path(shutil.copytree(source, place / f"copy-{n}"))
