"""gpu-reset the planned way, on a node of a cluster: the replica leaves first, and its controller makes a new one.

    cordon → evict the pods that hold the GPU → pause what watches it → nobody holds it → reset, by a job →
    look at it → settings and watchers back → uncordon

Everything that is changed is in the receipt before it is: the cordon and the labels, with the values they had, are put
back by the timer in the helper at its deadline, by revert, or by `drill recover`. A reset is begun once; one whose end
nobody knows, or after which the GPU is not as it was, leaves the node cordoned with a note for a person.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any, Final, cast

from drills import receipts
from drills.access import nodemarks
from drills.errors import DrillError, Refused, Unreachable
from drills.faults import gpu_deed, gpu_preflight, reset_outcome
from drills.faults import gpu_reset_deed as deed
from drills.faults.common import bystanders, pinned, untouched
from drills.faults.gpu_reset_deed import Deed, command_of_settings, elapsed_s, wait_for_end
from drills.model import Context, HasGpuNodes, Json, Observation, Receipt, Replica, Restored, Target
from drills.nodes import GpuNode
from drills.probes import gpu_host

ATTEMPTS: Final = 2  # jobs a GPU may get: a refused reset has changed nothing
LOOKS_S: Final = 15.0  # who holds the GPU, twice before each attempt
GPU_S: Final = (
    ATTEMPTS * (LOOKS_S + deed.RESET_SLACK_S + gpu_deed.RESET_TIMEOUT_S)
    + gpu_deed.FABRIC_TIMEOUT_S
    + deed.SETTINGS_TIMEOUT_S
)
VICTIM_S: Final = 10.0  # to have one evicted
GPUS: Final = 4  # so many are reckoned with before it is known which; whoever waits allows for twice as much
TIMER_SLACK_S: Final = 120.0  # the timer puts the node back so much later than the deed is over for certain
SHARED: Final = ("VGPU", "Host VGPU", "Host VSGA")
JOINED: Final = ("Kepler", "Maxwell", "Pascal", "Volta", "Turing")  # NVLink peers are reset together, or not at all


def deed_s(*, gpus: int = GPUS, victims: int = 1) -> float:
    """Return how long it takes at most from the eviction until the node takes pods again, seconds."""
    return deed.TEARDOWN_TIMEOUT_S + victims * VICTIM_S + gpus * GPU_S + nodemarks.OFFER_TIMEOUT_S


class PlannedReset:
    """The planned way of `gpu-reset`."""

    def __init__(self, fault: str, params: Json, budget_timeout_s: float) -> None:
        self.fault, self.params, self.budget_timeout_s = fault, params, budget_timeout_s

    def preflight(self, target: Target, victims: Sequence[Replica]) -> list[str]:
        """Return every reason not to reset these GPUs now."""
        try:
            return list(self._reasons(target, victims))
        except DrillError as error:
            return [str(error)]

    def _reasons(self, target: Target, victims: Sequence[Replica]) -> Iterator[str]:
        if len(hosts := sorted({v.host for v in victims})) > 1:
            yield f"the victims are on several nodes ({', '.join(hosts)}): one reset drill is for one node"
            return
        node = _node(target, victims[0].host)
        yield from node.refusals(victims)
        now, survey = node.look(), node.survey()
        yield from gpu_preflight.of_machine(now)
        yield from gpu_preflight.of_modules(node.host, now)
        yield from of_survey(node, survey, victims)
        if now["source"] is not None:
            for uuid in sorted({uuid for v in victims for uuid in gpus_of(v.uid, survey)}):
                yield from gpu_preflight.of_gpu(uuid, now)
                yield from of_kind(uuid, survey, lab=now["lab"])

    def aim(self, target: Target, victims: Sequence[Replica], *, run: str, receipt: str, deadline_s: float) -> Receipt:
        """Note how node and GPUs are now, and how they are put back."""
        if reasons := self.preflight(target, victims):
            raise Refused(f"{'; '.join(reasons)}; nothing was touched")
        node = _node(target, victims[0].host)
        now, survey, state = node.look(), node.survey(), node.state()
        held = {v.name: gpus_of(v.uid, survey) for v in victims}
        uuids = sorted({uuid for gpus in held.values() for uuid in gpus})
        jobs = {u: [f"drill-{receipt}-{n}-{attempt}" for attempt in range(ATTEMPTS)] for n, u in enumerate(uuids)}
        namespace = node.namespace
        back: Json = {"do": "node", "node": node.name, "run": run, "cordon": not state["unschedulable"]}
        back |= {"labels": node.pausable(), "offers": state["allocatable"]}
        return Receipt(
            id=receipt,
            run=run,
            fault=self.fault,
            target=target.name,
            host=node.name,
            victims=tuple(pinned(v) | {"gpus": held[v.name]} for v in victims),
            prior={
                "machine": {**now, "gpus": {uuid: now["gpus"][uuid] for uuid in uuids}},
                "node": state,
                "since_wall": time.time(),
                "jobs": jobs,
                "bystanders": bystanders(target, victims),
            },
            holds=(),
            undo=(  # the last comes first: settings before pods, and the jobs tell of their resets until the end
                *({"do": "job", "name": name, "namespace": namespace} for names in jobs.values() for name in names),
                back,
                *(
                    {"do": "run", "argv": command_of_settings(node, u, now["gpus"][u]), "timeout_s": 60, "beside": True}
                    for u in uuids
                ),
            ),
            deadline_s=max(deadline_s, self._timer_s(len(uuids), len(victims))),
            params=self.params,
        )

    def _timer_s(self, gpus: int, victims: int) -> float:
        return deed_s(gpus=gpus, victims=victims) + self.budget_timeout_s + TIMER_SLACK_S

    def inject(self, target: Target, receipt: Receipt, ctx: Context) -> None:
        """Go all the way: from the cordon until the node takes pods again."""
        Deed(target, _node(target, receipt.host, receipt.run), receipt, ctx, self.budget_timeout_s).go()

    def observe(self, target: Target, receipt: Receipt, ctx: Context) -> Observation:  # noqa: ARG002
        """Prove by its uptime that each GPU was reset; without a job of ours nothing is in place but what it says."""
        node, others_ok = (
            _node(target, receipt.host, receipt.run),
            untouched(receipt.prior["bystanders"], target.replicas()),
        )
        if node.gone():
            return Observation(False, ({"what": "node", "node": node.name, "present": False},), others_ok)
        state = node.state()
        here = {"what": "node", "node": node.name, **state, "as_before": as_before(state, receipt)}
        jobs = {uuid: _last_job(node, names) for uuid, names in receipt.prior["jobs"].items()}
        if all(job is None for job in jobs.values()):
            return Observation(False, ({"what": "job of a reset", "present": False}, here), others_ok)
        now, there = node.look(), {r.uid for r in target.replicas() if r.state != "terminating"}
        pods = [_pod_evidence(v, there) for v in receipt.victims]
        proofs = [_reset_evidence(receipt, now, uuid, job) for uuid, job in jobs.items()]
        seen = [p["proven"] for p in proofs] + [p["gone"] for p in pods]
        on = False if False in seen else None if None in seen else True
        return Observation(on, (*proofs, *pods, here), others_ok)

    def revert(self, target: Target, receipt: Receipt, ctx: Context) -> Restored:
        """Judge a reset that nobody judged, and put the node back. Never resets."""
        node = _node(target, receipt.host, receipt.run)
        step = next(s for s in receipt.undo if s["do"] == "node")
        if node.gone():
            _tell(receipt, ctx, "node.gone", ok=None, node=node.name)
            return receipts.revert(target, receipt, ctx)
        mark = nodemarks.parsed(node.state()["marks"].get(nodemarks.MARK))
        if mark.get("run") == receipt.run and mark.get("reset") == nodemarks.BEGUN:
            self._try_to_conclude(node, receipt, step, ctx)
        restored = receipts.revert(target, receipt, ctx)
        _clean(node, receipt, ctx)
        if restored is Restored.CLEAN and (why := not_back(node.state(), receipt)):
            _tell(receipt, ctx, "node.as_before", ok=False, reason=why)
            return Restored.DIRTY
        return restored

    def _try_to_conclude(self, node: GpuNode, receipt: Receipt, step: Json, ctx: Context) -> None:
        """Judge what can be judged; a GPU that cannot be looked at is for a person, and the node stays cordoned."""
        try:
            self._conclude(node, receipt, step, ctx)
        except Unreachable:
            raise
        except DrillError as error:
            _tell(receipt, ctx, "reset.judged", ok=None, reason=str(error))
            node.progress(step, nodemarks.BEGUN, f"nobody could look at its GPU after a reset: {error}")

    def _conclude(self, node: GpuNode, receipt: Receipt, step: Json, ctx: Context) -> None:
        """Judge the resets of a driver that died before it could; one under way is waited for, and never ended."""
        human: list[str] = []
        for uuid, names in receipt.prior["jobs"].items():
            for name in names:
                wait_for_end(node, name, ctx)
            job = _last_job(node, names)
            if job is None:
                continue
            outcome = reset_outcome.classify(job["rc"], job["text"], receipt.prior["machine"]["gpus"][uuid]["pci"])
            if outcome in reset_outcome.NEEDS_HUMAN:
                human.append(f"GPU {uuid}: its reset ended as '{outcome}': {reset_outcome.OUTCOMES[outcome]}")
            elif outcome == "ok":
                now = node.look()
                found = reset_outcome.verify(uuid, receipt.prior["machine"], now, elapsed_s(now, job))
                human += [f"GPU {uuid}: after its reset: {problem}" for problem in found.problems]
        node.progress(step, nodemarks.JUDGED, "; ".join(human) or None)


# ---- why not ---------------------------------------------------------------------------------------------


def of_survey(node: GpuNode, survey: Json, victims: Sequence[Replica]) -> Iterator[str]:
    """Say which victim holds no GPU, and who else holds theirs and would not go."""
    yield from survey["errors"]
    for victim in victims:
        if not gpus_of(victim.uid, survey):
            yield f"{victim.name}: none of its processes holds a GPU of node {node.name}, so there is none to reset"
    ours = {v.uid for v in victims}
    wanted = {uuid for v in victims for uuid in gpus_of(v.uid, survey)}
    for holder in (h for h in survey["holders"] if h["gpu"] in wanted):
        if holder["state"] == "D":
            yield f"{gpu_host.describe(holder)}: it cannot be ended"
        elif holder["pod"] not in ours and node.operand(holder["title"]) is None and not gpu_host.is_daemon(holder):
            whose = f"of pod {holder['pod']}" if holder["pod"] else "of no pod"
            yield f"{gpu_host.describe(holder)}, {whose}, and would not let go: stop it first, or drill another replica"


def of_kind(uuid: str, survey: Json, *, lab: bool) -> Iterator[str]:
    """Say what kind of GPU it is that one does not reset by itself."""
    gpu = survey["gpus"].get(uuid) or {}
    kind, age = gpu.get("virtualization"), gpu.get("architecture")
    if kind in SHARED:
        yield f"GPU {uuid}: is shared out by a hypervisor ({kind}): a reset is not for this machine to do"
    if age is None and not lab:
        yield f"GPU {uuid}: nvidia-smi does not tell its architecture, so whether it may be reset alone is not known"
    elif age in JOINED and len(survey["gpus"]) > 1:
        yield f"GPU {uuid}: is of the {age} generation, whose NVLink peers must be reset together"
    elif age == "Ampere" and survey["nvswitch"] and not survey["fabric_manager"]:
        yield f"GPU {uuid}: is behind an NVSwitch, and no fabric manager runs on this node"


def gpus_of(pod: str, survey: Json) -> list[str]:
    """Return the GPUs that processes of that pod hold."""
    return sorted({h["gpu"] for h in survey["holders"] if h["pod"] == pod})


def as_before(state: Json, receipt: Receipt) -> bool:
    """Whether cordon, labels and allocatable GPUs of the node are those from before, with no mark of ours."""
    before = receipt.prior["node"]
    return bool(state == {**before, "marks": {}})


def not_back(state: Json, receipt: Receipt) -> str | None:
    """Say what of ours stayed on the node; None when nothing did, or when it is how others have left it."""
    before, name = receipt.prior["node"], receipt.host
    if nodemarks.parsed(state["marks"].get(nodemarks.MARK)).get("run") == receipt.run:
        return f"node {name}: still carries the mark of this run"
    if ours := sorted(key for key, value in state["labels"].items() if value == nodemarks.paused(receipt.run)):
        return f"node {name}: still paused: {', '.join(ours)}"
    alone = (state["labels"], state["unschedulable"]) == (before["labels"], before["unschedulable"])
    offers, had = state["allocatable"] or 0, before["allocatable"] or 0
    if alone and not state["marks"] and offers < had:
        return f"node {name}: offers {offers} GPUs, and offered {had} before: look at its device plugin and its GPUs"
    return None


def _clean(node: GpuNode, receipt: Receipt, ctx: Context) -> None:
    """Delete the target's pods that the node refused meanwhile, each told before; one that stays spoils nothing."""
    try:
        for pod, uid in node.refused(receipt.prior["since_wall"]):
            _tell(receipt, ctx, "pod.cleaned", ok=None, pod=pod, uid=uid)
            node.delete(pod, uid)
    except DrillError as error:
        _tell(receipt, ctx, "pod.cleaned", ok=False, reason=str(error))


def _tell(receipt: Receipt, ctx: Context, step: str, **data: Any) -> None:
    ctx.tell("inject.step", {"receipt": receipt.id, "step": step, **data})


def _node(target: Target, name: str, run: str | None = None) -> GpuNode:
    return cast("HasGpuNodes", target).gpu_node(name, run)


def _last_job(node: GpuNode, names: Sequence[str]) -> Json | None:
    """Return what became of the last reset that was begun."""
    found = [job for name in names if (job := node.reset(name)) is not None]
    return found[-1] if found else None


# ---- evidence --------------------------------------------------------------------------------------------


def _reset_evidence(receipt: Receipt, now: Json, uuid: str, job: Json | None) -> Json:
    """Return the proof, one way or the other, that this GPU was reset."""
    prior = receipt.prior["machine"]
    outcome = reset_outcome.classify(job["rc"], job["text"], prior["gpus"][uuid]["pci"]) if job else "not begun"
    rc = job["rc"] if job else None
    if outcome != "ok":
        meaning = reset_outcome.OUTCOMES.get(outcome, outcome)
        return {"what": "reset", "gpu": uuid, "outcome": outcome, "meaning": meaning, "proven": False, "rc": rc}
    found = reset_outcome.verify(uuid, prior, now, elapsed_s(now, job))
    meaning = "its uptime restarted" if found.proven else reset_outcome.OUTCOMES[found.outcome]
    if found.proven is None:
        meaning = "reset reported, not independently proven: its uptime, or when it began, is not told"
    proof = {"outcome": found.outcome, "meaning": meaning, "proven": found.proven, "rc": rc, "lab": now["lab"]}
    return {"what": "reset", **proof, "problems": list(found.problems), **found.evidence}


def _pod_evidence(victim: Json, there: set[str]) -> Json:
    gone = victim["uid"] not in there
    return {"what": "pod of the victim", "replica": victim["name"], "uid_before": victim["uid"], "gone": gone}
