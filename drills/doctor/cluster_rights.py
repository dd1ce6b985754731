"""The rights of the chosen drills, each asked by a review of access; and who has to be given what is missing."""

from __future__ import annotations

from collections.abc import Iterator

from drills.access import kubeconfig
from drills.access.kubernetes import Api
from drills.access.kubetypes import Right
from drills.cluster import rights
from drills.doctor.finding import Finding, missing, ok, unknown
from drills.doctor.wanted import Wanted
from drills.errors import DrillError
from drills.target import TargetSpec

GROUP = "rights"
ACCOUNT = "system:serviceaccount:"


def look(api: Api, spec: TargetSpec, wanted: Wanted) -> Iterator[Finding]:
    """Yield each right that is missing, or that all are there."""
    assert spec.kubernetes is not None
    where = spec.kubernetes
    proxy = where.reach == "proxy" or (where.reach == "auto" and not kubeconfig.in_cluster())
    needed: dict[Right, list[str]] = {}
    for one in wanted.drills:
        for right in rights.needed(one.faults, proxy=proxy, ledger=where.ledger):
            needed.setdefault(right, []).append(one.name)
    try:
        lacking, who = rights.missing(api, where.namespace, sorted(needed)), api.who()
    except DrillError as error:
        yield unknown(GROUP, "review", str(error), "kubectl auth can-i --list", refuses=True)
        return
    for right in lacking:
        verb, _, resource = right
        whose = needed[right]
        said = "every drill" if len(whose) == len(wanted.drills) else ", ".join(whose)
        yield missing(GROUP, f"{verb} {resource}", f"not allowed in {where.namespace}; {said} needs it",
                      *grant(right, where.namespace, who), refuses=True)  # fmt: skip
    if not lacking:
        yield ok(GROUP, "role", f"all {len(needed)} rights that the drills need are granted in {where.namespace}")


def grant(right: Right, namespace: str, who: str) -> tuple[str, ...]:
    """Return the commands that give one right to `who`, for somebody who may."""
    verb, group, resource = right
    plural, _, sub = resource.partition("/")
    kind = (f"{plural}.{group}" if group else plural) + (f"/{sub}" if sub else "")
    name = f"drill-{verb}-{resource.replace('/', '-')}"
    everywhere = rights.everywhere(right)
    role, scope = ("clusterrole", "") if everywhere else ("role", f" -n {namespace}")
    return (
        f"kubectl{scope} create {role} {name} --verb={verb} --resource={kind}",
        f"kubectl{scope} create {role}binding {name} --{role}={name} {subject(who)}",
    )


def subject(who: str) -> str:
    """Return how `kubectl create rolebinding` names somebody."""
    if who.startswith(ACCOUNT):
        return f"--serviceaccount={who.removeprefix(ACCOUNT)}"
    return f"--user={who or 'NAME'}"
