"""gpu-reset: a replica loses its GPU, and `nvidia-smi --gpu-reset -i UUID` brings it back.

`how: crash` is what a lost GPU looks like: the engine is killed, the supervisor's restart waits at a gate (a lock
the on-target timer holds), the GPU is reset, and revert opens the gate. Its deed is in `drills.faults.gpu_reset_crash`.
`how: planned`, the only way on Kubernetes, is in `drills.faults.gpu_reset_planned`; on hosts, where a unit is stopped
for it, in `drills.faults.gpu_reset_units`.

A crash's reset runs detached on the host and leaves notes (`drills.faults.gpu_notes`): a driver that dies neither ends
nor repeats it. A refused reset changes nothing and is reported as such: the fault is then not proven. An end
that nobody can explain is never repeated; a person has to look at the GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final, Literal, cast

from drills import receipts
from drills.errors import DrillError, Refused, UsageError
from drills.faults import clock_locks, gpu_notes, gpu_preflight, gpu_reset_crash, gpu_reset_planned, gpu_reset_units
from drills.faults.common import FaultParams, bystanders, how_for, pinned, untouched
from drills.faults.gpu_noted_proof import conclude, engine_evidence, reset_evidence
from drills.faults.gpu_pauses import noted, start_steps
from drills.faults.gpu_reset_crash import CrashDeed
from drills.faults.gpu_reset_planned import PlannedReset, of_kind
from drills.faults.gpu_reset_units import UnitsReset
from drills.model import Context, HasGpus, HasUnits, Observation, Receipt, Replica, Restored, Target
from drills.params import Duration
from drills.probes import gpu_host

How = Literal["crash", "planned"]
#: A pod's restart cannot be held back from outside; a supervisor's can; and the lab's supervisor stops nobody.
WAYS: Final = {"lab": ("crash",), "hosts": ("crash", "planned"), "kubernetes": ("planned",)}


class GpuReset:
    """A one-shot deed on the GPUs of the victims."""

    name: ClassVar[str] = "gpu-reset"
    held: ClassVar[bool] = False
    effect: ClassVar[bool] = True
    on_node: ClassVar[bool] = True
    undo_s: ClassVar[float] = gpu_notes.RESTORE_TIMEOUT_S + gpu_reset_units.UNITS * gpu_reset_units.UNIT_S

    class Params(FaultParams):
        """how: crash or planned (required), one value or one per kind of target; budget_timeout: for an eviction."""

        how: How | dict[str, How]
        budget_timeout: Duration = 30.0

    def __init__(self, params: Params, kind: str) -> None:
        how = how_for(cast("str | dict[str, str]", params.how), kind)
        ways = WAYS[kind]
        if how is None:
            raise UsageError(f"gpu-reset: how: nothing said for a target of kind '{kind}'; add `{kind}: {ways[0]}`")
        if how not in ways:
            raise UsageError(f"gpu-reset: how: {how} is not for a target of kind '{kind}'; use {ways[0]}")
        self.params, self.kind, self.how = params, kind, how
        self._planned: PlannedReset | UnitsReset | None = None
        if how == "planned" and kind == "hosts":
            self._planned = UnitsReset(self)
        elif how == "planned":
            self._planned = PlannedReset(self.name, params.model_dump(), params.budget_timeout)

    @property
    def warning(self) -> str:
        """Return what people must know before they run it."""
        lost = "; a clock lock set on the node is lost, and nobody sets it again" if self.kind == "kubernetes" else ""
        return f"a reset may end in a GPU, or a machine, that needs a power cycle{lost}"

    @property
    def unused(self) -> tuple[str, ...]:
        """Return the parameters that mean nothing for this way."""
        return () if isinstance(self._planned, PlannedReset) else ("budget_timeout",)

    def needs(self) -> frozenset[str]:
        """Return that the target must have GPUs, and for the planned way nodes, or units, that may be worked on."""
        if isinstance(self._planned, PlannedReset):
            return frozenset({"HasGpuNodes", "NodeAccess", "CanEvict"})
        return frozenset({"HasGpus", "HasUnits"} if self._planned else {"HasGpus"})

    @property
    def deed_s(self) -> float:
        """Return the longest time that the deed takes, in seconds; the way back waits for one that is under way."""
        if isinstance(self._planned, PlannedReset):
            return gpu_reset_planned.deed_s()
        return gpu_reset_units.deed_s() if self._planned else gpu_reset_crash.DEED_S

    # ---- before --------------------------------------------------------------------------------------

    def preflight(self, target: Target, victims: Sequence[Replica]) -> list[str]:
        """Return every reason not to reset these GPUs now."""
        if self._planned:
            return self._planned.preflight(target, victims)
        reasons = list(gpu_preflight.of_victims(victims))
        if reasons:
            return reasons
        host_name, uuids = victims[0].host, [gpu for v in victims for gpu in v.gpus]
        host, locks = target.host(host_name), clock_locks.declared(target, victims)
        reasons += clock_locks.of_victims(victims, locks)
        try:
            if isinstance(target, HasUnits):
                reasons += target.unit_host(host_name).refusals(victims, stop=False)
            now = gpu_host.look(target, host_name)
            reasons += gpu_preflight.of_machine(now)
            if now["source"] is not None:
                reasons += [reason for uuid in uuids for reason in gpu_preflight.of_gpu(uuid, now, locks.get(uuid, ()))]
            if isinstance(target, HasUnits):
                survey = target.unit_host(host_name).survey()
                reasons += [why for uuid in uuids for why in of_kind(uuid, survey, lab=now["lab"])]
            reasons += gpu_preflight.of_modules(host, now)
            held = gpu_host.all_holders(target, host_name, uuids)
            paused = gpu_reset_crash.watchers(target, host_name, uuids, victims)
            others = gpu_reset_crash.staying(target, host_name, held, paused)
            reasons += gpu_preflight.of_holders([h for h in others if not gpu_host.is_daemon(h)], victims)
            reasons += gpu_preflight.of_unheld(held, victims)
            reasons += gpu_preflight.of_daemon(held, now)
            reasons += gpu_preflight.of_before(host, f"{target.state_dir_of(host_name)}/gpu-reset", uuids, now)
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
        uuids, locks = [gpu for v in victims for gpu in v.gpus], clock_locks.declared(target, victims)
        reasons = [*gpu_preflight.of_machine(now), *clock_locks.of_victims(victims, locks)]
        reasons += [why for uuid in uuids for why in gpu_preflight.of_gpu(uuid, now, locks.get(uuid, ()))]
        if reasons:
            raise Refused(f"{'; '.join(reasons)}; nothing was touched")
        before = {uuid: now["gpus"][uuid] | {"clock_lock": list(locks[uuid])} for uuid in uuids}
        folder = f"{target.state_dir_of(host_name)}/gpu-reset"
        base_of = {uuid: f"{folder}/{receipt}-{number}" for number, uuid in enumerate(uuids)}
        paused = noted(folder, receipt, gpu_reset_crash.watchers(target, host_name, uuids, victims))
        starts = start_steps(target.unit_host(host_name), paused) if isinstance(target, HasUnits) else []
        smi, python = cast("HasGpus", target).nvidia_smi(host_name), target.host(host_name).python
        return Receipt(
            id=receipt,
            run=run,
            fault=self.name,
            target=target.name,
            host=host_name,
            victims=tuple(pinned(v) for v in victims),
            prior={
                "machine": {**now, "gpus": before},
                "bases": base_of,
                "bystanders": bystanders(target, victims),
                "paused": paused,
            },
            holds=tuple(v.gate for v in victims if v.gate),
            undo=(  # the last comes first: settings, then who watches
                *starts,
                *(gpu_notes.undo_step(python, base_of[uuid], uuid, before[uuid], smi) for uuid in uuids),
            ),
            deadline_s=deadline_s,
            params=self.params.model_dump(),
        )

    # ---- the deed ------------------------------------------------------------------------------------

    def inject(self, target: Target, receipt: Receipt, ctx: Context) -> None:
        """Kill the engines, or have pods or units leave; wait until their GPUs are free, reset each one, look at it."""
        if self._planned:
            self._planned.inject(target, receipt, ctx)
        else:
            CrashDeed(target, receipt, ctx).go()

    # ---- after ---------------------------------------------------------------------------------------

    def observe(self, target: Target, receipt: Receipt, ctx: Context) -> Observation:
        """Prove by its uptime that each GPU was reset; without notes of ours on the host nothing is in place."""
        if self._planned:
            return self._planned.observe(target, receipt, ctx)
        host = target.host(receipt.host)
        engines = [engine_evidence(host, v) for v in receipt.victims]
        others_ok = untouched(receipt.prior["bystanders"], target.replicas())
        resets = {uuid: gpu_notes.read(host, base) for uuid, base in receipt.prior["bases"].items()}
        if all(reset is None for reset in resets.values()):
            return Observation(False, ({"what": "notes of a reset", "present": False}, *engines), others_ok)
        now = gpu_host.look(target, receipt.host)
        proofs = [reset_evidence(receipt, now, uuid, reset) for uuid, reset in resets.items()]
        seen = [p["proven"] for p in proofs] + [e["gone"] for e in engines]
        on = False if False in seen else None if None in seen else True
        return Observation(on, (*proofs, *engines), others_ok)

    def revert(self, target: Target, receipt: Receipt, ctx: Context) -> Restored:
        """Put settings back that still carry our value, and open the gate or the node. Never resets."""
        if self._planned:
            return self._planned.revert(target, receipt, ctx)
        conclude(target, receipt, ctx)
        return receipts.revert(target, receipt, ctx)
