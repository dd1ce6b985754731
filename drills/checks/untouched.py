"""untouched: nobody but the victims was restarted or changed."""

from __future__ import annotations

from drills.checks.base import NO_INJECTION, Check, several
from drills.evidence import Evidence, at
from drills.lang import t
from drills.model import CheckResult, Event, Verdict
from drills.params import Params


class UntouchedParams(Params):
    """None."""


class Untouched(Check[UntouchedParams]):
    """By the replicas' own events, and by the fault's proof that bystanders are the same processes."""

    name = "untouched"
    Params = UntouchedParams

    @classmethod
    def judge(cls, ev: Evidence, params: UntouchedParams) -> CheckResult:  # noqa: ARG003
        """Look for a bystander that went, came, or is another process than before."""
        hit = ev.t_inject
        if hit is None:
            return cls.unclear(t(NO_INJECTION))
        others = [e for e in ev.of("replica") if e.data.get("replica") not in ev.victims and hit <= at(e) <= ev.ended]
        life = [e for e in others if not came_by_scaling(ev, e)]
        added = sorted({str(e.data["replica"]) for e in others if came_by_scaling(ev, e)})
        moved = [e for e in life if e.data.get("change") in ("gone", "started")]
        proofs = [e for e in ev.of("proof.on", "proof.off") if e.data.get("bystanders_ok") is not None]
        denied = [e for e in proofs if not e.data["bystanders_ok"]]
        notready = sorted({str(e.data["replica"]) for e in life if e.data.get("change") == "notready"})
        detail = {"not_ready_for_a_while": notready, "bystanders": bystanders(ev), "came_by_scaling": added}
        row = {"unit": "count", "n": len(bystanders(ev)), "bound": 0, "detail": detail}
        if moved or denied:
            who = several(sorted({str(e.data["replica"]) for e in moved})) or t("a bystander")
            events = tuple(e.n for e in [*moved, *denied])
            count = len({e.data["replica"] for e in moved}) or 1
            told = t("{who} was restarted or changed; none may be", who=who)
            return cls.result(Verdict.FAIL, told, value=count, events=events, **row)
        if not bystanders(ev):
            return cls.unclear(t("there is no replica besides the victims"), **row)
        if not any(e.event == "proof.off" for e in proofs):
            return cls.unclear(t("nobody looked at the other replicas after the fault"), **row)
        same, events = t("all others are the same processes as before"), tuple(e.n for e in proofs)
        return cls.result(Verdict.PASS, same, value=0, events=events, **row)


def came_by_scaling(ev: Evidence, event: Event) -> bool:
    """Whether it is of a replica that was not there before, while an autoscaler had changed their number."""
    return bool(ev.of("scaled")) and str(event.data.get("replica")) not in {*bystanders(ev), *ev.victims}


def bystanders(ev: Evidence) -> list[str]:
    """Return the names of the replicas that are not victims, as the gate or the receipts saw them."""
    gate = ev.last("gate")
    seen = {str(r["name"]) for r in (gate.data.get("replicas") or () if gate else ())}
    seen |= {str(b["name"]) for receipt in ev.receipts for b in (receipt.get("prior") or {}).get("bystanders", ())}
    return sorted(seen - set(ev.victims))
