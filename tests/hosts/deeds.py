"""One fault on the hosts without a load: `python -m tests.hosts.deeds`, in ctl; `Deed` stands for it in a test.

It takes an order, JSON on one line, {targets, fault, params, victims, fault_s, wait_at}; puts the fault on, tells each
event on a line, and puts everything back when the next line comes. Once it has told the event `wait_at` for the first
time it does nothing before a line comes.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from drills import faults, opening
from drills.active import ActiveFaults
from drills.clock import Clock
from drills.errors import DrillError
from drills.model import Context, Json
from drills.options import Options
from drills.proxies import LedgerProxies
from drills.target import load_target
from tests.hosts.fleet import Fleet

RUN = "0a1b2c3d"
EVENT_TIMEOUT_S = 120.0
BESIDE = {LedgerProxies.name: LedgerProxies}


class Deed:
    """A fault that is on for as long as the block lasts, or until its driver is killed."""

    def __init__(
        self,
        fleet: Fleet,
        folder: Path,
        *wanted: tuple[str, Json],
        victims: Sequence[str],
        fault_s: float = 60.0,
        wait_at: str | None = None,
    ) -> None:
        self.order: Json = {"targets": str(fleet.targets_file(folder)), "faults": wanted, "victims": list(victims)}
        self.order |= {"fault_s": fault_s, "wait_at": wait_at}
        self.argv = fleet.control_argv([sys.executable, "-m", "tests.hosts.deeds"])
        self.told: list[Json] = []

    def __enter__(self) -> Deed:
        self.process = subprocess.Popen(
            self.argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        self._say(json.dumps(self.order))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with suppress(OSError):  # it may be gone
            self.process.stdin.close()  # which is a line, too
        try:
            self.process.wait(EVENT_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()
        self.process.stdout.close()

    def until(self, event: str, times: int = 1) -> Json:
        """Return the data of that event, the so-manieth of its name."""
        assert self.process.stdout is not None
        deadline = time.monotonic() + EVENT_TIMEOUT_S
        while time.monotonic() < deadline:
            found = [one["data"] for one in self.told if one["event"] == event]
            if len(found) >= times:
                return dict(found[times - 1])
            line = self.process.stdout.readline()
            assert line, f"it ended before {event}: {self.told}"
            self.told.append(json.loads(line))
        raise AssertionError(f"no {event}: {self.told}")

    def go_on(self) -> None:
        """Let it go on from where it waits."""
        self._say("")

    def back(self) -> str:
        """Have everything put back; returns whether it is, the worst of all."""
        self._say("")
        return str(self.until("end")["restored"])

    def kill(self) -> None:
        """Kill the driver, and all that it has started."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(30)

    def _say(self, line: str) -> None:
        assert self.process.stdin is not None
        with suppress(OSError):  # it has ended already, which a fault that failed does by itself; its events say how
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()


def main() -> int:
    """Put it on and off."""
    order = json.loads(sys.stdin.readline())
    clock = Clock()

    def tell(event: str, data: Json) -> None:
        print(json.dumps({"event": event, "data": data}), flush=True)
        if event == order["wait_at"]:
            order["wait_at"] = None
            sys.stdin.readline()

    with opening.open_target(load_target(path=Path(order["targets"])), Options(), lambda _: None) as target:
        context = Context(tell, clock.sleep, clock.mono, lambda: False)
        active = ActiveFaults(RUN, target, clock, tell=tell, note=tell, context=context)
        victims = [one for one in target.replicas() if one.name in order["victims"]]
        try:
            for number, (name, params) in enumerate(order["faults"]):
                made: Any = BESIDE.get(name) or faults.FAULTS[name]
                fault = made(made.Params.model_validate(params), target.kind)
                if refusals := fault.preflight(target, victims):
                    tell("refused", {"why": refusals})
                    return 3
                active.put_on(number, fault, victims, fault_s=order["fault_s"])
            tell("on", {})
            sys.stdin.readline()
        except DrillError as error:
            tell("failed", {"why": str(error)})
        finally:
            active.revert_all()
            tell("end", {"restored": active.restored.value, "manual": active.manual})
    return 0


if __name__ == "__main__":
    sys.exit(main())
