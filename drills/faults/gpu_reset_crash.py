"""The deed of a gpu-reset as a crash, step by step; each is in the journal, and every wait is bounded.

    gate.held → engine.killed → holders.gone → reset.begin → reset.end → device.verified → settings.restored

The reset runs detached on the host and leaves notes there (`drills.faults.gpu_notes`).
"""

from __future__ import annotations

from typing import Final, cast

from drills.errors import DrillError, NotRestored, Refused
from drills.faults import gpu_notes, gpu_preflight, reset_outcome
from drills.faults.common import still_the_one
from drills.faults.gpu_deed import FABRIC_TIMEOUT_S, POLL_S, RESET_TIMEOUT_S, TEXT_LIMIT, GpuDeed
from drills.model import Context, HasGpus, Json, Receipt, Replica, Target
from drills.probes import gpu_host

TEARDOWN_TIMEOUT_S: Final = 60.0  # from the kill until nobody holds the GPU
KILL_AFTER_S: Final = 10.0  # an nvidia-smi that ignores TERM
#: From the kill until the settings are back; the way back waits for one that is under way.
DEED_S: Final = TEARDOWN_TIMEOUT_S + RESET_TIMEOUT_S + KILL_AFTER_S + FABRIC_TIMEOUT_S + gpu_notes.RESTORE_TIMEOUT_S


class CrashDeed(GpuDeed):
    """One injection."""

    after = "the engine was killed"
    teardown_s = TEARDOWN_TIMEOUT_S
    look_again_s = POLL_S

    def __init__(self, target: Target, receipt: Receipt, ctx: Context) -> None:
        super().__init__(target, target.host(receipt.host), receipt, ctx)
        self.smi = cast("HasGpus", target).nvidia_smi(receipt.host)
        self.bases: dict[str, str] = receipt.prior["bases"]

    def go(self) -> None:
        """Go through all steps.

        Raises Refused before the deed; after it Stopped or DrillError while the GPU is as it was, and NotRestored
        when nobody knows how it is.
        """
        self._last_look()
        self.ctx.tell("inject.hit", {"receipt": self.receipt.id, "victims": [v["name"] for v in self.receipt.victims]})
        self._kill_engines()
        self.wait_until_gone()
        for uuid, base in self.bases.items():
            self._one_gpu(uuid, base)

    def _last_look(self) -> None:
        """Refuse when anything changed since the aim: this is the last moment at which nothing was touched."""
        replicas = self.target.replicas()
        for victim in self.receipt.victims:
            if still_the_one(victim, replicas) is None:
                raise Refused(f"{victim['name']}: is no longer the replica that was aimed at; nothing was touched")
        for base in self.bases.values():
            if gpu_notes.read(self.host, base) is not None:
                raise Refused(f"{base}.begun: this reset was begun before; it is never repeated")
        strangers = list(gpu_preflight.of_holders(self.holders(), [r for r in replicas if self._is_victim(r)]))
        if strangers:
            raise Refused(f"{'; '.join(strangers)}; nothing was touched")
        for gate in self.receipt.holds:
            if gpu_host.gate_is_free(self.host, gate) is not False:
                raise Refused(f"gate {gate} is not held by the on-target timer; nothing was touched")
        self.step("gate.held", ok=True, gates=list(self.receipt.holds))

    def _is_victim(self, replica: Replica) -> bool:
        return any(v["name"] == replica.name for v in self.receipt.victims)

    def holders(self) -> list[Json]:
        """Return who has the GPUs open now."""
        return gpu_host.holders(self.target, self.receipt.host, list(self.bases))

    def _kill_engines(self) -> None:
        for victim in self.receipt.victims:
            hit = self.host.signal(victim["engine_pid"], victim["engine_start"], "KILL")
            self.step("engine.killed", ok=hit, replica=victim["name"], pid=victim["engine_pid"], signal="KILL")
            if not hit:
                raise DrillError(f"{victim['name']}: its engine (pid {victim['engine_pid']}) was gone before the kill")

    def _one_gpu(self, uuid: str, base: str) -> None:
        outcome = self._attempt(uuid, base)
        if outcome in ("in_use", "in_use_old"):  # it changed nothing: look again who it was, and try once more
            self._suspend_persistence(uuid)
            outcome = self._attempt(uuid, base)
        if outcome in reset_outcome.NEEDS_HUMAN:
            raise self.needs_human(uuid, f"its reset ended as '{outcome}': {reset_outcome.OUTCOMES[outcome]}")
        if outcome == "ok":
            self.verify(uuid)
        if not self.ctx.stopping():  # else revert, which does the same, is next
            self._restore_settings(uuid, base)

    def _attempt(self, uuid: str, base: str) -> str:
        self.quiet()
        self._begin_reset(uuid, base)
        return self._end_of_reset(uuid, base)

    def _begin_reset(self, uuid: str, base: str) -> None:
        limit_s = self._limit_s()
        bounded = ["timeout", "-k", f"{min(KILL_AFTER_S, limit_s):.2f}", f"{limit_s:.2f}"]
        command = [*self.smi[:-1], *bounded, self.smi[-1], "--gpu-reset", "-i", uuid]
        self.step("reset.begin", ok=None, gpu=uuid, command=command, output=f"{base}.out")
        gpu_notes.begin(self.host, base, command, self.receipt.id)

    def _limit_s(self) -> float:
        return min(self.ctx.timeout_s, RESET_TIMEOUT_S)

    def _end_of_reset(self, uuid: str, base: str) -> str:
        """Wait for the end, which nothing cuts short: not a stop, and we never end it ourselves."""
        deadline = self.ctx.mono() + self._limit_s() + min(KILL_AFTER_S, self._limit_s()) + 5.0
        while (reset := gpu_notes.read(self.host, base)) is None or reset.rc is None:
            if self.ctx.mono() > deadline:
                break
            self.ctx.sleep(POLL_S)
        rc, text = (reset.rc, reset.text) if reset else (None, "")
        outcome = reset_outcome.classify(rc, text, self.prior["gpus"][uuid]["pci"])
        self.step("reset.end", ok=outcome == "ok", gpu=uuid, outcome=outcome, rc=rc, text=text[:TEXT_LIMIT])
        gpu_notes.mark_seen(self.host, base)
        return outcome

    def _suspend_persistence(self, uuid: str) -> None:
        """Nobody was seen, yet the GPU is in use: the persistence mode, where its daemon cannot be reached."""
        if self.prior["gpus"][uuid]["persistence"]:
            done = self.host.run([*self.smi, "-pm", "0", "-i", uuid], timeout_s=30)
            self.step("persistence.off", ok=done.rc == 0, gpu=uuid, rc=done.rc, text=done.out.strip()[:TEXT_LIMIT])

    def _restore_settings(self, uuid: str, base: str) -> None:
        """Put back what the reset dropped before the replica is let in; revert does it again."""
        argv = gpu_notes.restore(base, uuid, self.prior["gpus"][uuid], self.smi, keep=True)
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
        return NotRestored(
            f"{self.receipt.host}: GPU {uuid}: {sentence}. Look at it (nvidia-smi -q -i {uuid}; dmesg | grep NVRM); "
            f"it may need a power cycle. When it is well: rm {base}.human, then `drill recover`"
        )
