"""A reset that runs detached on its host and leaves notes there, as both ways have it where commands can be run.

A driver or a link that dies neither ends nor repeats it: how far it got is looked up in its notes
(`drills.faults.gpu_notes`).
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final, cast

from drills.errors import DrillError, NotRestored, Refused, Unreachable
from drills.faults import gpu_notes, reset_outcome
from drills.faults.gpu_deed import FABRIC_TIMEOUT_S, POLL_S, RESET_TIMEOUT_S, TEXT_LIMIT, GpuDeed
from drills.model import Context, HasGpus, Json, Receipt, Target
from drills.probes import gpu_host

KILL_AFTER_S: Final = 10.0  # an nvidia-smi that ignores TERM
PERSISTENCE_TIMEOUT_S: Final = 30.0
#: A reset from its begin to its end, and with it all that follows until the settings are back.
ATTEMPT_S: Final = RESET_TIMEOUT_S + KILL_AFTER_S
GPU_S: Final = ATTEMPT_S + FABRIC_TIMEOUT_S + gpu_notes.RESTORE_TIMEOUT_S


class NotedDeed(GpuDeed):
    """One injection on one host."""

    #: What people are told of a replica whose GPU is for a person to look at; begins a sentence.
    waits = ""

    def __init__(self, target: Target, receipt: Receipt, ctx: Context) -> None:
        super().__init__(target, target.host(receipt.host), receipt, ctx)
        self.smi = cast("HasGpus", target).nvidia_smi(receipt.host)
        self.bases: dict[str, str] = receipt.prior["bases"]

    def refuse_begun(self) -> None:
        """Refuse when a reset of this receipt was begun before."""
        for base in self.bases.values():
            if gpu_notes.read(self.host, base) is not None:
                raise Refused(f"{base}.begun: this reset was begun before; it is never repeated")

    def one_gpu(self, uuid: str, base: str) -> str:
        """Reset that GPU and look at it; returns the outcome. Raises NotRestored when a person has to look."""
        outcome = self._attempt(uuid, base)
        if outcome in ("in_use", "in_use_old"):  # it changed nothing: look again who it was, and try once more
            self.suspend_persistence(uuid)
            outcome = self._attempt(uuid, base)
        if outcome in reset_outcome.NEEDS_HUMAN:
            raise self.needs_human(uuid, f"its reset ended as '{outcome}': {reset_outcome.OUTCOMES[outcome]}")
        if outcome == "ok":
            self.verify(uuid)
            gpu_notes.mark_seen(self.host, base)
        return outcome

    def _attempt(self, uuid: str, base: str) -> str:
        self.quiet()
        self._begin_reset(uuid, base)
        return self._end_of_reset(uuid, base)

    def _begin_reset(self, uuid: str, base: str) -> None:
        limit_s = self._limit_s()
        bounded = ["timeout", "-k", f"{min(KILL_AFTER_S, limit_s):.2f}", f"{limit_s:.2f}"]
        command = [*self.smi[:-1], *bounded, self.smi[-1], "--gpu-reset", "-i", uuid]
        self.step("reset.begin", ok=None, gpu=uuid, command=command, output=f"{base}.out")
        try:
            gpu_notes.begin(self.host, base, command, self.receipt.id)
        except Unreachable as error:  # nobody knows whether it was begun: its notes will tell
            self.step("link.lost", ok=None, reason=str(error))

    def _limit_s(self) -> float:
        return min(self.ctx.timeout_s, RESET_TIMEOUT_S)

    def _end_of_reset(self, uuid: str, base: str) -> str:
        """Wait for the end, which nothing cuts short: not a stop, not a link, and we never end it ourselves."""
        reset = self._ended(base)
        rc, text = (reset.rc, reset.text) if reset else (None, "")
        outcome = reset_outcome.classify(rc, text, self.prior["gpus"][uuid]["pci"])
        self.step("reset.end", ok=outcome == "ok", gpu=uuid, outcome=outcome, rc=rc, text=text[:TEXT_LIMIT])
        if outcome in reset_outcome.HARMLESS:  # the others are judged once the GPU was looked at, or a note says so
            gpu_notes.mark_seen(self.host, base)
        if outcome in reset_outcome.UNSUPPORTED:  # the next drill is refused before it touches anything
            with suppress(DrillError):
                gpu_notes.mark_unsupported(self.host, base.rsplit("/", 1)[0], uuid, self.prior, text)
        return outcome

    def _ended(self, base: str) -> gpu_notes.Reset | None:
        """Return what the notes tell once there is a status, or once there should have been one.

        Raises DrillError when they tell that nothing was ever begun, or that the machine was booted anew meanwhile, and
        Unreachable when nobody can read them.
        """
        deadline = self.ctx.mono() + self._limit_s() + min(KILL_AFTER_S, self._limit_s()) + gpu_notes.START_S
        quiet_since: float | None = None  # notes can be read, and there is no process of it
        while True:
            reset, lost = self._notes(base)
            if (reset is not None and reset.rc is not None) or self.ctx.mono() > deadline:
                break
            missing = lost is None and (reset is None or reset.begun_s is None)
            quiet_since = (quiet_since or self.ctx.mono()) if missing else None
            if quiet_since is not None and self.ctx.mono() - quiet_since > gpu_notes.START_S:
                raise DrillError(f"gpu-reset: the GPU was not reset: its command never came up on {self.host.name}")
            self.ctx.sleep(POLL_S)
        if lost is not None:
            raise lost
        return reset

    def _notes(self, base: str) -> tuple[gpu_notes.Reset | None, Unreachable | None]:
        try:
            reset = gpu_notes.read(self.host, base)
            if reset is not None and gpu_notes.cut_short(self.host, reset):
                raise DrillError(f"gpu-reset: {self.host.name} was booted anew in the middle of the reset")
            return reset, None
        except Unreachable as error:
            return None, error

    def suspend_persistence(self, uuid: str) -> None:
        """Put the persistence mode off where it was on: its daemon, where it cannot be reached, is in the way."""
        if self.prior["gpus"][uuid]["persistence"]:
            done = self.host.run([*self.smi, "-pm", "0", "-i", uuid], timeout_s=PERSISTENCE_TIMEOUT_S)
            self.step("persistence.off", ok=done.rc == 0, gpu=uuid, rc=done.rc, text=done.out.strip()[:TEXT_LIMIT])

    def restore_settings(self, uuid: str, base: str) -> None:
        """Put back what the reset dropped before the replica is let in; revert does it again."""
        argv = gpu_notes.restore(self.host.python, base, uuid, self.prior["gpus"][uuid], self.smi, keep=True)
        done = self.host.run(argv, timeout_s=gpu_notes.RESTORE_TIMEOUT_S)
        self.step("settings.restored", ok=done.rc == 0, gpu=uuid, text=done.err.strip()[:TEXT_LIMIT])

    def look(self) -> Json:
        """Return how the machine and its GPUs are now."""
        return gpu_host.look(self.target, self.receipt.host)

    def since_reset_s(self, now: Json, uuid: str) -> float:
        """Return how long ago the reset began, by its notes on the host."""
        return gpu_notes.elapsed_s(now, gpu_notes.read(self.host, self.bases[uuid]))

    def stuck(self, found: list[Json], sentence: str) -> DrillError:
        """Return what it means that somebody does not let go: a killed process that stays is stuck in the driver."""
        if any(h["state"] == "D" for h in found):
            return self.needs_human(next(iter(self.bases)), sentence)
        return super().stuck(found, sentence)

    def needs_human(self, uuid: str, sentence: str) -> NotRestored:
        """Leave a note on the host that keeps revert from calling this clean, and say what to do."""
        base = self.bases[uuid]
        gpu_notes.need_human(self.host, base, sentence)
        gpu_notes.mark_seen(self.host, base)
        return NotRestored(
            f"{self.receipt.host}: GPU {uuid}: {sentence}. {self.waits}Look at it (nvidia-smi -q -i {uuid}; dmesg | "
            f"grep NVRM); it may need a power cycle. When it is well: rm {base}.human, then `drill recover`"
        )
