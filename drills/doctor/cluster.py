"""What only a service in a cluster needs: credentials, rights, pods that may die, helpers; the client cannot write."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import urllib3

from drills import lock
from drills.access.kubernetes import Api
from drills.clock import Clock, utc
from drills.cluster.custody import ClusterCustody
from drills.cluster.target import KubernetesTarget
from drills.custody import LockUnreadable
from drills.doctor import clock, cluster_helper, cluster_pods, cluster_rights
from drills.doctor.finding import Finding, State, missing, ok, unknown
from drills.doctor.wanted import Wanted
from drills.errors import DrillError
from drills.model import Target
from drills.probes.http import ProbeError, reason
from drills.target import TargetSpec

GROUP: Final = "cluster"
VERSION_TIMEOUT_S: Final = 5.0
Examined = tuple[list[Finding], Target | None]


@contextmanager
def examined(
    spec: TargetSpec, wanted: Wanted, api: Api, keeper: ClusterCustody, connect: Callable[[], KubernetesTarget]
) -> Iterator[Examined]:
    """Look at the cluster; yields what was found, and the target if it can be looked at."""
    found: list[Finding] = []
    target: KubernetesTarget | None = None
    try:
        found.append(_server(api))
        if found[0].state is State.OK:  # whatever else is not well, the rest can be looked at
            found.append(clock.judged("API server", lambda: clock.date(_date(api)), clock.DATE_STEP_S))
            found += cluster_rights.look(api, spec, wanted)
            found += _custody(keeper)
            target = _target(connect, found)
            found += cluster_pods.look(api, spec, wanted)
            found += cluster_helper.look(api, spec, wanted)
        yield found, target
    finally:
        if target is not None:
            target.close()
        api.close()


def _server(api: Api) -> Finding:
    """Return whether the server takes us."""
    try:
        version, who = api.version().get("gitVersion"), api.who()
    except DrillError as error:
        return missing(GROUP, "API server", str(error), "kubectl auth whoami", refuses=True)
    return ok(GROUP, "API server", f"{api.server} ({version}) takes us for {who or 'somebody'}")


def _date(api: Api) -> str | None:
    try:
        answer = api.http().request("GET", f"{api.server}/version", timeout=urllib3.Timeout(total=VERSION_TIMEOUT_S))
    except urllib3.exceptions.HTTPError as error:
        raise ProbeError(reason(error)) from None
    return answer.headers.get("Date")


def _custody(keeper: ClusterCustody) -> Iterator[Finding]:
    """Yield whether somebody drills it, or has left something. Timers are not asked: that takes commands on nodes."""
    try:
        held, (good, bad) = keeper.lock.held(), keeper.receipts.found()
    except LockUnreadable as error:
        yield missing("custody", "lock", str(error), refuses=True)
        return
    except DrillError as error:
        yield unknown("custody", "lock", str(error), refuses=True)
        return
    if held is not None and not lock.dead(held, Clock()):
        what = f"run {held.run} of {held.owner} drills since {utc(held.taken_wall)}"
        yield missing("custody", "lock", what, f"wait for it, or: drill stop {held.run}", refuses=True)
    elif good or bad or held is not None:
        what = "an earlier run was cut short" + (" and is not put back" if good or bad else "")
        yield missing("custody", "leftovers", what, f"drill recover --target {keeper.target}", refuses=True)
    else:
        yield ok("custody", "lock", "nobody drills it, and nothing is to be put back")


def _target(connect: Callable[[], KubernetesTarget], found: list[Finding]) -> KubernetesTarget | None:
    try:
        return connect()
    except DrillError as error:
        found.append(missing("service", "pods", str(error), refuses=True))
        return None
