"""`alerts.mode: observe`: the alerts that a drill expects are silenced for its victims, and nothing else is.

A silence is put on beside the fault (`drills.beside`), right before it, and expired after the run. Its receipt lies at
the target as any other. Alertmanager is its own timer: a silence ends at the time that it was made with, whether or
not anybody is left to end it. Which silences are ours says their author, for their ids are Alertmanager's to give.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Final, Self

from drills.clock import Clock, utc
from drills.errors import DrillError, Refused, Unreachable
from drills.faults.common import pinned
from drills.model import Context, Json, Observation, Receipt, Replica, Restored, Target
from drills.params import Params
from drills.probes.http import ProbeError
from drills.probes.prometheus import Alertmanager, alertmanager_of

OPEN: Final = ("active", "pending")
#: Labels of a replica that hold its other names: what an alert calls a pod.
OTHER_NAMES: Final = ("drills/pod",)


class Silence:
    """Silences in Alertmanager, one for each expected alert. Reverted, they are expired."""

    name: ClassVar[str] = "alert-silence"
    held: ClassVar[bool] = True
    effect: ClassVar[bool] = False

    class Params(Params):
        """silences: the matchers of each, as Alertmanager takes them."""

        silences: tuple[tuple[dict[str, Any], ...], ...]

    def __init__(self, params: Params, kind: str) -> None:
        self.params, self.kind = params, kind

    @classmethod
    def of(cls, plan: Json, target: Target, victims: Sequence[Replica]) -> Self | None:
        """Return the silences that a plan asks for; None when alerts page, or when none is expected. Raises Refused."""
        alerts = plan["target"].get("alerts") or {}
        if alerts.get("mode") != "observe" or not (expected := expected_alerts(plan)):
            return None
        made = [matchers(name, {**labels, **(alerts.get("labels") or {})}, victims) for name, labels in expected]
        unique = [one for number, one in enumerate(made) if one not in made[:number]]
        return cls(cls.Params(silences=tuple(map(tuple, unique))), target.kind)

    def needs(self) -> frozenset[str]:
        """Return nothing: Alertmanager is asked for in `preflight`."""
        return frozenset()

    def preflight(self, target: Target, victims: Sequence[Replica]) -> list[str]:  # noqa: ARG002 - of the protocol
        """Return why nothing could be silenced."""
        manager = alertmanager_of(target)
        if manager is None:
            return ["alerts.mode observe: there is no Alertmanager to silence: name it in the target, or page"]
        try:
            manager.silences()
        except ProbeError as error:
            return [
                f"alerts.mode observe: Alertmanager {manager.url} cannot be asked ({error}), so nothing is silenced"
            ]
        return []

    def aim(self, target: Target, victims: Sequence[Replica], *, run: str, receipt: str, deadline_s: float) -> Receipt:
        """Name what will be silenced, where, and until when at most."""
        manager = _manager(target)
        return Receipt(
            id=receipt,
            run=run,
            fault=self.name,
            target=target.name,
            host="alertmanager",
            victims=tuple(pinned(v) for v in victims),
            prior={"alertmanager": manager.url, "ends_wall": Clock().wall() + deadline_s},
            holds=(),
            undo=(),
            deadline_s=deadline_s,
            params=self.params.model_dump(mode="json"),
        )

    def inject(self, target: Target, receipt: Receipt, ctx: Context) -> None:
        """Create the silences. Refused when one cannot be created: then somebody would be paged."""
        manager, now = _manager(target), Clock().wall()
        for number, wanted in enumerate(self.params.silences):
            body = {
                "matchers": list(wanted),
                "startsAt": utc(now),
                "endsAt": utc(receipt.prior["ends_wall"]),
                "createdBy": author(receipt),
                "comment": f"expected by a drill on {receipt.target}; expired when it ends, receipt {receipt.id}",
            }
            try:
                made = manager.silence(body)
            except ProbeError as error:
                raise Refused(f"alertmanager {manager.url}: no silence could be created ({error})") from None
            said = {"receipt": receipt.id, "step": f"silence.{number}", "ok": True, "silence": made}
            ctx.tell("inject.step", said | {"matchers": words(wanted), "until": body["endsAt"]})

    def observe(self, target: Target, receipt: Receipt, ctx: Context) -> Observation:  # noqa: ARG002
        """Say which silences of this receipt are active."""
        there = _ours(_manager(target), receipt)
        active = [one for one in there if one["status"]["state"] == "active"]
        evidence = [
            {"what": "silence", "id": one["id"], "state": one["status"]["state"], "until": one["endsAt"]}
            for one in there
        ]
        on = len(active) == len(self.params.silences) if active else False
        return Observation(on, tuple(evidence or [{"what": "silence", "active": False}]), bystanders_ok=True)

    def revert(self, target: Target, receipt: Receipt, ctx: Context) -> Restored:  # noqa: ARG002
        """Expire them, whoever made them for this receipt. Raises Unreachable while Alertmanager cannot be asked."""
        manager = _manager(target)
        if manager.url != receipt.prior.get("alertmanager"):
            raise DrillError(
                f"the silences are at {receipt.prior.get('alertmanager')}, and the target names {manager.url}; "
                f"they end by themselves at {_end(receipt)}; by hand: {by_hand(receipt)}"
            )
        for one in _ours(manager, receipt):
            if one["status"]["state"] in OPEN:
                _asked(receipt, lambda silence=str(one["id"]): manager.expire(silence))
        left = [one for one in _ours(manager, receipt) if one["status"]["state"] in OPEN]
        return Restored.DIRTY if left else Restored.CLEAN


# ---- what is expected --------------------------------------------------------------------------------


def expected_alerts(plan: Json) -> list[tuple[str, Mapping[str, str]]]:
    """Return name and labels of each alert that a check of the plan waits for."""
    items = (item for item in plan["experiment"]["checks"] if item["check"] == "alert")
    return [(str(item["params"]["name"]), item["params"].get("labels") or {}) for item in items]


def matchers(alert: str, labels: Mapping[str, str], victims: Iterable[Replica]) -> list[Json]:
    """Return what matches that alert with these labels; in them {victim} and {gpu} stand for what is hit.

    Refused when one stands for nobody: matched by nothing, an alert of others without that label would be silenced.
    """
    hit = list(victims)
    stand_for = {
        "{victim}": [
            name for v in hit for name in (v.name, *(v.labels[key] for key in OTHER_NAMES if key in v.labels))
        ],
        "{gpu}": [gpu for v in hit for gpu in v.gpus],
    }
    found = [_matcher("alertname", [alert])]
    for key, value in sorted(labels.items()):
        names = [name for name in stand_for.get(value, [value]) if name or value not in stand_for]
        if not names:
            raise Refused(
                f"alerts.mode observe: {alert}: {key}: {value} stands for nobody here, so no silence could mean the "
                "victim alone: name it by another label, or page"
            )
        found.append(_matcher(key, names))
    return found


def _matcher(name: str, values: Sequence[str]) -> Json:
    if len(values) == 1:
        return {"name": name, "value": values[0], "isRegex": False, "isEqual": True}
    return {"name": name, "value": "|".join(map(re.escape, values)), "isRegex": True, "isEqual": True}


def words(wanted: Iterable[Mapping[str, Any]]) -> str:
    """Return matchers as `amtool` writes them."""
    return ", ".join(f'{m["name"]}{"=~" if m["isRegex"] else "="}"{m["value"]}"' for m in wanted)


# ---- which are ours ----------------------------------------------------------------------------------


def author(receipt: Receipt) -> str:
    """Return who made the silences of a receipt: a run makes them once."""
    return f"drill run {receipt.run}"


def by_hand(receipt: Receipt) -> str:
    """Return the command that expires them."""
    amtool = f"amtool --alertmanager.url={receipt.prior.get('alertmanager')} silence"
    return f"{amtool} expire $({amtool} query -q --created-by='{author(receipt)}')"


def _manager(target: Target) -> Alertmanager:
    manager = alertmanager_of(target)
    if manager is None:
        raise Refused(f"target {target.name}: names no Alertmanager, in which its alerts could be silenced")
    return manager


def _ours(manager: Alertmanager, receipt: Receipt) -> list[Json]:
    found = _asked(receipt, manager.silences)
    return [one for one in found if one.get("createdBy") == author(receipt)]


def _asked(receipt: Receipt, ask: Any) -> Any:
    try:
        return ask()
    except ProbeError as error:
        url = receipt.prior.get("alertmanager")
        raise Unreachable(
            f"alertmanager {url}: {error}; the silences end by themselves at {_end(receipt)}; "
            f"by hand: {by_hand(receipt)}"
        ) from None


def _end(receipt: Receipt) -> str:
    ends = receipt.prior.get("ends_wall")
    return utc(float(ends)) if isinstance(ends, int | float) else "an unknown time"
