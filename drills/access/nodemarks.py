"""What a drill changes on a node object, and how it is put back: a cordon, labels, and marks that say whose they are.

    python -m drills.access.nodemarks check NODE     whether the pod's own account may put a node back

Pure but for `InCluster`, which speaks to the API server with the token of the pod it runs in: so does the timer in a
helper, when its deadline comes and nobody else has put the node back. Only what still carries our value is changed, in
one patch bound to the version that was read, so it may be repeated, from anywhere. Standard library only.

An undo step is {"node", "run", "cordon": whether it is ours to lift, "labels": {name: the value it had}, "offers": how
many GPUs the node offered, null when it offers none}. The cordon is lifted last, and not before the node offers them
again: what the node says of that is some seconds old, and pods that come too early are refused by it and stay behind.
"""

from __future__ import annotations

import http.client
import json
import os
import ssl
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

Json = dict[str, Any]

#: Annotations. What a run has changed, with the values from before: for people, and for who puts it back.
MARK = "drills/gpu-reset"
#: How a reset ended, written by the job that ran it: its exit status.
ENDED = "drills/gpu-reset-ended"
#: Why a person has to look at the node's GPU; only a person removes it.
HUMAN = "drills/needs-human"

#: How far a reset is, in the mark.
NONE, BEGUN, JUDGED = "none", "begun", "judged"
CONFLICTS = 10
AGAIN_S = 1.0
CALL_TIMEOUT_S = 10.0
UNDO_TIMEOUT_S = 300.0  # longer than a reset that is under way may take
#: A kubelet writes what it offers every ten seconds, so what is read sooner may be from before the pause.
SETTLE_S = 15.0
OFFER_TIMEOUT_S = 120.0
GPU = "nvidia.com/gpu"
ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class Busy(Exception):
    """A reset is under way on the node."""


class Problem(Exception):
    """What could not be put back, or asked, in a sentence."""

    def __init__(self, text: str, *, again: bool = False, conflict: bool = False, gone: bool = False) -> None:
        super().__init__(text)
        self.again, self.conflict, self.gone = again, conflict, gone


class Nodes(Protocol):
    """Reads and changes node objects; raises Problem."""

    def get(self, node: str) -> Json:
        """Return the node."""

    def patch(self, node: str, body: Json) -> None:
        """Merge `body` into the node; a resourceVersion in it that is not the node's is a conflict."""


# ---- what is written, and what it means ------------------------------------------------------------------


def paused(run: str) -> str:
    """Return the value a label has while that run has paused what it names."""
    return f"paused-for-drill-{run}"


def annotations_of(node: Json) -> dict[str, str]:
    """Return the node's annotations."""
    return (node.get("metadata") or {}).get("annotations") or {}


def labels_of(node: Json) -> dict[str, str]:
    """Return the node's labels."""
    return (node.get("metadata") or {}).get("labels") or {}


def offered(node: Json) -> int | None:
    """Return how many GPUs the node says that it offers; None when it offers none of the kind."""
    said = str(((node.get("status") or {}).get("allocatable") or {}).get(GPU))
    return int(said) if said.isdigit() else None


def mark_of(node: Json) -> Json:
    """Return what the mark says; nothing when there is none, an unknown run when it cannot be read."""
    return parsed(annotations_of(node).get(MARK))


def parsed(text: str | None) -> Json:
    """Return what the text of a mark says."""
    if text is None:
        return {}
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    return found if isinstance(found, dict) and isinstance(found.get("run"), str) else {"run": "?"}


def marked(step: Json, *, reset: str = NONE) -> str:
    """Return the mark of a run: what it changes, and how far its reset is."""
    return json.dumps({key: step[key] for key in ("run", "cordon", "labels")} | {"reset": reset}, sort_keys=True)


def put_on(node: Json, step: Json) -> Json:
    """Return the patch that marks a node, and cordons it unless it is cordoned already."""
    body = _patch(node, {"annotations": {MARK: marked(step)}})
    return body | ({"spec": {"unschedulable": True}} if step["cordon"] else {})


def pause(node: Json, step: Json) -> Json:
    """Return the patch that pauses what the labels name; one that has changed since it was looked at stays."""
    same = {name: paused(step["run"]) for name, prior in step["labels"].items() if labels_of(node).get(name) == prior}
    return _patch(node, {"labels": same} if same else {})


def progress(node: Json, step: Json, reset: str, human: str | None = None) -> Json:
    """Return the patch that notes how far the reset is, and why a person has to look; how an earlier one ended goes.

    Raises Problem when the node is not ours to work on any more: somebody has put it back. That a person has to look
    is noted all the same, and closes the node again.
    """
    name, whose = step["node"], mark_of(node).get("run")
    told: Json = {MARK: marked(step, reset=reset), ENDED: None} | ({HUMAN: human} if human else {})
    if human and whose not in (None, step["run"]):
        return _patch(node, {"annotations": {HUMAN: human}})
    closed = bool((node.get("spec") or {}).get("unschedulable"))
    if human:
        close = step["cordon"] and not closed
        return _patch(node, {"annotations": told}) | ({"spec": {"unschedulable": True}} if close else {})
    if whose != step["run"] or (reset == BEGUN and not closed):
        raise Problem(f"node {name}: its mark or its cordon is gone: somebody has put it back meanwhile")
    return _patch(node, {"annotations": told})


def unpause(node: Json, step: Json) -> Json | None:
    """Return the patch that gives labels their values back where they still carry ours; None: there is none."""
    ours = paused(step["run"])
    back = {name: prior for name, prior in step["labels"].items() if labels_of(node).get(name) == ours}
    return _patch(node, {"labels": back}) if back else None


def put_back(node: Json, step: Json) -> tuple[Json | None, str | None]:
    """Return the patch that puts a node back (None: nothing of that run is left there), and what still keeps it.

    Raises Busy while a reset has begun of which nobody knows the end.
    """
    if mark_of(node).get("run") != step["run"]:
        return unpause(node, step), None
    why = _kept(node, step)
    meta: Json = {"annotations": {} if why else {MARK: None, ENDED: None}}
    if (labels_back := unpause(node, step)) is not None:
        meta["labels"] = labels_back["metadata"]["labels"]
    if why:
        return (_patch(node, meta) if "labels" in meta else None), why
    return _patch(node, meta) | ({"spec": {"unschedulable": None}} if step["cordon"] else {}), None


def _kept(node: Json, step: Json) -> str | None:
    """Say why the node must stay cordoned; None when it need not. Raises Busy."""
    said, name = annotations_of(node), step["node"]
    if HUMAN in said:
        lift = f"kubectl annotate node {name} {HUMAN}-"
        return f"node {name} stays cordoned: {said[HUMAN]}; when it is well: {lift}, then `drill recover`"
    if mark_of(node).get("reset") != BEGUN or said.get(ENDED) == "0":
        return None
    if ENDED not in said:
        raise Busy
    return f"node {name} stays cordoned: its reset ended with status {said[ENDED]}, not judged yet: `drill recover`"


def _patch(node: Json, meta: Json) -> Json:
    return {"metadata": {**meta, "resourceVersion": node["metadata"]["resourceVersion"]}}


# ---- carrying it out -------------------------------------------------------------------------------------


def change(nodes: Nodes, name: str, body_of: Callable[[Json], Json | None]) -> Json:
    """Change a node by what `body_of` makes of it, again when somebody else was quicker; returns it as it was read."""
    for _ in range(CONFLICTS):
        node = nodes.get(name)
        body = body_of(node)
        try:
            if body is not None:
                nodes.patch(name, body)
        except Problem as problem:
            if not problem.conflict:
                raise
        else:
            return node
    raise Problem(f"node {name}: is changed by others all the time", again=True)


@dataclass(frozen=True)
class Clock:
    """How time passes for whoever waits here."""

    sleep: Callable[[float], None] = time.sleep
    mono: Callable[[], float] = time.monotonic


def undo(nodes: Nodes, step: Json, *, wait_s: float, clock: Clock, settled: bool = False) -> str:
    """Put a node back; returns what still keeps it, "" when nothing does. A server that is away is asked again.

    A node that is gone has nothing to put back.

    `settled`: what watches the GPUs is back already, and the node is known to offer them.
    """
    deadline, kept = clock.mono() + wait_s, [""]

    def body(node: Json) -> Json | None:
        patch, why = put_back(node, step)
        kept[0] = why or ""
        return patch

    while True:
        try:
            if not settled:
                _offer_again(nodes, step, clock)
            change(nodes, step["node"], body)
        except Busy:
            why = f"node {step['node']} stays cordoned: nobody knows how its reset ended: `drill recover`"
        except Problem as problem:
            if problem.gone or not problem.again:
                return "" if problem.gone else str(problem)
            why = str(problem)
        else:
            return kept[0]
        if clock.mono() >= deadline:
            with suppress(Problem):  # what watches the GPUs need not wait for a person
                change(nodes, step["node"], lambda node: unpause(node, step))
            return why
        clock.sleep(AGAIN_S)


def _offer_again(nodes: Nodes, step: Json, clock: Clock) -> None:
    """Let what watches the GPUs come back to a node that is still marked, and wait until it offers its GPUs.

    Raises Busy while a reset is under way: then nobody may come back.
    """
    opens = [False]

    def first(node: Json) -> Json | None:
        opens[0] = mark_of(node).get("run") == step["run"] and _kept(node, step) is None
        return unpause(node, step)

    change(nodes, step["node"], first)
    if opens[0] and step["labels"]:
        wait_for_offer(nodes, step, clock)


def wait_for_offer(nodes: Nodes, step: Json, clock: Clock, stopping: Callable[[], bool] = lambda: False) -> int | None:
    """Wait, bounded, until a node offers as many GPUs as before and means it; returns how many it offers."""
    began = clock.mono()
    while True:
        now = offered(nodes.get(step["node"]))
        waited_s = clock.mono() - began
        again = waited_s >= SETTLE_S and now == step.get("offers")
        if again or stopping() or step.get("offers") is None or waited_s >= OFFER_TIMEOUT_S:
            return now
        clock.sleep(AGAIN_S)


class InCluster:
    """Implements Nodes with the account of the pod that this runs in."""

    def __init__(self) -> None:
        host, port = os.environ.get("KUBERNETES_SERVICE_HOST", ""), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
        self._server = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"

    def get(self, node: str) -> Json:
        """Return the node."""
        return self._call("GET", f"/api/v1/nodes/{node}")

    def patch(self, node: str, body: Json) -> None:
        """Merge `body` into the node."""
        self._call("PATCH", f"/api/v1/nodes/{node}", body, "application/merge-patch+json")

    def may_patch(self, node: str) -> bool:
        """Whether the account may change that node."""
        wanted = {"verb": "patch", "group": "", "resource": "nodes", "name": node}
        body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview"}
        asked = {**body, "spec": {"resourceAttributes": wanted}}
        said = self._call("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", asked)
        return bool((said.get("status") or {}).get("allowed"))

    def _call(self, method: str, path: str, body: Json | None = None, kind: str = "application/json") -> Json:
        what = f"{method} {path}"
        try:
            token = (ACCOUNT / "token").read_text().strip()
            trust = ssl.create_default_context(cafile=str(ACCOUNT / "ca.crt"))
        except OSError as error:
            raise Problem(f"{what}: this pod has no account of the API ({error.strerror})") from None
        request = urllib.request.Request(self._server + path, method=method)  # noqa: S310 - https, by construction
        request.add_header("Authorization", f"Bearer {token}")
        if body is not None:
            request.data = json.dumps(body).encode()
            request.add_header("Content-Type", kind)
        handlers = urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=trust)
        opener = urllib.request.build_opener(*handlers)
        try:
            with opener.open(request, timeout=CALL_TIMEOUT_S) as response:
                return dict(json.load(response))
        except urllib.error.HTTPError as error:
            again = error.code in (401, 429, 500, 502, 503, 504)  # 401: a token that is being renewed
            conflict, gone = error.code == 409, error.code == 404
            raise Problem(f"{what}: HTTP {error.code}", again=again, conflict=conflict, gone=gone) from None
        except (OSError, ValueError, http.client.HTTPException) as error:  # the last: an answer that was cut short
            why = getattr(error, "reason", error)
            raise Problem(f"{what}: the API server does not answer ({type(why).__name__})", again=True) from None


def undo_here(step: Json) -> str | None:
    """Put a node back from a pod on it; returns what could not be. Used by the on-target timer."""
    wait_s = float(step.get("timeout_s", UNDO_TIMEOUT_S))
    return undo(InCluster(), step, wait_s=wait_s, clock=Clock()) or None


def main(argv: list[str]) -> int:
    """Say on stderr why the pod's account cannot put that node back; status 0 when it can."""
    [_, node] = argv
    nodes = InCluster()
    try:
        nodes.get(node)
        may = nodes.may_patch(node)
    except Problem as problem:
        print(problem, file=sys.stderr)
        return 1
    if not may:
        print("may not patch nodes", file=sys.stderr)
    return 0 if may else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
