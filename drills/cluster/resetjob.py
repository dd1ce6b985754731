"""The job that resets a GPU: one pod on its node, never a second one, with an end of its own.

Its object is the note that a reset was begun: it is made once, and a reset is never begun again by itself. What became
of it is in the termination message of its pod.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Final

from drills.access.kubernetes import Api
from drills.access.kubetypes import PODS, ClusterAway, ClusterError, Resource
from drills.cluster.helpers import BY_ITSELF, ROLE, RUN
from drills.errors import Refused
from drills.model import Json
from drills.targetfile import Helper

JOBS: Final = Resource("batch", "v1", "jobs")
CONTAINER: Final = "reset"
NAME_LABEL: Final = "batch.kubernetes.io/job-name"
START_S: Final = 60  # for its image and its start, on top of what the reset may take


def manifest(
    name: str, node: str, command: Sequence[str], helper: Helper, *, run: str, limit_s: float, labels: Mapping[str, str]
) -> Json:
    """Return the job. Its pod goes to the node past the scheduler, and gets no GPU of its own."""
    container = {
        "name": CONTAINER,
        "image": helper.image,
        "command": ["python3", "-m", "drills.access.resetrun", node, f"{limit_s:g}", *command],
        "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}],
        "securityContext": {"privileged": True, "runAsUser": 0},
        "resources": {"requests": {"cpu": "10m", "memory": "64Mi"}},
    }
    spec: Json = {
        "nodeName": node,
        "hostPID": True,  # the node's own nvidia-smi is run, as its first process would
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 5,
        "serviceAccountName": helper.service_account,
        "enableServiceLinks": False,
        "tolerations": [{"operator": "Exists"}],
        "containers": [container],
    }
    if helper.pull_secret:
        spec["imagePullSecrets"] = [{"name": helper.pull_secret}]
    marks = {**labels, ROLE: CONTAINER, RUN: run}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "labels": marks},
        "spec": {
            "backoffLimit": 0,
            "completions": 1,
            "parallelism": 1,
            "activeDeadlineSeconds": int(limit_s) + START_S,
            # a container of a mesh would outlive the reset, and the job would never be over
            "template": {
                "metadata": {"labels": {**marks, **BY_ITSELF}, "annotations": dict(BY_ITSELF)},
                "spec": spec,
            },
        },
    }


def begin(api: Api, namespace: str, body: Json) -> None:
    """Make the job. Refused when there is one by that name already: that reset was begun before."""
    name = body["metadata"]["name"]
    try:
        api.create(JOBS, namespace, body)
    except ClusterAway:  # nobody knows whether it was made
        if api.find(JOBS, namespace, name) is None:
            raise
    except ClusterError as error:
        if error.status == 409:
            raise Refused(f"job {name}: this reset was begun before; it is never repeated") from None
        raise


def look(api: Api, namespace: str, name: str) -> Json | None:
    """Return {active, rc, text, began_s, ended_s} of a reset, None when it was not begun.

    `rc` is None while it goes on, and for ever when its pod ended without a word.
    """
    job = api.find(JOBS, namespace, name)
    if job is None:
        return None
    found, _ = api.list_all(PODS, namespace, labels=f"{NAME_LABEL}={name}", keep=_message)
    said = next((message for message in found if message), {})
    conditions = (job.get("status") or {}).get("conditions") or ()
    over = any(c.get("type") in ("Complete", "Failed") and c.get("status") == "True" for c in conditions)
    why = next((str(c.get("message")) for c in conditions if c.get("type") == "Failed"), "")
    empty: Json = {"rc": None, "text": why, "began_s": None, "ended_s": None}
    return {"active": not (over or said), **empty, **said}


def remove(api: Api, namespace: str, name: str) -> None:
    """Take the job and its pod away; one that is not there is no error."""
    try:
        api.delete(JOBS, namespace, name, {"propagationPolicy": "Background"})
    except ClusterAway:
        if api.find(JOBS, namespace, name) is not None:
            raise
    except ClusterError as error:
        if error.status != 404:
            raise


def _message(pod: Json) -> Json:
    """Return what the pod's container said at its end."""
    for one in (pod.get("status") or {}).get("containerStatuses") or ():
        text = ((one.get("state") or {}).get("terminated") or {}).get("message")
        try:
            said = json.loads(text or "")
        except ValueError:
            continue
        if isinstance(said, dict) and isinstance(said.get("rc"), int):
            return {key: said.get(key) for key in ("rc", "text", "began_s", "ended_s")}
    return {}
