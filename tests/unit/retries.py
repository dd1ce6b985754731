"""Turn a healthy run into one of a cut link, of a storm, or of late primaries, for the checks on retries."""

from __future__ import annotations

from typing import Any

from tests.unit import runs
from tests.unit.runs import FAULT, HIT, RECOVERY, RUN, SERVICE_S, VICTIM, Json, Run

OFF = RECOVERY - 0.5


def quiet_service(rate: float = 20.0) -> Run:
    """Return a run in which every arrival was one attempt, answered in full."""
    run = runs.healthy(rate)
    run.requests = [runs.record(r["arrival"], r["intended"]) for r in run.requests]
    replicas = ("replica-0", VICTIM, "replica-2")
    run.ledger = [runs.attempt(r["arrival"], r["intended"], replicas[r["arrival"] % 3]) for r in run.requests]
    return run


def held(run: Run, **receipt: Any) -> Run:
    """Let the fault stay on until the end of its phase."""
    for proof in run.of("proof.on"):
        proof["held"] = True
    run.drop("proof.off")
    run.drop("revert.end")
    proof = {"receipt": "r1", "fault": "pod-kill", "held": True, "effect": True, "ok": True, "bystanders_ok": True}
    run.tell(OFF - 0.1, "revert.end", receipt="r1", restored="clean", manual=[], by="driver")
    run.tell(OFF, "proof.off", evidence=runs.SEEN, **proof)
    run.of("receipt")[0]["receipt"].update(receipt)
    return run


def cut_link(run: Run, mode: str = "reject", *, swallowed: int = 12, checks_per_s: float = 1.0) -> Run:
    """Cut the link to the victim: the rule counts attempts of the first two seconds, and health checks all along.

    The ledger, which lies behind the link, has nothing of them; the router asks another replica.
    """
    held(run, undo=[{"do": "unrule"}], params={"mode": mode})
    for second in range(int(OFF - HIT) + 2):
        attempts = min(swallowed, swallowed * second // 2)
        new = attempts + int(checks_per_s * second)
        sample = {"mono": HIT + second, "time": "", "ok": True, "probe": "fault", "subject": "r1"}
        run.samples.append(sample | {"values": {"new": new, "packets": 2 * new}})
    for r, line in zip(run.requests, run.ledger, strict=True):
        if line["replica"] == VICTIM and HIT <= r["intended"] < OFF:
            line["replica"] = "replica-0"
    return run


def again(run: Run, records: list[Json], times: int, *, by_client: bool = False, last: str = "ok") -> None:
    """Have each of these arrivals tried so many times more at a primary, by the router or by the client."""
    for r in records:
        for n in range(1, times + 1):
            attempt = n if by_client else 0
            end = r["intended"] + 0.01 * n + 0.04
            stamps = {"first_byte": end, "last_byte": end, "end": end}
            failed = {"status": 503, "id": f"{RUN}-{r['arrival']}-{attempt}", **stamps}
            run.ledger.append(runs.attempt(r["arrival"], r["intended"] + 0.01 * n, "replica-2", **failed))
        if by_client:
            whole = r["attempts"][0]
            broken = {"outcome": "error", "error": "http_5xx", "status": 503, "first_token": None}
            tries = [
                whole | broken | {"attempt": n, "id": f"{RUN}-{r['arrival']}-{n}", "end": r["intended"] + 0.05}
                for n in range(times)
            ]
            r["attempts"] = [*tries, whole | {"attempt": times, "id": f"{RUN}-{r['arrival']}-{times}"}]
        if last != "ok":
            run.fail([r], last, "http_5xx" if last == "error" else None)
            r["attempts"][-1] |= {"outcome": last, "error": r["error"], "first_token": None}


def degrade(records: list[Json], *, ttft_s: float = 0.45, cached: bool = False) -> None:
    """Have these arrivals answered by the smaller model, or from the cache."""
    for r in records:
        first, last = r["intended"] + ttft_s, r["intended"] + ttft_s + SERVICE_S
        stamps = {"first_token": first, "last_token": last, "end": last}
        r |= stamps | {"outcome": "degraded", "model": "lab-small", "cached": cached}
        r["attempts"][-1] |= {"outcome": "degraded", "first_token": first, "end": last}


def late(records: list[Json], ttft_s: float = 5.1) -> None:
    """Have these arrivals wait for their full answer."""
    for r in records:
        first, last = r["intended"] + ttft_s, r["intended"] + ttft_s + SERVICE_S
        r |= {"first_token": first, "last_token": last, "end": last}
        r["attempts"][-1] |= {"first_token": first, "end": last}


def in_fault(run: Run, begin: float = HIT, end: float = RECOVERY) -> list[Json]:
    """Return the records of arrivals begun in the fault."""
    assert begin >= FAULT
    return run.between(begin, end)
