"""The load process: `python -m drills.load.generator LOAD.json`.

A plain Locust user that draws arrivals ahead and gives each one a greenlet, so that no arrival waits for an
answer. Every arrival drawn ends as exactly one record and one Locust request event, also when the process
is told to stop. See `drills.load.process` for the driver's side.
"""

from __future__ import annotations

# First: it replaces parts of the standard library, and whatever was imported before keeps the old parts.
import locust

# isort: split
import contextlib
import gc
import logging
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import gevent
from gevent.event import Event
from locust.env import Environment
from locust.exception import StopUser

from drills.errors import EXIT_BUG, EXIT_USAGE, DrillError
from drills.load.arrivals import first_pauses, offsets
from drills.load.client import Call, Client
from drills.load.figures import Figures
from drills.load.link import Link
from drills.load.plan import LoadPlan
from drills.load.record import Record, Writer
from drills.load.workload import Chat
from drills.model import GOOD

_BEAT_S = 1.0
_DRAIN_STEP_S = 0.02
#: A user of the closed loop pauses at least this long after a failure, or it would hammer a dead service.
_PAUSE_AFTER_FAILURE_S = 1.0

log = logging.getLogger("drills.load")


class NotServed(Exception):
    """What Locust's statistics show for an arrival that was not served."""


class Load:
    """Offers the arrivals of one plan and keeps the books."""

    def __init__(self, plan: LoadPlan, writer: Writer, fire: Callable[..., None]) -> None:
        self.plan = plan
        self.figures = Figures()
        self.problem: str | None = None  # why the records are not to be trusted
        self.exit_code = 0
        self._chat = Chat(plan)
        self._client = Client(plan)
        self._writer = writer
        self._fire = fire
        self._open: dict[int, Call] = {}
        self._stopping = Event()
        self._drain_until = 0.0
        self._wall_ahead = time.time() - time.monotonic()

    # ---- arrivals ---------------------------------------------------------------------------------

    def offer(self) -> None:
        """Offer arrivals until told to stop, or until the longest duration is over."""
        if self.plan.arrivals.closed:
            self._offer_closed()
        else:
            self._offer_open()
        self.stop(self.plan.client.timeout_s, f"the longest duration of {self.plan.max_duration_s:g} s is over")

    def _offer_open(self) -> None:
        start = time.monotonic()
        for arrival, offset in enumerate(offsets(self.plan.arrivals, self.plan.seed)):
            if offset > self.plan.max_duration_s:
                return
            call = self._call(arrival, *self._chat.place(arrival), intended=start + offset)
            # Late already: still yield, or the requests just started would never be sent.
            if self._stopping.wait(max(call.intended - time.monotonic(), 0.0)):
                return
            self._admit(call)

    def _offer_closed(self) -> None:
        pauses = first_pauses(self.plan.arrivals, self.plan.seed)
        for number, pause_s in enumerate(pauses):
            gevent.spawn(self._user, number, pause_s)
        self._stopping.wait(self.plan.max_duration_s)

    def _user(self, number: int, pause_s: float) -> None:
        """One user of the closed loop: asks, waits for the answer, thinks, asks again."""
        turns, visit = self.plan.workload.turns, 0
        while not self._stopping.wait(pause_s):
            session = number + self.plan.arrivals.users * (visit // turns)
            call = self._call(self.figures.drawn, session, visit % turns + 1, intended=time.monotonic())
            self._begin(call)
            record = self._serve(call)
            good = record.outcome in GOOD
            pause_s = self.plan.arrivals.think_s if good else max(self.plan.arrivals.think_s, _PAUSE_AFTER_FAILURE_S)
            visit += 1

    def _call(self, arrival: int, session: int, turn: int, *, intended: float) -> Call:
        body = self._chat.body(arrival, session, turn)
        asked = self.plan.workload.answer_tokens
        return Call(arrival, session, turn, intended, intended + self._wall_ahead, asked, body)

    def _admit(self, call: Call) -> None:
        full = len(self._open) >= self.plan.cap
        self._begin(call)
        if full:
            self._end(call, self._client.shed(call, time.monotonic()))
        else:
            gevent.spawn(self._serve, call)

    def _serve(self, call: Call) -> Record:
        self.figures.sent += 1
        try:
            record = self._client.ask(call)
        except Exception as bug:
            log.error("arrival %d: %s", call.arrival, traceback.format_exc())
            self._fail(f"arrival {call.arrival}: {bug!r}", EXIT_BUG)
            record = self._client.give_up(call, time.monotonic())
        self._end(call, record)
        return record

    # ---- books ------------------------------------------------------------------------------------

    def _begin(self, call: Call) -> None:
        self._open[call.arrival] = call
        self.figures.draw()

    def _end(self, call: Call, record: Record) -> None:
        """Write the record of an arrival; only its first end counts."""
        if self._open.pop(call.arrival, None) is None:
            return
        with self._writing():
            self._writer.write(record)
        self.figures.end(record)
        served = record.outcome in GOOD
        self._fire(
            request_type="SSE",
            name=self.plan.workload.name,
            response_time=((record.end or record.intended) - record.intended) * 1e3,
            response_length=record.tokens or 0,
            exception=None if served else NotServed(record.error or record.outcome.value),
            context={"arrival": record.arrival, "outcome": record.outcome.value},
            start_time=record.wall,
            url=self.plan.url,
        )

    @contextlib.contextmanager
    def _writing(self) -> Any:
        try:
            yield
        except OSError as problem:
            self._fail(f"{self.plan.records}: {problem.strerror}; make room and run again", 1)

    def _fail(self, problem: str, exit_code: int) -> None:
        """Note that the records cannot be trusted any more, and stop."""
        if self.problem is None:
            self.problem, self.exit_code = problem, exit_code
            log.error("%s", problem)
        self.stop(0.0, problem)

    # ---- end --------------------------------------------------------------------------------------

    def stop(self, drain_s: float, why: str) -> None:
        """Draw no more arrivals; open ones get `drain_s` to end. A later stop can only shorten that."""
        until = time.monotonic() + drain_s
        if self._stopping.is_set():
            self._drain_until = min(self._drain_until, until)
            return
        log.warning("stopping: %s", why)
        self._drain_until = until
        self._stopping.set()

    def finish(self, beat: Callable[[], None]) -> None:
        """Wait for the stop and the drain, then end what is still open; `beat` is called each second."""
        due = time.monotonic() + _BEAT_S
        while not self._drained():
            if self._stopping.is_set():
                gevent.sleep(_DRAIN_STEP_S)
            else:
                self._stopping.wait(max(due - time.monotonic(), 0.0))
            if time.monotonic() >= due:
                due += _BEAT_S
                self._flush()
                beat()
        now = time.monotonic()
        for call in list(self._open.values()):
            self._end(call, self._client.give_up(call, now))
        with self._writing():
            self._writer.close()

    def _drained(self) -> bool:
        return self._stopping.is_set() and (not self._open or time.monotonic() >= self._drain_until)

    def _flush(self) -> None:
        with self._writing():
            self._writer.flush()


class ArrivalUser(locust.User):
    """The one Locust user of the process; its only task lasts as long as the load."""

    fixed_count = 1
    load: ClassVar[Load]

    @locust.task
    def offer(self) -> None:
        """Offer the whole load, then end this user."""
        self.load.offer()
        raise StopUser


class Cpu:
    """Share of a core this process used between two looks."""

    def __init__(self) -> None:
        self._wall, self._used = time.monotonic(), time.process_time()

    def look(self) -> float:
        """Return the share since the last look."""
        wall, used = time.monotonic(), time.process_time()
        share = (used - self._used) / max(wall - self._wall, 1e-9)
        self._wall, self._used = wall, used
        return share


def run(plan: LoadPlan) -> int:
    """Offer the plan's load to its end; returns the exit code."""
    if plan.cpu is not None:
        os.sched_setaffinity(0, {plan.cpu})
    environment = Environment(user_classes=[ArrivalUser])
    runner = environment.create_local_runner()
    writer = Writer(Path(plan.records))
    load = ArrivalUser.load = Load(plan, writer, environment.events.request.fire)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        gevent.signal_handler(number, load.stop, 0.0, f"signal {number.name}")
    link = Link(load.stop)
    label = {"arrivals": plan.arrivals.kind, "loop": "closed" if plan.arrivals.closed else "open"}
    gc.collect()
    gc.freeze()  # what is loaded by now stays; scanning it again and again would show up as latency
    link.send({"type": "ready", **label})
    link.listen()
    runner.start(1, spawn_rate=1)
    cpu = Cpu()
    load.finish(lambda: link.send({**load.figures.beat(time.monotonic(), cpu.look()), **label}))
    stats = environment.stats.total
    final = {
        **load.figures.final(writer.count),
        **label,
        "locust": {"requests": stats.num_requests, "failures": stats.num_failures},
        "problem": load.problem,
    }
    link.send(final)
    return load.exit_code


def main(argv: list[str]) -> int:
    """Read LOAD.json and run it; returns the exit code."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    if len(argv) != 2:
        print("usage: python -m drills.load.generator LOAD.json", file=sys.stderr)
        return EXIT_USAGE
    try:
        return run(LoadPlan.read(Path(argv[1])))
    except DrillError as problem:
        print(problem, file=sys.stderr)
        return problem.exit_code
    except OSError as problem:
        print(f"{problem.filename or argv[1]}: {problem.strerror}; check the path and the room left", file=sys.stderr)
        return 1


if __name__ == "__main__":
    code = main(sys.argv)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # a thread that hangs in the resolver must not hold the process
