"""A node as the driver changes it: cordon, pause, and all of it back, by patches that `drills.access.nodemarks` makes.

Undo steps of the API are carried out here, by the driver or `drill recover`; the step of the node also by the timer in
the helper, with the helper's own account.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from drills.access import nodemarks
from drills.access.kubernetes import Api
from drills.access.kubetypes import NODES, ClusterAway, ClusterError
from drills.access.nodemarks import Problem
from drills.cluster import resetjob
from drills.errors import DrillError, Unreachable
from drills.model import Json

#: Undo steps that are no node's own.
STEPS: Final = ("node", "job")
RESET_ENDS_S: Final = 200.0  # a reset that is under way is waited for; its job has a deadline of its own
POLL_S: Final = 1.0


class NodeObjects:
    """Implements `nodemarks.Nodes` with the driver's credentials."""

    def __init__(self, api: Api) -> None:
        self._api = api

    def get(self, node: str) -> Json:
        """Return the node."""
        try:
            return self._api.get(NODES, None, node)
        except ClusterError as error:
            raise _problem(error) from error

    def patch(self, node: str, body: Json) -> None:
        """Merge `body` into the node."""
        try:
            self._api.patch(NODES, None, node, body)
        except ClusterError as error:
            raise _problem(error) from error

    def change(self, node: str, body_of: Callable[[Json], Json | None]) -> Json:
        """Change a node by what `body_of` makes of it; returns it as it was. Raises DrillError."""
        try:
            return nodemarks.change(self, node, body_of)
        except Problem as problem:
            raise _error(problem) from None


def carry_out(api: Api, step: Json) -> str | None:
    """Carry out one undo step of the API; returns what could not be done. Raises Unreachable."""
    try:
        return _job(api, step["namespace"], step["name"]) if step["do"] == "job" else _node(api, step)
    except Unreachable:
        raise
    except DrillError as error:
        return str(error)


def _job(api: Api, namespace: str, name: str) -> str | None:
    """Take the job away, once it is over: it is waited for, and never ended."""
    deadline = api.clock.mono() + RESET_ENDS_S
    while (found := resetjob.look(api, namespace, name)) is not None and found["active"]:
        if api.clock.mono() > deadline:
            return f"job {name}: the reset is still under way after {RESET_ENDS_S:.0f} s"
        api.clock.sleep(POLL_S)
    if found is not None:
        resetjob.remove(api, namespace, name)
    return None


def _node(api: Api, step: Json) -> str | None:
    nodes = NodeObjects(api)
    clock = nodemarks.Clock(api.clock.sleep, api.clock.mono)
    return nodemarks.undo(nodes, step, wait_s=0.0, clock=clock) or None


def _problem(error: ClusterError) -> Problem:
    """Return the problem that it is; a server that is away is no problem of the node (Unreachable)."""
    if isinstance(error, ClusterAway):
        raise error
    return Problem(str(error), conflict=error.status == 409, gone=error.status == 404)


def _error(problem: Problem) -> DrillError:
    return problem.__cause__ if isinstance(problem.__cause__, DrillError) else DrillError(str(problem))
