"""What a fault needs of a target, in words for people. The names are those of the protocols in `drills.model`."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Ability:
    """What the target would have to have, and what helps: whatever the kind of target is, and by kind."""

    words: str
    advice: str = ""
    by_kind: dict[str, str] = field(default_factory=dict)


_HELPER = "name an image in kubernetes.helper"
_ACCOUNT = (
    "name an image and a service account that may get and patch nodes in kubernetes.helper: "
    "at the deadline somebody there must be able to uncordon the node"
)
_ROUTER = "name the addresses that the router sends from in router.addresses"
_LAB_ONLY = "only the lab has them in this version: --target lab"

ABILITIES: dict[str, Ability] = {
    "CanDelete": Ability("a controller that replaces a deleted replica", "use `how: kill-process`"),
    "CanEvict": Ability("disruption budgets that an eviction obeys", "use `how: delete`"),
    "NodeAccess": Ability("access to the processes of the replicas", by_kind={"kubernetes": _HELPER}),
    "HasGpus": Ability("GPUs that nvidia-smi can reset", _LAB_ONLY),
    "HasGpuNodes": Ability("nodes whose GPUs a job can reset", "use `how: crash`", {"kubernetes": _ACCOUNT}),
    "HasUnits": Ability("units that can be stopped and started again", "use `how: crash`"),
    "HasProxies": Ability("ledger proxies in front of the replicas", by_kind={"kubernetes": _HELPER, "hosts": _ROUTER}),
    "HasNetwork": Ability(
        "a network of the replicas that can be shaped", by_kind={"kubernetes": _HELPER, "hosts": _ROUTER}
    ),
}


def lacking(need: str, target: str, kind: str) -> str:
    """Return the refusal of a fault that needs what the target does not have, and what to do."""
    ability = ABILITIES[need]
    advice = ability.by_kind.get(kind, ability.advice)
    what = f"needs {ability.words}, which the target '{target}' of kind {kind} does not have"
    return f"{what}; {advice}" if advice else what
