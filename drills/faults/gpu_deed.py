"""What both ways of gpu-reset do to a GPU: wait until nobody holds it, look twice, and look at it after its reset."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Final

from drills.errors import DrillError, NotRestored, Stopped, Unreachable
from drills.faults import reset_outcome
from drills.model import Context, Host, Json, Receipt, Target
from drills.probes import gpu_host

QUIET_S = 2.0  # between two looks that must both find nobody, right before the reset
RESET_TIMEOUT_S: Final = 120.0
FABRIC_TIMEOUT_S: Final = 30.0
POLL_S, FABRIC_AGAIN_S = 0.1, 1.0
TEXT_LIMIT: Final = 2000


class GpuDeed(ABC):
    """One injection; every wait is bounded, and a stop is heard until a reset has begun."""

    #: How the replicas were made to let go, for a sentence; how long that may take; and the time between two looks.
    after: ClassVar[str]
    teardown_s: ClassVar[float]
    look_again_s: ClassVar[float]

    def __init__(self, target: Target, host: Host, receipt: Receipt, ctx: Context) -> None:
        self.target, self.host, self.receipt, self.ctx = target, host, receipt, ctx
        self.prior: Json = receipt.prior["machine"]

    @abstractmethod
    def holders(self) -> list[Json]:
        """Return who has the GPUs open now."""

    @abstractmethod
    def look(self) -> Json:
        """Return how the machine and its GPUs are now, from a fresh process."""

    @abstractmethod
    def since_reset_s(self, now: Json, uuid: str) -> float:
        """Return how long ago the reset began by the machine's own clock; 0, which proves nothing, when not known."""

    @abstractmethod
    def needs_human(self, uuid: str, sentence: str) -> NotRestored:
        """Leave a note at the GPU that keeps everybody from calling this clean, and say what to do."""

    def stuck(self, found: list[Json], sentence: str) -> DrillError:  # noqa: ARG002 - who it is may matter to a way
        """Return what it means that somebody does not let go."""
        return DrillError(f"gpu-reset: {sentence}")

    def step(self, step: str, *, ok: bool | None, **data: Any) -> None:
        """Write one step down."""
        self.ctx.tell("inject.step", {"receipt": self.receipt.id, "step": step, "ok": ok, **data})

    def heed_stop(self) -> None:
        """Raise Stopped when the run is to end."""
        if self.ctx.stopping():
            raise Stopped("stopped before the reset; the GPU was not reset")

    def wait_until_gone(self) -> None:
        """Wait until the servers are gone too and nobody holds the GPUs: an orphan would keep them."""
        deadline = self.ctx.mono() + min(self.teardown_s, self.ctx.timeout_s)
        while True:
            try:
                servers = [v for v in self.receipt.victims if v["pid"] and self.host.alive(v["pid"], v["pid_start"])]
                found = self.holders()
            except Unreachable:  # they leave without us; who is there is asked again
                if self.ctx.mono() > deadline:
                    raise
            else:
                if not servers and not found:
                    self.step("holders.gone", ok=True)
                    return
                if self.ctx.mono() > deadline:
                    break
            self.heed_stop()
            self.ctx.sleep(self.look_again_s)
        who = [gpu_host.describe(h) for h in found] + [f"server of {v['name']} (pid {v['pid']})" for v in servers]
        self.step("holders.gone", ok=False, holders=who)
        raise self.stuck(found, f"the GPU was not reset: still there after {self.after}: {'; '.join(who)}")

    def quiet(self) -> None:
        """Look twice, right before the irreversible step: nobody may hold the GPUs, nobody may have said stop."""
        for wait_s in (0.0, QUIET_S):
            deadline = self.ctx.mono() + wait_s
            while self.ctx.mono() < deadline:
                self.heed_stop()
                self.ctx.sleep(POLL_S)
            if found := self.holders():
                who = "; ".join(gpu_host.describe(h) for h in found)
                raise DrillError(f"gpu-reset: the GPU was not reset: {who}, though all had let go")
        self.heed_stop()

    def verify(self, uuid: str) -> None:
        """Look at the GPU after its reset; NVLink's fabric may need a while to come back."""
        deadline = self.ctx.mono() + FABRIC_TIMEOUT_S
        while True:
            now = self.look()
            gpu = now["gpus"].get(uuid)
            if gpu is None or gpu["fabric"] not in ("not_started", "in_progress") or self.ctx.mono() > deadline:
                break
            self.ctx.sleep(FABRIC_AGAIN_S)
        found = reset_outcome.verify(uuid, self.prior, now, self.since_reset_s(now, uuid))
        ok = False if found.problems else found.proven
        self.step(
            "device.verified", ok=ok, outcome=found.outcome, problems=list(found.problems), uuid=uuid, **found.evidence
        )
        if found.problems:
            raise self.needs_human(uuid, f"after its reset: {'; '.join(found.problems)}")
