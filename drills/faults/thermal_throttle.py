"""thermal-throttle: the GPU of a replica computes slowly, as one does that protects itself from heat.

Real heat is never made. `how: clocks` locks the SM clock (`nvidia-smi -lgc`), which has the effect of throttling;
`how: power` lowers the power limit (`-pl`), which shows as SwPowerCap. Neither sets a thermal clock event reason,
nor does the temperature rise: what watches heat is not put to the test, and the report says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Final, Literal, cast

from pydantic import AfterValidator

from drills import receipts
from drills.errors import DrillError, Refused, Stopped, UsageError
from drills.faults import clock_locks, gpu_caps, gpu_preflight
from drills.faults.common import FaultParams, bystanders, how_for, receipt_of, refuse_others, untouched
from drills.faults.gpu_caps import Cap
from drills.model import Context, HasGpus, Json, Observation, Receipt, Replica, Restored, Target
from drills.params import Share
from drills.probes import gpu_host

How = Literal["clocks", "power"]
#: How long the GPU may need until it shows that it is capped, or is not any more; each look is a program on its host.
PROOF_TIMEOUT_S: Final = 10.0
LOOK_AGAIN_S: Final = 0.5
TEXT_LIMIT: Final = 500


def _some(share: float) -> float:
    if not 0 < share < 1:
        raise ValueError("says to which share it is capped: above 0% and below 100%")
    return share


@dataclass
class _Survey:
    """What was seen before the deed: reasons to refuse, hosts by name, clocks a GPU can take, the site's lock."""

    refusals: list[str]
    hosts: dict[str, Json] = field(default_factory=dict)
    clocks_mhz: dict[str, list[int]] = field(default_factory=dict)
    locks: dict[str, clock_locks.Lock] = field(default_factory=dict)


class ThermalThrottle:
    """A held fault: a clock lock or a power limit stays until it is taken back."""

    name: ClassVar[str] = "thermal-throttle"
    held: ClassVar[bool] = True
    effect: ClassVar[bool] = True
    proof_s: ClassVar[float] = PROOF_TIMEOUT_S
    undo_s: ClassVar[float] = gpu_caps.UNDO_TIMEOUT_S
    emulates: ClassVar[str] = (
        "the clocks or the power of a GPU are capped by a setting; the chip is not hot, no thermal clock event reason "
        "is set, and what watches temperatures is not put to the test"
    )

    class Params(FaultParams):
        """how: clocks or power (required), one value or one per kind of target; to: the share that is left."""

        how: How | dict[str, How]
        to: Annotated[Share, AfterValidator(_some)] = 0.5

    def __init__(self, params: Params, kind: str) -> None:
        how = how_for(cast("str | dict[str, str]", params.how), kind)
        if how is None:
            raise UsageError(f"thermal-throttle: how: nothing said for a target of kind '{kind}'; add `{kind}: clocks`")
        self.params, self.kind, self.how = params, kind, how

    def needs(self) -> frozenset[str]:
        """Return that the target must have GPUs."""
        return frozenset({"HasGpus"})

    # ---- before --------------------------------------------------------------------------------------

    def preflight(self, target: Target, victims: Sequence[Replica]) -> list[str]:
        """Return every reason not to cap these GPUs now."""
        return self._survey(target, victims).refusals

    def _survey(self, target: Target, victims: Sequence[Replica]) -> _Survey:
        """Look at the victims and at their GPUs, each host once."""
        found = _Survey(list(gpu_caps.of_victims(victims, target.replicas())))
        for host in sorted({victim.host for victim in victims}) if not found.refusals else ():
            try:
                self._look_at(target, host, [victim for victim in victims if victim.host == host], found)
            except DrillError as error:
                found.refusals.append(str(error))
        return found

    def _look_at(self, target: Target, host: str, victims: Sequence[Replica], found: _Survey) -> None:
        now = found.hosts[host] = gpu_host.look(target, host)
        uuids = [gpu for victim in victims for gpu in victim.gpus]
        locks = clock_locks.declared(target, victims)
        if self.how == "clocks":
            found.refusals += clock_locks.of_victims(victims, locks)
        found.refusals += gpu_caps.of_machine(host, now)
        for uuid in uuids if now["source"] else ():
            lock = found.locks[uuid] = locks.get(uuid, ())
            why = list(gpu_caps.of_gpu(uuid, now, lock))
            if not why and self.how == "power":
                why += gpu_caps.of_power(uuid, now["gpus"][uuid], self.params.to)
            elif not why:
                clocks = gpu_caps.supported_mhz(target.host(host), _smi(target, host), uuid)
                found.clocks_mhz[uuid] = clocks
                why += gpu_caps.of_clocks(uuid, now["gpus"][uuid], clocks, self.params.to, lock)
            found.refusals += why
        if now["source"]:
            found.refusals += gpu_preflight.of_unheld(gpu_host.holders(target, host, uuids), victims)

    def aim(self, target: Target, victims: Sequence[Replica], *, run: str, receipt: str, deadline_s: float) -> Receipt:
        """Look again, now under load; note what is set, and how it is put back."""
        found = self._survey(target, victims)
        if found.refusals:
            raise Refused(f"{'; '.join(found.refusals)}; nothing was touched")
        held = [(victim, uuid) for victim in victims for uuid in victim.gpus]
        note_of = {v.host: f"{target.state_dir_of(v.host)}/thermal-throttle/{receipt}" for v in victims}
        caps = [self._cap(v, uuid, found, f"{note_of[v.host]}-{n}.set") for n, (v, uuid) in enumerate(held)]
        mine = {cap.gpu for cap in caps}
        limits = {uuid: gpu["power_limit_w"] for now in found.hosts.values() for uuid, gpu in now["gpus"].items()}
        prior: Json = {
            "caps": [cap.to_json() for cap in caps],
            "others": {uuid: limit for uuid, limit in limits.items() if uuid not in mine},
            "bystanders": bystanders(target, victims),
        }
        undo = [cap.undo(target.host(cap.host).python, _smi(target, cap.host)) for cap in caps]
        return receipt_of(
            self, target, victims, run=run, receipt=receipt, deadline_s=deadline_s, prior=prior, undo=undo
        )

    def _cap(self, victim: Replica, uuid: str, found: _Survey, note: str) -> Cap:
        gpu, to = found.hosts[victim.host]["gpus"][uuid], self.params.to
        clocks = self.how == "clocks"
        return Cap(
            replica=victim.name,
            host=victim.host,
            gpu=uuid,
            note=note,
            mhz=gpu_caps.clock_mhz(found.clocks_mhz[uuid], gpu["sm_clock_max_mhz"], to) if clocks else None,
            watts=None if clocks else gpu_caps.watts(gpu, to),
            prior={key: gpu[key] for key in gpu_caps.NOTED},
            lock=list(found.locks[uuid]),
        )

    # ---- the deed ------------------------------------------------------------------------------------

    def inject(self, target: Target, receipt: Receipt, ctx: Context) -> None:
        """Cap each GPU, if all is still as it was at the aim; a note on the host comes before each change."""
        caps = _caps(receipt)
        refuse_others(receipt, target.replicas())
        self._last_look(target, caps)
        ctx.tell("inject.hit", {"receipt": receipt.id, "victims": [v["name"] for v in receipt.victims]})
        for number, cap in enumerate(caps):
            if number and ctx.stopping():
                raise Stopped(f"stopped after {number} of {len(caps)} GPUs were capped")
            self._set(target, receipt, cap, ctx)

    def _last_look(self, target: Target, caps: Sequence[Cap]) -> None:
        """Refuse when a setting is another one by now: this is the last moment at which nothing was touched."""
        seen = {host: gpu_host.look(target, host) for host in {cap.host for cap in caps}}
        for cap in caps:
            reasons = list(gpu_caps.of_gpu(cap.gpu, seen[cap.host], tuple(cap.lock)))
            gpu = seen[cap.host]["gpus"].get(cap.gpu)
            if gpu is not None and gpu["power_limit_w"] != cap.prior["power_limit_w"]:
                was = cap.prior["power_limit_w"]
                reasons.append(f"GPU {cap.gpu}: its power limit is {gpu['power_limit_w']} W by now, and was {was} W")
            if reasons:
                raise Refused(f"{'; '.join(reasons)}; nothing was touched")

    def _set(self, target: Target, receipt: Receipt, cap: Cap, ctx: Context) -> None:
        host, command = target.host(cap.host), cap.command(_smi(target, cap.host))
        host.write(cap.note, receipt.id)
        done = host.run(command, timeout_s=gpu_caps.COMMAND_TIMEOUT_S)
        text = " ".join((done.out + done.err).split())[:TEXT_LIMIT]
        ok = done.rc == 0 and "not supported" not in text  # which nvidia-smi calls a warning, and a success
        step = "clocks.locked" if cap.mhz is not None else "power.capped"
        told = {"gpu": cap.gpu, "command": command, "rc": done.rc, "text": text}
        ctx.tell("inject.step", {"receipt": receipt.id, "step": step, "ok": ok, **told})
        if not ok:
            why = "no answer in time" if done.timed_out else f"status {done.rc}: {text}"
            raise DrillError(f"GPU {cap.gpu}: nvidia-smi {' '.join(command[-4:])}: {why}")

    # ---- after ---------------------------------------------------------------------------------------

    def observe(self, target: Target, receipt: Receipt, ctx: Context) -> Observation:
        """Prove by the GPUs' own clocks, limits and clock event reasons that they are capped, or are not."""
        deadline = ctx.mono() + PROOF_TIMEOUT_S
        while True:
            evidence, others_ok = self._look(target, receipt)
            capped = [item["capped"] for item in evidence]
            if None not in capped or ctx.mono() > deadline or ctx.stopping():
                break
            ctx.sleep(LOOK_AGAIN_S)
        on = None if None in capped else True if all(capped) else None if any(capped) else False
        told: Json = {"what": "what this stands for", "meaning": self.emulates}
        well = untouched(receipt.prior["bystanders"], target.replicas()) and others_ok
        return Observation(on, (*evidence, *([told] if on else [])), well)

    def _look(self, target: Target, receipt: Receipt) -> tuple[list[Json], bool]:
        """Return what each capped GPU shows, and whether the others have the power limits they had."""
        caps = _caps(receipt)
        seen = {host: gpu_host.look(target, host) for host in {cap.host for cap in caps}}
        evidence = [
            gpu_caps.seen(
                cap, seen[cap.host]["gpus"].get(cap.gpu), noted=target.host(cap.host).read(cap.note) is not None
            )
            for cap in caps
        ]
        gpus = {uuid: gpu for now in seen.values() for uuid, gpu in now["gpus"].items()}
        others = receipt.prior["others"].items()
        return evidence, all(uuid in gpus and gpus[uuid]["power_limit_w"] == limit for uuid, limit in others)

    def revert(self, target: Target, receipt: Receipt, ctx: Context) -> Restored:
        """Take the locks off and set the limits that were there before, and read them back."""
        return receipts.revert(target, receipt, ctx)


def _smi(target: Target, host: str) -> list[str]:
    return cast("HasGpus", target).nvidia_smi(host)


def _caps(receipt: Receipt) -> list[Cap]:
    return [gpu_caps.of_json(cap) for cap in receipt.prior["caps"]]
