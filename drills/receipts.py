"""Receipts as text: what is written down before a fault, read again, and typed by hand when all else failed."""

from __future__ import annotations

import json
import shlex
from dataclasses import asdict

from drills.errors import Refused
from drills.model import Context, Json, Receipt, Restored, Target


def to_json(receipt: Receipt) -> Json:
    """Return the receipt as plain data."""
    data: Json = json.loads(json.dumps(asdict(receipt)))
    return data


def from_json(data: Json) -> Receipt:
    """Return the receipt that `to_json` wrote."""
    return Receipt(**{**data, **{k: tuple(data[k]) for k in ("victims", "holds", "undo")}})


def parse(text: str, where: str) -> Receipt:
    """Return the receipt that lies at a target; Refused when it is none: then only a person can tell what to do."""
    try:
        return from_json(json.loads(text))
    except (ValueError, TypeError, KeyError, AttributeError):
        raise Refused(
            f"{where}: is no receipt of this version; look at what its run changed (the journal tells), "
            "put it back by hand, then remove it"
        ) from None


def revert(target: Target, receipt: Receipt, ctx: Context) -> Restored:
    """Undo the receipt at the target and tell the journal what could not be done. The usual `Fault.revert`."""
    restored, manual_commands = target.custody.undo(receipt)
    if manual_commands:
        ctx.tell("undo.failed", {"receipt": receipt.id, "manual": manual_commands})
    return restored


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
