"""The ledger proxies of one run, from before its load to after it; a replica that is replaced meanwhile is followed."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, cast

from drills import beside
from drills.active import DEADLINE_SLACK_S, ActiveFaults
from drills.clock import Clock
from drills.errors import DrillError
from drills.model import BringsProxies, Context, Fault, HasLedger, Json, NodeAccess, Replica, Target
from drills.probes.sampler import Job
from drills.proxies import LedgerProxies

FOLLOW_S: Final = 0.5
#: A timer must not outlast the helper it runs in, which is made for as long as the run may take.
SLACK_S: Final = 2 * DEADLINE_SLACK_S
#: So often it is tried to put a proxy in front of one replica.
TRIES: Final = 3


class Followed:
    """The proxies of one run, from before its load to after it."""

    def __init__(
        self,
        run: str,
        target: Target,
        clock: Clock,
        *,
        note: Callable[[str, Json], None],
        context: Context,
        lasts_s: float,
    ) -> None:
        self.target, self.tell, self._until_mono = target, context.tell, clock.mono() + lasts_s - SLACK_S
        told, noted = beside.telling(context.tell), beside.telling(note)
        self.active = ActiveFaults(run, target, clock, tell=told, note=noted, context=context)
        self.wanted = False
        self._number = 0
        self._lock = threading.Lock()  # whoever follows runs on a thread of its own
        self._over = False
        self._tries: dict[str, int] = {}
        self._ready_mono: dict[str, float] = {}  # by uid: since when it may have served without a proxy

    def preflight(self, faults: Sequence[Fault], replicas: Sequence[Replica]) -> list[str]:
        """Say why they cannot be put up, where the plan wants them; read only but for what reaches the nodes."""
        self.wanted = isinstance(self.target, BringsProxies) and self.target.wants_proxies(faults)
        return (
            LedgerProxies(LedgerProxies.Params(), "").preflight(self.target, self._near(replicas))
            if self.wanted
            else []
        )

    def put_up(self, chosen: list[list[Replica]], *, say: Callable[[str], None]) -> list[list[Replica]]:
        """Put one in front of each replica, where they are wanted; returns the victims as they are seen from then on.

        Raises DrillError.
        """
        if not self.wanted:
            return chosen
        near = self._near(self.target.replicas())
        self._put(near)
        say(f"ledger proxies stand in front of {len(near)} replicas")
        now = {replica.uid: replica for replica in near}  # with their processes, now that their nodes are reached
        return [[now.get(victim.uid, victim) for victim in picked] for picked in chosen]

    def jobs(self, now: Callable[[], Sequence[Replica]]) -> list[Job]:
        """Return what follows replicas that are replaced; `now` are those of the last look."""
        return [Job("proxies", self.target.name, FOLLOW_S, lambda: self._follow(now))] if self.wanted else []

    def _follow(self, now: Callable[[], Sequence[Replica]]) -> None:
        for replica in cast("BringsProxies", self.target).without_proxy(now()):
            if self._tries.get(replica.uid, 0) < TRIES:
                with self._lock:
                    if self._over:
                        return
                    self._cover(replica, now)

    def _cover(self, replica: Replica, now: Callable[[], Sequence[Replica]]) -> None:
        """Put a proxy in front of a new replica. When that fails the run goes on; it says what was not seen.

        What stands of it then goes at once: half a redirect is a fault, and would keep the next try away.
        """
        began, laid = self.active.clock.mono(), len(self.active.receipts)
        try:
            if near := self._near([replica]):
                self._put(near)
        except DrillError as error:
            if len(self.active.receipts) > laid:  # before that it may only be too new
                self.active.revert_all(since=laid)
                self._tries[replica.uid] = self._tries.get(replica.uid, 0) + 1
                self.tell("ledger.late", {"replica": replica.name, "uid": replica.uid, "reason": str(error)})
        if any(one.uid == replica.uid and one.ready for one in now()):
            self._ready_mono.setdefault(replica.uid, began)
        if not cast("BringsProxies", self.target).without_proxy([replica]):
            self._say_gap(replica, self.active.clock.mono())

    def _near(self, replicas: Sequence[Replica]) -> list[Replica]:
        return cast("NodeAccess", self.target).reach(replicas, self.tell)

    def _put(self, replicas: Sequence[Replica]) -> None:
        number, self._number = self._number, self._number + 1
        made = LedgerProxies(LedgerProxies.Params(), self.target.kind)
        left_s = max(0.0, self._until_mono - self.active.clock.mono())
        self.active.put_on(number, made, replicas, fault_s=left_s)

    def _say_gap(self, replica: Replica, until_mono: float | None) -> None:
        """Say since when and until when a replica may have served without being seen."""
        since = self._ready_mono.pop(replica.uid, None)
        if since is not None:
            self.tell("ledger.gap", {"replica": replica.name, "since_mono": since, "until_mono": until_mono})

    def end(self, now: Sequence[Replica]) -> None:
        """Say who was never covered, and take all of them away; one that is going up is waited for. Never raises."""
        with self._lock:
            self._over = True
            for replica in now if self.wanted else ():
                self._say_gap(replica, None)
            self.active.revert_all()


def collect(target: Target, since_mono: float, file: Path) -> Json | None:
    """Write the ledger of the attempts since then; returns what there is to say of it, None when there is none."""
    attempts = target.collect_ledger(since_mono) if isinstance(target, HasLedger) else None
    if not isinstance(target, HasLedger) or attempts is None:
        return None
    with file.open("w") as out:
        out.writelines(json.dumps(attempt) + "\n" for attempt in attempts)
    return {"file": file.name, "lines": len(attempts), "clock_error_s": round(target.clock_error_s, 6)}
