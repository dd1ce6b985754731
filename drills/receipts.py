"""Receipts as text: what is written down before a fault, read again, and typed by hand when all else failed."""

from __future__ import annotations

import json
import re
import shlex
import signal
from dataclasses import asdict
from typing import Any, Final

from drills import strictjson
from drills.custody import Unreadable, is_pid, is_start, is_word
from drills.model import Context, Json, Receipt, Restored, Target
from drills.strictjson import Shape, is_bool, is_count, is_number, is_object, is_text

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,200}")


class Damaged(ValueError):
    """What should be a receipt is none of this version; the text says why."""


def to_json(receipt: Receipt) -> Json:
    """Return the receipt as plain data."""
    data: Json = json.loads(json.dumps(asdict(receipt)))
    return data


def from_json(data: Any) -> Receipt:
    """Return the receipt that `to_json` wrote. Raises Damaged."""
    why = strictjson.misfit(data, _SHAPE)
    whys = [why] if why else [said for i, step in enumerate(data["undo"]) if (said := _unfit(step, f"undo[{i}]"))]
    if whys:
        raise Damaged(whys[0])
    lists = {key: tuple(data[key]) for key in ("victims", "holds", "undo")}
    return Receipt(**{key: data[key] for key in _SHAPE if key in data} | lists)


def parse(text: str, name: str) -> Receipt:
    """Return the receipt of that name that lies at a target. Raises Damaged."""
    try:
        data = strictjson.loads(text.encode("utf-8", "replace"))
    except ValueError:
        raise Damaged("it is no JSON") from None
    receipt = from_json(data)
    if receipt.id != name:
        raise Damaged(f"it is that of {receipt.id}")
    return receipt


def unreadable(name: str, where: str, why: object, remove: str) -> Unreadable:
    """Return what is said of a receipt that cannot be read: only a person can tell what to do."""
    what = (
        f"{where}: is no receipt of this version ({why}); look at what its run changed (the journal tells), "
        f"put it back by hand, then remove it: {remove}"
    )
    return Unreadable(name, what, remove)


# ---- shapes ------------------------------------------------------------------------------------------


def _signal(value: Any) -> bool:
    return is_text(value) and f"SIG{value}" in signal.Signals.__members__


def _id(value: Any) -> bool:
    return is_text(value) and _ID.fullmatch(value) is not None


def _seconds(value: Any) -> bool:
    return is_number(value) and 0 <= value <= 1e9


_PROCESS: Final[Shape] = {"pid": is_pid, "start": is_start}
_TABLE: Final = {"netns?": {"pid": is_pid, "start": is_start, "inode": is_count}, "iptables": is_word,
                 "table": is_word, "chain": is_word}  # fmt: skip
#: What each undo step must say: the closed set of `drills.access.ontarget`.
STEPS: Final[dict[str, dict[str, Any]]] = {
    "remove": {"path": is_word},
    "signal": {"pid": is_pid, "start": is_start, "signal": _signal, "once_gone?": _PROCESS},
    "run": {"argv": [is_text], "timeout_s?": _seconds, "beside?": is_bool},
    "write": {"path": is_word, "text": is_text, "ours": is_text},
    "unrule": {**_TABLE, "rule": [is_text]},
    "unchain": _TABLE,
    "node": {"node": is_word, "run": is_word, "cordon": is_bool, "labels": is_object, "offers?": is_count},
    "job": {"name": is_word, "namespace": is_word},
}
_SHAPE: Final[dict[str, Any]] = {
    "id": _id, "run": _id, "fault": is_word, "target": is_word, "host": is_text,
    "victims": [{"name": is_word}], "prior": is_object, "holds": [is_word], "undo": [is_object],
    "deadline_s": _seconds, "params": is_object,
}  # fmt: skip


def _unfit(step: Json, where: str) -> str:
    """Say why that is no undo step that can be carried out; empty when it is one."""
    do = step.get("do")
    if not is_text(do) or do not in STEPS:
        return f"{where}.do is none of {', '.join(STEPS)}"
    if do in ("unrule", "unchain") and "netns" not in step:
        return f"{where}.netns is missing"
    if do == "run" and not step.get("argv"):
        return f"{where}.argv is missing"
    return strictjson.misfit(step, {**STEPS[do], "host?": is_text}, where)


#: What is done through the API, by whoever may.
ANYWHERE: Final = ("node", "job")
#: The names of the machine that the run was driven from.
HERE: Final = ("", "local")

# ---- the way back ------------------------------------------------------------------------------------


def revert(target: Target, receipt: Receipt, ctx: Context) -> Restored:
    """Undo the receipt at the target and tell the journal what could not or need not be done.

    The usual `Fault.revert`.
    """
    restored, said = target.custody.undo(receipt)
    if said and restored is Restored.CLEAN:
        ctx.tell("undo.needless", {"receipt": receipt.id, "why": said})
    elif said:
        ctx.tell("undo.failed", {"receipt": receipt.id, "manual": said})
    return restored


def by_hand(receipt: Receipt) -> list[str]:
    """Return the commands that a person types to do all undo steps by hand."""
    return [manual(step, receipt.host) for step in receipt.undo]


def there(host: str, command: str) -> str:
    """Return a command for one host: as it is on this machine, and no command anywhere but on another one.

    A pid or a path of another machine means something else here, or harms somebody.
    """
    return command if host in HERE else f"# on {host}: {command}"


def manual(step: Json, host: str = "") -> str:
    """Return the command a person types to do an undo step by hand; `host` is that of steps which name none."""
    anywhere = step.get("do") in ANYWHERE
    return _command(step) if anywhere else there(str(step.get("host", host)), _command(step))


def _command(step: Json) -> str:
    match step.get("do"):
        case "remove":
            return f"rm -f {shlex.quote(step['path'])}"
        case "signal":
            kill = f"kill -{step['signal']} {step['pid']}"
            return f"kill -0 {step['once_gone']['pid']} || {kill}" if step.get("once_gone") else kill
        case "run":
            return shlex.join(step["argv"])
        case "write":
            return f"printf %s {shlex.quote(step['text'])} > {shlex.quote(step['path'])}"
        case "unrule":
            return shlex.join([*_tables(step), "-D", step["chain"], *step["rule"]])
        case "unchain":
            tables = shlex.join(_tables(step))
            return f"{tables} -F {step['chain']}; {tables} -X {step['chain']}"
        case "node":
            return _node(step)
        case "job":
            return shlex.join(["kubectl", "--namespace", step["namespace"], "delete", "job", step["name"]])
    return f"# {step.get('do')}: {step.get('error', 'see the journal')}"


def _tables(step: Json) -> list[str]:
    """Return the words that begin a command of iptables in the step's namespace."""
    enter = [] if step["netns"] is None else ["nsenter", f"--net=/proc/{step['netns']['pid']}/ns/net"]
    return [*enter, step["iptables"], "-w", "5", "-t", step["table"]]


def _node(step: Json) -> str:
    """Return the commands that put a node back."""
    node = shlex.quote(step["node"])
    back = [f"{key}-" if value is None else f"{key}={value}" for key, value in step["labels"].items()]
    labels = [f"kubectl label --overwrite node {node} {shlex.join(back)}"] if back else []
    marks = [f"kubectl annotate node {node} drills/gpu-reset- drills/gpu-reset-ended-"]
    return "; ".join([*labels, *([f"kubectl uncordon {node}"] if step["cordon"] else []), *marks])
