"""gpu-reset: a replica loses its GPU, and `nvidia-smi --gpu-reset -i UUID` brings it back.

`how: crash` is what a lost GPU looks like: the engine is killed, the supervisor's restart waits at a gate (a lock
the on-target timer holds), the GPU is reset, and revert opens the gate. The steps, each in the journal:

    gate.held → engine.killed → holders.gone → reset.begin → reset.end → device.verified → settings.restored

`how: planned`, the only way on Kubernetes, is in `drills.faults.gpu_reset_planned`.

The reset runs detached on the host and leaves notes (`drills.faults.gpu_notes`), so a driver that dies neither ends
nor repeats it. A refused reset changes nothing and is reported as such: the fault is then not proven. An end
that nobody can explain is never repeated; a person has to look at the GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal, cast

from drills import receipts
from drills.errors import DrillError, NotRestored, Refused, Stopped, UsageError
from drills.faults import gpu_notes, gpu_preflight, gpu_reset_planned, reset_outcome
from drills.faults.common import FaultParams, bystanders, how_for, pinned, still_the_one, untouched
from drills.faults.gpu_reset_planned import PlannedReset
from drills.model import Context, HasGpus, Host, Json, Observation, Receipt, Replica, Restored, Target
from drills.params import Duration
from drills.probes import gpu_host

How = Literal["crash", "planned"]

TEARDOWN_TIMEOUT_S = 60.0  # from the kill until nobody holds the GPU
QUIET_S = 2.0  # between two looks that must both find nobody, right before the reset
RESET_TIMEOUT_S = 120.0
KILL_AFTER_S = 10.0  # an nvidia-smi that ignores TERM
FABRIC_TIMEOUT_S = 30.0
DEED_S = TEARDOWN_TIMEOUT_S + RESET_TIMEOUT_S + KILL_AFTER_S + FABRIC_TIMEOUT_S + gpu_notes.RESTORE_TIMEOUT_S
POLL_S = 0.1
TEXT_LIMIT = 2000


class GpuReset:
    """A one-shot deed on the GPUs of the victims."""

    name: ClassVar[str] = "gpu-reset"
    held: ClassVar[bool] = False
    effect: ClassVar[bool] = True
    on_node: ClassVar[bool] = True
    warning: ClassVar[str] = "a reset may end in a GPU, or a machine, that needs a power cycle"

    class Params(FaultParams):
        """how: crash or planned (required), one value or one per kind of target; budget_timeout: for an eviction."""

        how: How | dict[str, How]
        budget_timeout: Duration = 30.0

    def __init__(self, params: Params, kind: str) -> None:
        how = how_for(cast("str | dict[str, str]", params.how), kind)
        other = "planned" if kind == "kubernetes" else "crash"
        if how is None:
            raise UsageError(f"gpu-reset: how: nothing said for a target of kind '{kind}'; add `{kind}: {other}`")
        if how != other:  # a pod's restart cannot be held back from outside; a supervisor's can
            raise UsageError(f"gpu-reset: how: {how} is not for a target of kind '{kind}'; use {other}")
        self.params, self.kind, self.how = params, kind, how
        self._planned = (
            PlannedReset(self.name, params.model_dump(), params.budget_timeout) if how == "planned" else None
        )

    @property
    def unused(self) -> tuple[str, ...]:
        """Return the parameters that mean nothing for this way."""
        return () if self._planned else ("budget_timeout",)

    def needs(self) -> frozenset[str]:
        """Return that the target must have GPUs, and for the planned way nodes that may be worked on."""
        return frozenset({"HasGpuNodes", "NodeAccess", "CanEvict"} if self._planned else {"HasGpus"})

    @property
    def deed_s(self) -> float:
        """Return the longest time that the deed takes, in seconds; the way back waits for one that is under way."""
        return gpu_reset_planned.DEED_S if self._planned else DEED_S

    # ---- before --------------------------------------------------------------------------------------

    def preflight(self, target: Target, victims: Sequence[Replica]) -> list[str]:
        """Return every reason not to reset these GPUs now."""
        if self._planned:
            return self._planned.preflight(target, victims)
        reasons = list(gpu_preflight.of_victims(victims))
        if reasons:
            return reasons
        host_name, uuids = victims[0].host, [gpu for v in victims for gpu in v.gpus]
        host = target.host(host_name)
        try:
            now = gpu_host.look(target, host_name)
            reasons += gpu_preflight.of_machine(now)
            if now["source"] is not None:
                reasons += [reason for uuid in uuids for reason in gpu_preflight.of_gpu(uuid, now)]
            reasons += gpu_preflight.of_modules(host, now)
            reasons += gpu_preflight.of_holders(gpu_host.holders(target, host_name, uuids), victims)
            reasons += gpu_preflight.of_gates(host, victims)
        except DrillError as error:
            reasons.append(str(error))
        return reasons

    def aim(self, target: Target, victims: Sequence[Replica], *, run: str, receipt: str, deadline_s: float) -> Receipt:
        """Note how the GPUs are now, and how their settings are put back."""
        if self._planned:
            return self._planned.aim(target, victims, run=run, receipt=receipt, deadline_s=deadline_s)
        host_name = victims[0].host
        now = gpu_host.look(target, host_name)
        uuids = [gpu for v in victims for gpu in v.gpus]
        reasons = [*gpu_preflight.of_machine(now), *(r for uuid in uuids for r in gpu_preflight.of_gpu(uuid, now))]
        if reasons:
            raise Refused(f"{'; '.join(reasons)}; nothing was touched")
        base_of = {uuid: f"{target.state_dir}/gpu-reset/{receipt}-{number}" for number, uuid in enumerate(uuids)}
        smi = cast("HasGpus", target).nvidia_smi(host_name)
        return Receipt(
            id=receipt,
            run=run,
            fault=self.name,
            target=target.name,
            host=host_name,
            victims=tuple(pinned(v) for v in victims),
            prior={
                "machine": {**now, "gpus": {uuid: now["gpus"][uuid] for uuid in uuids}},
                "bases": base_of,
                "bystanders": bystanders(target, victims),
            },
            holds=tuple(v.gate for v in victims if v.gate),
            undo=tuple(gpu_notes.undo_step(base_of[uuid], uuid, now["gpus"][uuid], smi) for uuid in uuids),
            deadline_s=deadline_s,
            params=self.params.model_dump(),
        )

    # ---- the deed ------------------------------------------------------------------------------------

    def inject(self, target: Target, receipt: Receipt, ctx: Context) -> None:
        """Kill the engines, or have the pods leave; wait until their GPUs are free, reset each one, look at it."""
        if self._planned:
            self._planned.inject(target, receipt, ctx)
        else:
            _Deed(target, receipt, ctx).go()

    # ---- after ---------------------------------------------------------------------------------------

    def observe(self, target: Target, receipt: Receipt, ctx: Context) -> Observation:
        """Prove by its uptime that each GPU was reset; without notes of ours on the host nothing is in place."""
        if self._planned:
            return self._planned.observe(target, receipt, ctx)
        host = target.host(receipt.host)
        engines = [_engine_evidence(host, v) for v in receipt.victims]
        others_ok = untouched(receipt.prior["bystanders"], target.replicas())
        resets = {uuid: gpu_notes.read(host, base) for uuid, base in receipt.prior["bases"].items()}
        if all(reset is None for reset in resets.values()):
            return Observation(False, ({"what": "notes of a reset", "present": False}, *engines), others_ok)
        now = gpu_host.look(target, receipt.host)
        proofs = [_reset_evidence(receipt, now, uuid, reset) for uuid, reset in resets.items()]
        seen = [p["proven"] for p in proofs] + [e["gone"] for e in engines]
        on = False if False in seen else None if None in seen else True
        return Observation(on, (*proofs, *engines), others_ok)

    def revert(self, target: Target, receipt: Receipt, ctx: Context) -> Restored:
        """Put settings back that still carry our value, and open the gate or the node. Never resets."""
        if self._planned:
            return self._planned.revert(target, receipt, ctx)
        for uuid, base in receipt.prior["bases"].items():
            gpu_notes.conclude(target.host(receipt.host), base, receipt.prior["machine"]["gpus"][uuid]["pci"], ctx)
        return receipts.revert(target, receipt, ctx)


class _Deed:
    """One injection; every wait is bounded, and a stop is heard until a reset has begun."""

    def __init__(self, target: Target, receipt: Receipt, ctx: Context) -> None:
        self.target, self.receipt, self.ctx = target, receipt, ctx
        self.host = target.host(receipt.host)
        self.smi = cast("HasGpus", target).nvidia_smi(receipt.host)
        self.bases: dict[str, str] = receipt.prior["bases"]
        self.prior: Json = receipt.prior["machine"]

    def go(self) -> None:
        """Go through all steps.

        Raises Refused before the deed; after it Stopped or DrillError while the GPU is as it was, and NotRestored
        when nobody knows how it is.
        """
        self._last_look()
        self.ctx.tell("inject.hit", {"receipt": self.receipt.id, "victims": [v["name"] for v in self.receipt.victims]})
        self._kill_engines()
        self._wait_until_gone()
        for uuid, base in self.bases.items():
            self._one_gpu(uuid, base)

    def _step(self, step: str, *, ok: bool | None, **data: Any) -> None:
        self.ctx.tell("inject.step", {"receipt": self.receipt.id, "step": step, "ok": ok, **data})

    def _last_look(self) -> None:
        """Refuse when anything changed since the aim: this is the last moment at which nothing was touched."""
        replicas = self.target.replicas()
        for victim in self.receipt.victims:
            if still_the_one(victim, replicas) is None:
                raise Refused(f"{victim['name']}: is no longer the replica that was aimed at; nothing was touched")
        for base in self.bases.values():
            if gpu_notes.read(self.host, base) is not None:
                raise Refused(f"{base}.begun: this reset was begun before; it is never repeated")
        strangers = list(gpu_preflight.of_holders(self._holders(), [r for r in replicas if self._is_victim(r)]))
        if strangers:
            raise Refused(f"{'; '.join(strangers)}; nothing was touched")
        for gate in self.receipt.holds:
            if gpu_host.gate_is_free(self.host, gate) is not False:
                raise Refused(f"gate {gate} is not held by the on-target timer; nothing was touched")
        self._step("gate.held", ok=True, gates=list(self.receipt.holds))

    def _is_victim(self, replica: Replica) -> bool:
        return any(v["name"] == replica.name for v in self.receipt.victims)

    def _holders(self) -> list[Json]:
        return gpu_host.holders(self.target, self.receipt.host, list(self.bases))

    def _kill_engines(self) -> None:
        for victim in self.receipt.victims:
            hit = self.host.signal(victim["engine_pid"], victim["engine_start"], "KILL")
            self._step("engine.killed", ok=hit, replica=victim["name"], pid=victim["engine_pid"], signal="KILL")
            if not hit:
                raise DrillError(f"{victim['name']}: its engine (pid {victim['engine_pid']}) was gone before the kill")

    def _wait_until_gone(self) -> None:
        """Wait until the servers are gone too and nobody holds the GPUs: an orphan would keep them."""
        deadline = self.ctx.mono() + min(TEARDOWN_TIMEOUT_S, self.ctx.timeout_s)
        while True:
            servers = [v for v in self.receipt.victims if self.host.alive(v["pid"], v["pid_start"])]
            found = self._holders()
            if not servers and not found:
                self._step("holders.gone", ok=True)
                return
            self._heed_stop()
            if self.ctx.mono() > deadline:
                break
            self.ctx.sleep(POLL_S)
        who = [gpu_host.describe(h) for h in found] + [f"server of {v['name']} (pid {v['pid']})" for v in servers]
        self._step("holders.gone", ok=False, holders=who)
        stuck = any(h["state"] == "D" for h in found)
        sentence = f"the GPU was not reset: still there after the engine was killed: {'; '.join(who)}"
        raise self._needs_human(next(iter(self.bases)), sentence) if stuck else DrillError(f"gpu-reset: {sentence}")

    def _heed_stop(self) -> None:
        if self.ctx.stopping():
            raise Stopped("stopped before the reset; the GPU was not reset")

    def _one_gpu(self, uuid: str, base: str) -> None:
        outcome = self._attempt(uuid, base)
        if outcome in ("in_use", "in_use_old"):  # it changed nothing: look again who it was, and try once more
            self._suspend_persistence(uuid)
            outcome = self._attempt(uuid, base)
        if outcome in reset_outcome.NEEDS_HUMAN:
            raise self._needs_human(uuid, f"its reset ended as '{outcome}': {reset_outcome.OUTCOMES[outcome]}")
        if outcome == "ok":
            self._verify_device(uuid, base)
        if not self.ctx.stopping():  # else revert, which does the same, is next
            self._restore_settings(uuid, base)

    def _attempt(self, uuid: str, base: str) -> str:
        self._quiet()
        self._begin_reset(uuid, base)
        return self._end_of_reset(uuid, base)

    def _quiet(self) -> None:
        """Look twice, right before the irreversible step: nobody may hold the GPUs, nobody may have said stop."""
        for wait_s in (0.0, QUIET_S):
            deadline = self.ctx.mono() + wait_s
            while self.ctx.mono() < deadline:
                self._heed_stop()
                self.ctx.sleep(POLL_S)
            if found := self._holders():
                who = "; ".join(gpu_host.describe(h) for h in found)
                raise DrillError(f"gpu-reset: the GPU was not reset: {who}, though all had let go")
        self._heed_stop()

    def _begin_reset(self, uuid: str, base: str) -> None:
        limit_s = self._limit_s()
        bounded = ["timeout", "-k", f"{min(KILL_AFTER_S, limit_s):.2f}", f"{limit_s:.2f}"]
        command = [*self.smi[:-1], *bounded, self.smi[-1], "--gpu-reset", "-i", uuid]
        self._step("reset.begin", ok=None, gpu=uuid, command=command, output=f"{base}.out")
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
        self._step("reset.end", ok=outcome == "ok", gpu=uuid, outcome=outcome, rc=rc, text=text[:TEXT_LIMIT])
        gpu_notes.mark_seen(self.host, base)
        return outcome

    def _suspend_persistence(self, uuid: str) -> None:
        """Nobody was seen, yet the GPU is in use: the persistence mode, where its daemon cannot be reached."""
        if self.prior["gpus"][uuid]["persistence"]:
            done = self.host.run([*self.smi, "-pm", "0", "-i", uuid], timeout_s=30)
            self._step("persistence.off", ok=done.rc == 0, gpu=uuid, rc=done.rc, text=done.out.strip()[:TEXT_LIMIT])

    def _verify_device(self, uuid: str, base: str) -> None:
        """Look at the GPU from a fresh process; NVLink's fabric may need a while to come back."""
        deadline = self.ctx.mono() + FABRIC_TIMEOUT_S
        while True:
            now = gpu_host.look(self.target, self.receipt.host)
            gpu = now["gpus"].get(uuid)
            if gpu is None or gpu["fabric"] not in ("not_started", "in_progress") or self.ctx.mono() > deadline:
                break
            self.ctx.sleep(1.0)
        found = reset_outcome.verify(uuid, self.prior, now, gpu_notes.elapsed_s(now, gpu_notes.read(self.host, base)))
        ok = False if found.problems else found.proven
        self._step(
            "device.verified", ok=ok, outcome=found.outcome, problems=list(found.problems), uuid=uuid, **found.evidence
        )
        if found.problems:
            raise self._needs_human(uuid, f"after its reset: {'; '.join(found.problems)}")

    def _restore_settings(self, uuid: str, base: str) -> None:
        """Put back what the reset dropped before the replica is let in; revert does it again."""
        argv = gpu_notes.restore(base, uuid, self.prior["gpus"][uuid], self.smi, keep=True)
        done = self.host.run(argv, timeout_s=gpu_notes.RESTORE_TIMEOUT_S)
        self._step("settings.restored", ok=done.rc == 0, gpu=uuid, text=done.err.strip()[:TEXT_LIMIT])

    def _needs_human(self, uuid: str, sentence: str) -> NotRestored:
        """Leave a note on the host that keeps revert from calling this clean, and say what to do."""
        base = self.bases[uuid]
        gpu_notes.need_human(self.host, base, sentence)
        return NotRestored(
            f"{self.receipt.host}: GPU {uuid}: {sentence}. Look at it (nvidia-smi -q -i {uuid}; dmesg | grep NVRM); "
            f"it may need a power cycle. When it is well: rm {base}.human, then `drill recover`"
        )


# ---- evidence --------------------------------------------------------------------------------------------


def _reset_evidence(receipt: Receipt, now: Json, uuid: str, reset: gpu_notes.Reset | None) -> Json:
    """Return the proof, one way or the other, that this GPU was reset."""
    prior = receipt.prior["machine"]
    rc, text = (reset.rc, reset.text) if reset else (None, "")
    outcome = reset_outcome.classify(rc, text, prior["gpus"][uuid]["pci"]) if reset else "not begun"
    if outcome != "ok":
        meaning = reset_outcome.OUTCOMES.get(outcome, outcome)
        return {"what": "reset", "gpu": uuid, "outcome": outcome, "meaning": meaning, "proven": False, "rc": rc}
    found = reset_outcome.verify(uuid, prior, now, gpu_notes.elapsed_s(now, reset))
    meaning = "its uptime restarted" if found.proven else reset_outcome.OUTCOMES[found.outcome]
    if found.proven is None:
        meaning = "reset reported, not independently proven: this driver tells no uptime"
    proof = {"outcome": found.outcome, "meaning": meaning, "proven": found.proven, "rc": rc}
    return {"what": "reset", **proof, "problems": list(found.problems), **found.evidence}


def _engine_evidence(host: Host, victim: Json) -> Json:
    gone = not host.alive(victim["engine_pid"], victim["engine_start"])
    return {"what": "engine of the victim", "replica": victim["name"], "pid": victim["engine_pid"], "gone": gone}
