"""Receipts on the target: written before the fault, undone by its timer, by revert, or by `drill recover`.

They lie in `<state>/receipts/<id>.json` on the host that carries the fault, so that they are found there
when the driver, its machine and its journal are gone.
"""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from drills.errors import Refused
from drills.model import Context, Host, Json, Receipt, Restored, Target

COMMAND_TIMEOUT_S = 15.0
UNDO_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Outstanding:
    """A receipt that lies on a target, with what its timer says."""

    receipt: Receipt
    timer: Json

    @property
    def timer_state(self) -> str:
        """armed | released | undone | undo failed | disarmed | failed | dead | none."""
        return str(self.timer.get("state", "none"))

    def sentence(self) -> str:
        """Say in one line what is still to be put back."""
        names = ", ".join(str(v["name"]) for v in self.receipt.victims)
        off = {
            "armed": f"its timer undoes it at {_clock(self.timer.get('deadline_wall'))}",
            "released": f"reverted; its timer checks at {_clock(self.timer.get('deadline_wall'))}",
            "undone": f"undone by its timer at {_clock(self.timer.get('at'))}, not yet verified",
            "undo failed": "its timer could NOT undo it",
            "dead": "its timer was killed, so nothing undoes it by itself",
        }.get(self.timer_state, "no timer runs")
        return f"{self.receipt.fault} on {names} (run {self.receipt.run}): {off}"


def to_json(receipt: Receipt) -> Json:
    """Return the receipt as plain data."""
    data: Json = json.loads(json.dumps(asdict(receipt)))
    return data


def from_json(data: Json) -> Receipt:
    """Return the receipt that `to_json` wrote."""
    return Receipt(**{**data, **{k: tuple(data[k]) for k in ("victims", "holds", "undo")}})


def path(state_dir: str, receipt: Receipt) -> str:
    """Return where the receipt lies on its host."""
    return f"{state_dir}/receipts/{receipt.id}.json"


def arm(host: Host, state_dir: str, receipt: Receipt) -> Json:
    """Write the receipt to the host and start its timer there. Refused when it cannot be armed."""
    spec = path(state_dir, receipt)
    host.write(spec, json.dumps(to_json(receipt)))
    answer = _ontarget(host, "arm", spec, COMMAND_TIMEOUT_S)
    if not answer.get("ok"):
        discard(host, state_dir, receipt)
        why = answer.get("error", "no reason given")
        raise Refused(f"{host.name}: the on-target timer for {receipt.fault} could not be armed: {why}")
    return answer


def undo(host: Host, state_dir: str, receipt: Receipt) -> tuple[Restored, list[str]]:
    """Carry out the undo steps on the host; returns the manual commands for what could not be done."""
    spec = path(state_dir, receipt)
    if host.read(spec) is None:  # the journal outlived the target's copy
        host.write(spec, json.dumps(to_json(receipt)))
    answer = _ontarget(host, "undo", spec, UNDO_TIMEOUT_S)
    if answer.get("ok"):
        return Restored.CLEAN, []
    failed = [s for s in answer.get("steps", receipt.undo) if not s.get("ok")]
    return Restored.DIRTY, [manual(s) for s in failed] or [f"{answer.get('error')}"]


def revert(target: Target, receipt: Receipt, ctx: Context) -> Restored:
    """Undo the receipt on its host and tell the journal what could not be done. The usual `Fault.revert`."""
    restored, manual_commands = undo(target.host(receipt.host), target.state_dir, receipt)
    if manual_commands:
        ctx.tell("undo.failed", {"receipt": receipt.id, "manual": manual_commands})
    return restored


def disarm(host: Host, state_dir: str, receipt: Receipt) -> bool:
    """End the timer and take the receipt away; only after the undo has been verified."""
    answer = _ontarget(host, "disarm", path(state_dir, receipt), COMMAND_TIMEOUT_S)
    if answer.get("ok"):
        discard(host, state_dir, receipt)
    return bool(answer.get("ok"))


def discard(host: Host, state_dir: str, receipt: Receipt) -> None:
    """Take the receipt's files away."""
    base = path(state_dir, receipt).removesuffix(".json")
    for name in (f"{base}.json", f"{base}.timer.json", f"{base}.disarm"):
        host.remove(name)


def outstanding(host: Host, state_dir: str) -> list[Outstanding]:
    """Return the receipts that lie on the host, oldest first."""
    folder = f"{state_dir}/receipts"
    found = []
    for name in host.list(folder):
        if not name.endswith(".json") or name.endswith(".timer.json") or name.startswith("."):
            continue
        if text := host.read(f"{folder}/{name}"):
            found.append(Outstanding(_parse(text, f"{folder}/{name}"), _timer(host, f"{folder}/{name}")))
    return found


def _parse(text: str, where: str) -> Receipt:
    try:
        return from_json(json.loads(text))
    except (ValueError, TypeError, KeyError, AttributeError):
        raise Refused(
            f"{where}: is no receipt of this version; look at what its run changed (the journal tells), "
            "put it back by hand, then remove the file"
        ) from None


def _timer(host: Host, spec: str) -> Json:
    """Return what the timer last said; one that says it watches and does not run any more is dead."""
    text = host.read(f"{spec.removesuffix('.json')}.timer.json")
    try:
        said: Json = dict(json.loads(text)) if text else {}
    except (ValueError, TypeError):
        said = {}
    if said.get("state") in ("armed", "released") and not host.alive(said["pid"], said["start"]):
        said["state"] = "dead"
    return said


def manual(step: Json) -> str:
    """Return the command a person types to do an undo step by hand."""
    match step.get("do"):
        case "remove":
            return f"rm -f {shlex.quote(step['path'])}"
        case "signal":
            kill = f"kill -{step['signal']} {step['pid']}"
            return f"kill -0 {step['once_gone']['pid']} || {kill}" if "once_gone" in step else kill
        case "run":
            return shlex.join(step["argv"])
        case "write":
            return f"printf %s {shlex.quote(step['text'])} > {shlex.quote(step['path'])}"
        case "unrule":
            return shlex.join([*_tables(step), "-D", step["chain"], *step["rule"]])
        case "unchain":
            tables = shlex.join(_tables(step))
            return f"{tables} -F {step['chain']}; {tables} -X {step['chain']}"
    return f"# {step.get('do')}: {step.get('error', 'see the journal')}"


def _tables(step: Json) -> list[str]:
    """Return the words that begin a command of iptables in the step's namespace."""
    enter = [] if step["netns"] is None else ["nsenter", f"--net=/proc/{step['netns']['pid']}/ns/net"]
    return [*enter, step["iptables"], "-w", "5", "-t", step["table"]]


def _ontarget(host: Host, command: str, spec: str, timeout_s: float) -> Json:
    done = host.run([*_program(), command, spec], timeout_s=timeout_s)
    try:
        answer: Json = json.loads(done.out)
        return answer
    except ValueError:
        why = "timed out" if done.timed_out else (done.err.strip().splitlines() or ["no output"])[-1]
        return {"ok": False, "error": f"{command}: status {done.rc}: {why}"}


def _program() -> Sequence[str]:
    return [sys.executable, "-m", "drills.access.ontarget"]


def _clock(wall: float | None) -> str:
    return "an unknown time" if wall is None else time.strftime("%H:%M:%S UTC", time.gmtime(wall))
