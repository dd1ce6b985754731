"""gpu-reset the planned way, on a host: the replica's unit is stopped first, and started again after the reset.

    stop the unit → pause the units that hold the GPU and were active → nobody holds it → persistence mode off →
    reset, detached → look at it → settings, watchers and persistence back → start the unit

Everything that is changed is in the receipt before it is; settings and units are put back by the timer on the host at
its deadline, by revert, or by `drill recover`. A reset is begun once; while a GPU is for a person to look at, the unit
of its replica stays stopped.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final, cast

from drills import receipts
from drills.errors import DrillError, Refused
from drills.faults import clock_locks, gpu_noted, gpu_notes, gpu_preflight
from drills.faults import gpu_reset_units_deed as deed
from drills.faults.common import Written, bystanders, receipt_of, untouched
from drills.faults.gpu_noted_proof import conclude, engine_evidence, reset_evidence
from drills.faults.gpu_pauses import noted, start_steps
from drills.faults.gpu_reset_planned import of_kind
from drills.faults.gpu_reset_units_deed import UnitsDeed
from drills.model import Context, HasGpus, HasUnits, Json, Observation, Receipt, Replica, Restored, Target
from drills.nodes import UnitHost
from drills.probes import gpu_host

LOOKS_S: Final = 15.0  # who holds the GPU, twice before each attempt
ATTEMPTS: Final = 2  # a refused reset has changed nothing
GPU_S: Final = (ATTEMPTS - 1) * gpu_noted.ATTEMPT_S + ATTEMPTS * LOOKS_S + gpu_noted.GPU_S
UNIT_S: Final = 60.0  # to have one started
UNITS: Final = 4  # so many are reckoned with before it is known which
GPUS: Final = 4
TIMER_SLACK_S: Final = 120.0  # the timer puts all back so much later than the deed is over for certain
UP: Final = ("active", "activating", "reloading")


def deed_s(*, gpus: int = GPUS, units: int = UNITS) -> float:
    """Return how long it takes at most from the stop of the unit until it is on its way up again, seconds."""
    return 2 * deed.TEARDOWN_TIMEOUT_S + gpus * GPU_S + units * UNIT_S


class UnitsReset:
    """The planned way of `gpu-reset` on hosts."""

    def __init__(self, fault: Written) -> None:
        self.fault = fault

    # ---- before ----------------------------------------------------------------------------------------

    def preflight(self, target: Target, victims: Sequence[Replica]) -> list[str]:
        """Return every reason not to reset these GPUs now."""
        try:
            return list(self._reasons(target, victims))
        except DrillError as error:
            return [str(error)]

    def _reasons(self, target: Target, victims: Sequence[Replica]) -> Iterator[str]:
        if reasons := list(gpu_preflight.of_victims(victims, gated=False)):
            yield from reasons
            return
        name, uuids = victims[0].host, gpus_of(victims)
        node, now, locks = _node(target, name), gpu_host.look(target, name), clock_locks.declared(target, victims)
        yield from clock_locks.of_victims(victims, locks)
        yield from gpu_preflight.of_machine(now)
        yield from gpu_preflight.of_modules(node.host, now)
        survey = node.survey()
        yield from self._of_units(node, survey, victims)
        yield from gpu_preflight.of_daemon([h for h in survey["holders"] if h["gpu"] in uuids], now)
        yield from gpu_preflight.of_before(node.host, f"{target.state_dir_of(name)}/gpu-reset", uuids, now)
        if now["source"] is not None:
            for uuid in uuids:
                yield from gpu_preflight.of_gpu(uuid, now, locks.get(uuid, ()))
                yield from of_kind(uuid, survey, lab=now["lab"])

    def _of_units(self, node: UnitHost, survey: Json, victims: Sequence[Replica]) -> Iterator[str]:
        """Say why the units cannot be stopped, and who would still hold a GPU then."""
        yield from survey["errors"]
        yield from node.refusals(victims, stop=True)
        names, uuids = [v.name for v in victims], gpus_of(victims)
        ours = {node.unit_of(name) for name in names} | set(node.to_pause(survey, uuids, names))
        for holder in (h for h in survey["holders"] if h["gpu"] in uuids):
            if holder["state"] == "D":
                yield f"{gpu_host.describe(holder)}: it cannot be ended"
            elif holder["unit"] not in ours and not gpu_host.is_daemon(holder):
                whose = f"of unit {holder['unit']}" if holder["unit"] else "of no unit"
                yield (
                    f"{gpu_host.describe(holder)}, {whose}, and would not let go: stop it first, drill another "
                    "replica, or name its unit under `pause`, if that may be stopped for a while"
                )
        yield from gpu_preflight.of_unheld(survey["holders"], victims, lambda h, v: h["unit"] == node.unit_of(v.name))

    def aim(self, target: Target, victims: Sequence[Replica], *, run: str, receipt: str, deadline_s: float) -> Receipt:
        """Note how GPUs and units are now, and how they are put back."""
        if reasons := self.preflight(target, victims):
            raise Refused(f"{'; '.join(reasons)}; nothing was touched")
        name, uuids = victims[0].host, gpus_of(victims)
        node, now, smi = _node(target, name), gpu_host.look(target, name), cast("HasGpus", target).nvidia_smi(name)
        locks = clock_locks.declared(target, victims)
        before = {uuid: now["gpus"][uuid] | {"clock_lock": list(locks[uuid])} for uuid in uuids}
        folder = f"{target.state_dir_of(name)}/gpu-reset"
        bases = {uuid: f"{folder}/{receipt}-{number}" for number, uuid in enumerate(uuids)}
        uid_of = {node.unit_of(v.name): v.uid for v in victims}
        to_pause = node.to_pause(node.survey(), uuids, [v.name for v in victims])
        units, paused = noted(folder, receipt, uid_of), noted(folder, receipt, to_pause)
        undo = [  # the last comes first: settings, then who watches, then the replica
            *start_steps(node, units, list(bases.values())),
            *start_steps(node, paused),
            *(gpu_notes.undo_step(node.host.python, bases[u], u, before[u], smi) for u in uuids),
        ]
        prior: Json = {
            "machine": {**now, "gpus": before},
            "bases": bases,
            "units": units,
            "paused": paused,
            "bystanders": bystanders(target, victims),
        }
        least_s = deed_s(gpus=len(uuids), units=len(units) + len(paused)) + TIMER_SLACK_S
        made = receipt_of(
            self.fault, target, victims, run=run, receipt=receipt, deadline_s=max(deadline_s, least_s), prior=prior,
            undo=undo,
        )  # fmt: skip
        return replace(made, host=name)

    # ---- the deed, and after ---------------------------------------------------------------------------

    def inject(self, target: Target, receipt: Receipt, ctx: Context) -> None:
        """Go all the way: from the stop of the unit until it is on its way up again."""
        node = _node(target, receipt.host)

        def refuse(victims: Sequence[Replica]) -> None:
            names, gpus, survey = [v.name for v in victims], list(receipt.prior["bases"]), node.survey()
            reasons = list(self._of_units(node, survey, victims))
            known = {unit: one["uid"] for unit, one in receipt.prior["paused"].items()}
            if not reasons and node.to_pause(survey, gpus, names) != known:
                reasons = ["other units than a moment ago hold the GPU"]
            if reasons:
                raise Refused(f"{'; '.join(reasons)}; nothing was touched")

        UnitsDeed(target, node, receipt, ctx, refuse).go()

    def observe(self, target: Target, receipt: Receipt, ctx: Context) -> Observation:  # noqa: ARG002 - of the protocol
        """Prove by its uptime that each GPU was reset; without notes of ours nothing is in place but the units."""
        host, others_ok = target.host(receipt.host), untouched(receipt.prior["bystanders"], target.replicas())
        resets = {uuid: gpu_notes.read(host, base) for uuid, base in receipt.prior["bases"].items()}
        here = self._units_evidence(_node(target, receipt.host), receipt)
        if all(reset is None for reset in resets.values()):
            return Observation(False, ({"what": "notes of a reset", "present": False}, here), others_ok)
        now = gpu_host.look(target, receipt.host)
        proofs = [reset_evidence(receipt, now, uuid, reset) for uuid, reset in resets.items()]
        engines = [engine_evidence(host, v) for v in receipt.victims]
        seen = [p["proven"] for p in proofs] + [e["gone"] for e in engines]
        on = False if False in seen else None if None in seen else True
        return Observation(on, (*proofs, *engines, here), others_ok)

    def _units_evidence(self, node: UnitHost, receipt: Receipt) -> Json:
        now = node.units([*receipt.prior["units"], *receipt.prior["paused"]])
        states = {unit: said["state"] for unit, said in now.items()}
        up = [said["state"] in UP or (said["state"] == "deactivating" and said["job"]) for said in now.values()]
        return {"what": "units", "units": states, "all_up": all(up)}

    def revert(self, target: Target, receipt: Receipt, ctx: Context) -> Restored:
        """Judge a reset that nobody judged, and put settings and units back. Never resets."""
        conclude(target, receipt, ctx)
        notes = [one["note"] for one in receipt.prior["units"].values()]
        if any(target.host(receipt.host).read(note) is not None for note in notes):
            deed.expect_starts(_node(target, receipt.host), receipt)
        return receipts.revert(target, receipt, ctx)


def gpus_of(victims: Sequence[Replica]) -> list[str]:
    """Return the GPUs of the victims, each once."""
    return list(dict.fromkeys(gpu for victim in victims for gpu in victim.gpus))


def _node(target: Target, name: str) -> UnitHost:
    return cast("HasUnits", target).unit_host(name)
