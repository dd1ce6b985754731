"""Plan → Journal: the only module with control flow over time.

lock → preflight → gate → load on → warm-up → baseline → [receipt → timer → deed → proof] → hold →
revert → proof it is off → recovery (load unchanged) → load off → what is left.

Whatever happens after a receipt is written, the revert follows: success, failure, exception, guard, signal.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence

from drills import beside, followed, gate, headroom, lifetime, lock, output, victims
from drills.active import ActiveFaults
from drills.clock import rng
from drills.errors import DrillError, Refused, Stopped, Unreachable
from drills.guards import Guards
from drills.journal import Journal
from drills.live import worth_saying
from drills.load.process import LoadProcess
from drills.model import Context, Fault, Json, Left, Phase, Replica, Restored
from drills.probes.sampler import Sampler
from drills.setting import Ended, Setting
from drills.surroundings import Surroundings
from drills.tenure import ChangedByOthers, Tenure
from drills.watch import Watch

TICK_S = 0.1
SILENT_S = 15.0  # without a heartbeat, one a second: then nobody knows what the load does
ASK_INTERVAL_S = 1.0  # between two looks at what is asked of the run, and at its timers
ASK_AGAIN_S = 5.0  # after one that got no answer
WATCH_S = 20.0  # of good service before the recovery may end early
DRAIN_S = 8.0


class Drill:
    """One run of one plan against one target."""

    def __init__(self, s: Setting) -> None:
        self.s, self.plan, self.target, self.clock, self.stop = s, s.plan, s.target, s.clock, s.stop
        self.run = str(s.plan["run"])
        self.journal = Journal(s.folder / "journal.jsonl")
        self.watch = Watch(s.target, self.tell, s.plan)
        self.sampler = Sampler(s.folder / "samples.ndjson", self._probe_broke)
        # Written down as they come, however long the target keeps the driver waiting.
        self.load = LoadProcess(on_beat=lambda beat: self.sampler.write("load", "generator", beat))
        self.guards = Guards(s.plan["experiment"]["guards"])
        context = Context(self.tell, self._sleep, s.clock.mono, self._stopping)
        self.active = ActiveFaults(
            self.run, s.target, s.clock, tell=self.tell, note=self.note, context=context, sample=self.sampler.write
        )
        self.beside = ActiveFaults(
            self.run, s.target, s.clock, tell=beside.telling(self.tell), note=beside.telling(self.note), context=context
        )
        self.around = Surroundings(
            s.plan, s.target, s.clock, tell=self.tell, note=self.note, ours=lambda: self.active.receipts
        )
        lives_s, self.deeds_s = (count(s.plan, s.faults) for count in (lifetime.run_s, lifetime.deeds_s))
        calm = Context(self.tell, s.clock.sleep, s.clock.mono, lambda: self.stop.reason is not None)
        self.proxies = followed.Followed(self.run, s.target, s.clock, note=self.note, context=calm, lasts_s=lives_s)
        mine = lock.mine(self.run, s.folder, lives_s, os.getpid(), s.clock)
        self.tenure = Tenure(s.target, mine, s.clock, self.note)
        self.broken: Exception | None = None
        self.ending: Exception | None = None  # noticed while a fault was waiting for something
        self.next_ask_mono = 0.0
        self.load_began_mono = 0.0

    def tell(self, event: str, data: Json) -> None:
        """Write one event down; it is on disk when this returns."""
        self.journal.tell(event, data)
        if event in ("inject.begin", "inject.end", "revert.begin"):
            self.watch.hands_off = event == "inject.begin"
        if text := worth_saying(event, data):
            self.s.view.say(text)

    def note(self, event: str, data: Json) -> None:
        """Write one event down if that is possible; what follows must happen either way."""
        try:
            self.tell(event, data)
        except Exception as error:
            output.say(f"journal: {event} not written: {error}", to=sys.stderr)

    # ---- the whole of it ---------------------------------------------------------------------------------

    def go(self, header: Json) -> Ended:
        """Run to the end. Raises our own bugs, and Refused when the journal cannot be begun."""
        try:
            self.tell("header", header)
        except DrillError as error:
            raise Refused(f"{error}; nothing was touched") from None
        ended = Ended("crashed", "the run did not reach its end")
        try:
            self.tenure.begin()
            try:
                self.tell("lock.taken", {"by": self.run})
                ended = self._locked()
            finally:
                self._let_go()
        except Refused as error:
            ended = Ended("refused", str(error))
        except Exception as bug:
            ended = self._ended("crashed", f"{type(bug).__name__}: {bug}")
            raise
        finally:
            self.note("end", {"status": ended.status, "reason": ended.reason})
            self.sampler.close()
            self.journal.close()
        return ended

    def _locked(self) -> Ended:
        try:
            chosen = self._before()
        except Stopped as error:
            return Ended("stopped", self._stopped(error))
        status, reason = "completed", ""
        try:
            chosen = self.proxies.put_up(chosen, say=self.s.view.say)
            self._start_load()
            self._phases(chosen)
        except ChangedByOthers as error:
            status, reason = "changed", str(error)
        except Refused as error:  # at the last look before the deed
            status, reason = ("broken" if self.active.hit_mono else "refused"), str(error)
        except Stopped as error:
            status, reason = self._stopped_by(error if self.stop.reason else self.ending or error)
        except (DrillError, OSError) as error:
            status, reason = "broken", str(error)
        finally:
            self.active.revert_all()
            self._show(None)
            self._finish()
            self.beside.revert_all()
            self.around.end(stopping=lambda: self.stop.reason is not None, say=self.s.view.say)
        return self._ended(status, reason)

    def _ended(self, status: str, reason: str) -> Ended:
        return Ended(
            status, reason, self._restored(), (*self.active.manual, *self.beside.manual, *self.proxies.active.manual)
        )

    def _restored(self) -> Restored:
        return beside.worst(self.active.restored, self.beside.restored, self.proxies.active.restored)

    def _stopped_by(self, error: Exception) -> tuple[str, str]:
        """Return how the run ends when a fault was told to stop, be it for what is no wish of anybody."""
        if isinstance(error, Stopped):
            return "stopped", self._stopped(error)
        return "changed" if isinstance(error, ChangedByOthers) else "broken", str(error)

    def _stopped(self, error: Exception) -> str:
        """Return why the run was stopped; a signal is journalled wherever it was noticed."""
        self.s.view.say(f"{self.stop.reason or error}: putting everything back")
        if self.stop.reason is None:
            return str(error)
        self.note("signal", {"signal": self.stop.reason})
        return self.stop.reason if str(error) == self.stop.reason else f"{self.stop.reason}: {error}"

    # ---- before anything is touched ----------------------------------------------------------------------

    def _let_go(self) -> None:
        """Release the lock; what is not put back keeps it."""
        try:
            if self.tenure.end(release=self._restored() is Restored.CLEAN):
                self.note("lock.released", {"by": self.run})
        except Refused as error:  # how the run ended stays what it was; the next one takes over the lock
            self.s.view.say(f"lock not released: {error}")
            self.note("unreachable", {"asked": "release of the lock", "reason": str(error)})

    def _before(self) -> list[list[Replica]]:
        """Preflight and gate; returns the victims of each fault. Raises Refused or Stopped."""
        self.watch.skip_past()
        try:
            chosen, facts = self._preflight()
        except Refused as error:
            self.tell("preflight", {"ok": False, "refusals": [str(error)], "facts": []})
            raise
        self.tell("preflight", {"ok": True, "refusals": [], "facts": facts})
        self.s.view.say(f"preflight ok: {'; '.join(facts)}")
        found = gate.steady_state(self.target, self.clock, stopping=lambda: self.stop.reason is not None)
        self.tell("gate", found)
        if self.stop.reason:
            raise Stopped("before anything was touched")
        if not found["ok"]:
            raise Refused(f"gate: not in steady state: {found['reason']}; nothing was touched")
        self.s.view.say(f"gate ok: {len(found['replicas'])} replicas answer completions")
        self.around.begin(lifetime.phases_s(self.plan) + self.deeds_s + WATCH_S + DRAIN_S)
        return chosen

    def _preflight(self) -> tuple[list[list[Replica]], list[str]]:
        replicas = self.target.replicas()
        refusals = gate.refusals(self.plan, self.target, replicas, self.s.faults, self.clock)
        chosen = []
        for number, fault in enumerate(self.s.faults):
            picked = self._pick(number, fault, replicas)
            if not refusals:
                picked = victims.with_processes(self.target, fault, picked, self.tell)
                refusals += fault.preflight(self.target, picked)
            chosen.append(picked)
        refusals += [] if refusals else self.proxies.preflight(self.s.faults, replicas)
        if refusals:
            raise Refused("; ".join(refusals))
        pairs = zip(self.s.faults, chosen, strict=True)
        return chosen, [f"victim of {f.name}: {', '.join(v.name for v in picked)}" for f, picked in pairs]

    def _pick(self, number: int, fault: Fault, replicas: Sequence[Replica]) -> list[Replica]:
        limits = self.plan["target"]["limits"]
        if victims.is_route(fault):
            return victims.all_of_route(replicas, allowed=limits["allow_route_faults"], protect=limits["protect"])
        return victims.choose(
            victims.off_own_node(fault, self.target, replicas),
            self.plan["experiment"]["faults"][number]["params"]["victims"],
            rng(self.plan["seed"], f"victims-{number}"),
            max_victims=limits["max_victims"],
            min_healthy=limits["min_healthy"],
            protect=limits["protect"],
        )

    # ---- the phases --------------------------------------------------------------------------------------

    def _start_load(self) -> None:
        self.sampler.start(
            [*self.watch.jobs(), self.active.job(), *self.around.jobs(), *self.proxies.jobs(self.watch.now)]
        )
        load_plan = self.s.folder / "load.json"
        load_plan.write_text(json.dumps(self.s.load_plan, indent=2, sort_keys=True) + "\n")
        self.load_began_mono = self.clock.mono()
        self.load.start(load_plan, self.s.folder / "load.log")
        self.tell("load.started", {"pid": self.load.pid})

    def _phases(self, chosen: list[list[Replica]]) -> None:
        planned = self.plan["phases"]
        for phase in (Phase.WARMUP, Phase.BASELINE):
            self._phase(phase, planned[f"{phase}_s"])
            self._hold(planned[f"{phase}_s"])
            self._undisturbed()
        self._phase(Phase.FAULT, planned["fault_s"])
        fault_s = planned["fault_s"] + self.deeds_s  # one that is held waits for the deeds of the others
        everybody = [victim for picked in chosen for victim in picked]
        for number, one in enumerate(beside.wanted(self.plan, self.target, everybody)):
            lasts_s = fault_s + planned["recovery_s"] + WATCH_S
            self.beside.put_on(number, one, everybody, fault_s=lasts_s)
        began = self.clock.mono()
        for number, fault in enumerate(self.s.faults):
            self._enough_left(fault, chosen[number])
            self.active.put_on(number, fault, chosen[number], fault_s=fault_s)
        self._hold(planned["fault_s"] - (self.clock.mono() - began))
        self.active.revert_all()
        self._phase(Phase.RECOVERY, planned["recovery_s"])
        self._watch_recovery(began)

    def _phase(self, phase: Phase, planned_s: float) -> None:
        self.tell("phase", {"phase": phase.value, "planned_s": planned_s})
        if phase is not Phase.RECOVERY:  # which says itself how much of it is left
            self.s.view.phase(phase.value, planned_s)

    def _hold(self, seconds: float, until: Callable[[], bool] = lambda: False) -> None:
        """Let time pass, looking out for everything that ends a run early."""
        deadline = self.clock.mono() + seconds
        while (left := deadline - self.clock.mono()) > 0 and not until():
            self._look_out()
            self._show(left)
            self.stop.noticed.wait(min(TICK_S, left))

    def _sleep(self, seconds: float) -> None:
        self.clock.sleep(seconds)
        self._show(None)

    def _stopping(self) -> bool:
        """Whether the run must end: faults ask while they wait, and so all that ends a run is looked at then too."""
        try:
            self._look_out()
        except Exception as error:
            self.ending = self.ending or error
        return self.ending is not None

    def _look_out(self) -> None:
        """Raise what ends the run: a signal, the stop button, a guard, the load's or a probe's death."""
        if self.stop.reason:
            raise Stopped(self.stop.reason)
        if self.ending is not None:
            raise self.ending
        if self.broken is not None:
            raise self.broken
        self.tenure.look()
        if self.clock.mono() >= self.next_ask_mono:
            self._ask_target()
        if not self.load.alive():
            raise DrillError(f"the load process ended early: {self.load.death() or 'no reason given'}")
        if (silent_s := self.load.silent_s()) > SILENT_S:
            raise DrillError(f"the load process has not been heard for {silent_s:.0f} s")
        if tripped := self.guards.tripped(self.load.beats(), self.watch.ready()[0]):
            self.tell("guard", tripped)
            raise Stopped(f"guard {tripped['guard']}: {tripped['value']} against {tripped['bound']}")
        self.around.look_out()

    def _ask_target(self) -> None:
        """Ask whether somebody wants the run to end, and whether the timers of its faults still watch."""
        self.next_ask_mono = self.clock.mono() + ASK_INTERVAL_S
        try:
            who = self.target.custody.asked_to_stop(self.run)
            lost = self.active.lost_timer() or self.proxies.active.lost_timer()
        except Unreachable as error:  # the timers need nobody; what they undo is undone at their deadline
            self.next_ask_mono = self.clock.mono() + ASK_AGAIN_S
            self.tell("unreachable", {"asked": "stop, timers", "reason": str(error)})
            return
        if who:
            self.tell("stop", {"by": who, "how": "drill stop"})
            raise Stopped(f"drill stop, by {who}")
        if lost:
            self.tell("timer.lost", {"reason": lost})
            raise DrillError(f"{lost}, so the fault was put back at once")

    def _undisturbed(self) -> None:
        """Before the fault nobody else may restart replicas: we could not tell their doing from ours."""
        scaled = self.around.scaled() if self.watch.disturbed else False  # then new ones are nobody's doing
        if disturbed := [e for e in self.watch.disturbed if not scaled or e["replica"] in self.watch.first]:
            other = disturbed[0]
            self.tell("changed_by_others", other)
            raise ChangedByOthers(f"{other['replica']}: {other['change']} before the fault, not by this run")

    def _enough_left(self, fault: Fault, picked: Sequence[Replica]) -> None:
        if victims.is_route(fault):
            return
        unknown = fault.effect and self.target.capacity_per_replica is None
        if unknown and (why := headroom.measured(*self.watch.engines(), picked)):
            raise Refused(f"{fault.name}: {why}; nothing was touched")
        ready, least = self.watch.ready()[0], self.plan["target"]["limits"]["min_healthy"]
        if fault.effect and ready - len(picked) < least:
            raise Refused(
                f"{fault.name}: {ready} replicas are ready now; without the victim fewer than {least} would be"
            )

    def _watch_recovery(self, fault_began: float) -> None:
        """Keep the load on until the service was good for a while, or the planned time is over."""
        began, planned = self.clock.mono(), self.plan["phases"]
        from_injection = planned["recovery_from"] == "injection"
        zero = (self.active.hit_mono or fault_began) if from_injection else began

        complete: float | None = None  # since when all replicas serve; one that is back only now is watched too

        def settled() -> bool:
            nonlocal complete
            now = self.clock.mono()
            complete = (complete or now) if self.watch.all_serve_again() else None
            if not planned["recovery_auto"] or complete is None or not self.watch.quiet():
                return False
            return now - max(complete, self._bad_mono()) >= WATCH_S

        left_s = max(zero + planned["recovery_s"] - began, WATCH_S)
        self.s.view.phase(Phase.RECOVERY.value, left_s)
        self._hold(left_s, until=settled)
        if settled():
            self.s.view.say(f"recovery: good for {WATCH_S:.0f} s, nothing fires: ended")

    def _bad_mono(self) -> float:
        """Return when a request last ended badly; long ago if none did."""
        return max((beat["mono"] for beat in self.load.beats() if beat["second"]["bad"]), default=0.0)

    def _show(self, left_s: float | None) -> None:
        ready, expected = self.watch.ready()
        beat = self.load.latest
        now = {"left_s": left_s, "beat": beat, "ready": ready, "expected": expected, "fault": self.active.names()}
        self.s.view.tick(now)

    # ---- the end -----------------------------------------------------------------------------------------

    def _finish(self) -> None:
        """Load off, ledger collected, a last look at the replicas. One that fails does not stop the others."""
        for step in (self._load_off, self._collect_ledger, self._proxies_off, self._look_at_what_is_left):
            try:
                step()
            except Exception as error:
                self.note("broken", {"step": step.__name__.strip("_"), "error": f"{type(error).__name__}: {error}"})

    def _load_off(self) -> None:
        self.note("load.stopping", {})
        final = self.load.stop(0.5 if self.stop.count > 1 else DRAIN_S)
        said = {k: v for k, v in (final or {}).items() if k != "type"}
        self.note("load.stopped", said | {"died": final is None, "reason": self.load.death() or ""})
        self.sampler.close()

    def _collect_ledger(self) -> None:
        if (said := followed.collect(self.target, self.load_began_mono, self.s.folder / "ledger.ndjson")) is not None:
            self.note("collected", said)

    def _proxies_off(self) -> None:
        self.proxies.end(self.watch.now())

    def _look_at_what_is_left(self) -> None:
        replicas = gate.look_at_replicas(self.target)
        good = sum(r["ok"] for r in replicas if r["role"] == "primary")
        left = Left.HEALTHY if good >= self.target.expected_replicas else Left.DEGRADED
        self.note("left", {"left": left.value, "replicas": replicas})

    def _probe_broke(self, bug: BaseException) -> None:
        self.broken = bug if isinstance(bug, Exception) else RuntimeError(repr(bug))
