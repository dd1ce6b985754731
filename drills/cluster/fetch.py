"""Brings the reports of a target's CronJob home, through a pod that lives as long as that takes.

The pod is made like the CronJob's: the same image, user and volume, read only. What is here already stays as it is, so
people's notes do, too.
"""

from __future__ import annotations

import os
import secrets
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Final

from drills import runfolder, session
from drills.access import kubeexec
from drills.access.kubernetes import Api, connect
from drills.access.kubetypes import PODS, ClusterError, Resource
from drills.actions import follow
from drills.cluster.helpers import BY_ITSELF, IN_VAIN, progress
from drills.errors import Refused, UsageError
from drills.model import Completed, Json
from drills.options import Options
from drills.report import month as review
from drills.report.digest import MONTH
from drills.report.run import NOTES
from drills.schedule.wanted import name_of

CRONJOBS: Final = Resource("batch", "v1", "cronjobs")
REPORTS: Final = "reports"  # the name of the volume and of what is in it
PLACE: Final = "/reports"
CONTAINER: Final = "fetch"
DRILL: Final = "drill"  # the container of the CronJob
ROLE, FOR = "drills/role", "drills/target"
LIVES_S: Final = 900
READY_TIMEOUT_S: Final = 120.0
GONE_TIMEOUT_S: Final = 30.0
LIST_TIMEOUT_S: Final = 30.0
COPY_TIMEOUT_S: Final = 300.0
POLL_S: Final = 0.5
TAR_END: Final = bytes(1024)
#: Prints a line for each folder that is complete, and each file of a month.
LIST: Final = """\
cd "$0" && for path in runs/*/verdict.json ????-??/*.json; do [ ! -f "$path" ] || echo "$path"; done
for run in runs/*; do [ ! -f "$run/journal.jsonl" ] || [ -f "$run/verdict.json" ] || echo "open $run"; done
"""

Say = Callable[[str], None]


def fetch(options: Options, namespace: str, say: Say) -> None:
    """Copy what is not here yet. Raises Refused or UsageError; whatever happens, the pod is gone afterwards."""
    spec = session.target_spec(options)
    if spec.kubernetes is None:
        raise UsageError(f"target '{spec.name}': is in no cluster, so its reports are on this machine already")
    runfolder.prepare(options.reports / "runs")
    name = name_of(spec.name)
    api = connect(spec.kubernetes.context)
    try:
        job = api.find(CRONJOBS, namespace, name)
        if job is None:
            what = f"there is no CronJob {name} in namespace {namespace}"
            raise Refused(f"cluster {api.name}: {what}; `drill schedule render` makes it, --namespace says where it is")
        with _pod(api, namespace, _manifest(job, name)) as pod:
            _Fetching(api, namespace, pod, options.reports, say).all()
    finally:
        api.close()


def _manifest(job: Json, name: str) -> Json:
    """Return a pod like the CronJob's that waits, and sees its volume."""
    spec: Json = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    drill = _container(spec["containers"], name)
    keep = ("image", "imagePullPolicy", "securityContext")
    container = {key: drill[key] for key in keep if key in drill}
    container |= {
        "name": CONTAINER,
        "command": ["sleep", str(LIVES_S)],
        "resources": {"requests": {"cpu": "10m", "memory": "32Mi"}, "limits": {"memory": "256Mi"}},
        "volumeMounts": [{"name": REPORTS, "mountPath": PLACE, "readOnly": True}],
    }
    kept = ("securityContext", "imagePullSecrets", "nodeSelector", "tolerations")
    pod = {key: spec[key] for key in kept if key in spec}
    pod |= {
        "restartPolicy": "Never",
        "activeDeadlineSeconds": LIVES_S,
        "terminationGracePeriodSeconds": 1,  # it has nothing to put in order
        "automountServiceAccountToken": False,
        "containers": [container],
        "volumes": [one for one in spec["volumes"] if one["name"] == REPORTS],
    }
    labels = {**BY_ITSELF, ROLE: CONTAINER, FOR: name}
    meta = {"name": f"{name}-fetch-{secrets.token_hex(3)}", "labels": labels, "annotations": dict(BY_ITSELF)}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": pod}


def _container(containers: list[Json], cronjob: str) -> Json:
    """Return the one that drills, among those that may have been put beside it. Raises Refused."""
    seeing = [one for one in containers if any(m["name"] == REPORTS for m in one.get("volumeMounts") or ())]
    named = [one for one in seeing if one.get("name") == DRILL]
    if not seeing:
        raise Refused(f"CronJob {cronjob}: no container of it mounts a volume '{REPORTS}'; there is nothing to fetch")
    return (named or seeing)[0]


@contextmanager
def _pod(api: Api, namespace: str, body: Json) -> Iterator[str]:
    """Make the pod and wait until it runs; delete it afterwards, and those that a killed fetch has left."""
    name, label = str(body["metadata"]["name"]), f"{ROLE}={CONTAINER},{FOR}={body['metadata']['labels'][FOR]}"
    ended, _ = api.list_all(PODS, namespace, labels=label, keep=_ended)
    for old in filter(None, ended):
        _delete(api, namespace, old)
    try:
        api.create(PODS, namespace, body)
        _until_running(api, namespace, name)
        yield name
    finally:
        _delete(api, namespace, name)
        _until_gone(api, namespace, name)


def _ended(pod: Json) -> str | None:
    done = (pod.get("status") or {}).get("phase") in ("Failed", "Succeeded")
    return str(pod["metadata"]["name"]) if done else None


def _delete(api: Api, namespace: str, name: str) -> None:
    try:
        api.delete(PODS, namespace, name)
    except ClusterError as error:
        if error.status != 404:
            raise Refused(f"{error}; it ends by itself, then: kubectl -n {namespace} delete pod {name}") from None


def _until_gone(api: Api, namespace: str, name: str) -> None:
    deadline = api.clock.mono() + GONE_TIMEOUT_S
    while api.find(PODS, namespace, name) is not None:
        if api.clock.mono() > deadline:
            raise Refused(f"pod {name} does not end: kubectl -n {namespace} delete pod {name}")
        api.clock.sleep(POLL_S)


def _until_running(api: Api, namespace: str, name: str) -> None:
    deadline, why = api.clock.mono() + READY_TIMEOUT_S, "was not seen"
    while api.clock.mono() < deadline:
        pod = api.find(PODS, namespace, name) or {}
        ready, why = progress(pod, CONTAINER)
        if ready:
            return
        if why in IN_VAIN or _ended(pod or {"metadata": {"name": name}}):
            break
        api.clock.sleep(POLL_S)
    raise Refused(f"namespace {namespace}: the pod {name} that fetches does not start: {why}; nothing was fetched")


class _Fetching:
    """One pod with the reports, and the folder that they come to."""

    def __init__(self, api: Api, namespace: str, pod: str, reports: Path, say: Say) -> None:
        self.api, self.namespace, self.pod, self.reports, self.say = api, namespace, pod, reports, say

    def all(self) -> None:
        """Copy run by run, then the months, and make their reviews again from what is here now."""
        lines = self._run(["sh", "-c", LIST, PLACE], LIST_TIMEOUT_S).out.splitlines()
        runs = [line.removesuffix("/verdict.json") for line in lines if line.startswith("runs/")]
        months = [line for line in lines if MONTH.fullmatch(line.partition("/")[0])]
        new = [run for run in runs if not (self.reports / run / "verdict.json").is_file()]
        for run in new:
            self._copy([run])
            self.say(f"fetched: {self.reports / run}")
        for run in new:  # people's action items are here, whatever the pod that drilled made of its own
            for line in follow.followed(self.reports / run):
                self.say(line)
        if months:
            self._copy(months)
        for month in sorted({path.partition("/")[0] for path in months}):
            self.say(f"review: {review.write(self.reports, month)}")
        for line in lines:
            if line.startswith("open "):
                self.say(f"left there, as it has no verdict yet: {line.removeprefix('open ')}")
        self.say(f"{len(new)} of {len(runs)} runs fetched, the others were here already")

    def _copy(self, paths: list[str]) -> None:
        """Copy folders or files: each is here whole, or not at all."""
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=self.reports) as made:
            there = Path(made)
            with (there / "tar").open("w+b") as file:
                self._run(["tar", "-C", PLACE, "-cf", "-", *paths], COPY_TIMEOUT_S, file.write)
                try:
                    _whole(file)
                    with tarfile.open(fileobj=file) as tar:
                        tar.extractall(there / "out", filter="data")
                except (tarfile.TarError, OSError) as error:
                    raise Refused(f"pod {self.pod}: {paths[0]}: did not come whole: {error}; fetch again") from None
            for path in paths:
                _settle(there / "out" / path, self.reports / path)

    def _run(self, argv: list[str], timeout_s: float, sink: Callable[[bytes], Any] | None = None) -> Completed:
        done = kubeexec.run(self.api, self.namespace, self.pod, CONTAINER, argv, timeout_s=timeout_s, sink=sink)
        if done.rc != 0:
            why = "did not end in time" if done.timed_out else self.api.clean(done.err) or f"ended with {done.rc}"
            raise Refused(f"pod {self.pod} in {self.namespace}: {argv[0]}: {why}; fetch again")
        return done


def _whole(file: BinaryIO) -> None:
    """Refuse an archive without its end, which would be read as a shorter one; then go to its beginning."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - len(TAR_END)))
    if file.read() != TAR_END:
        raise tarfile.ReadError("its end is missing")
    file.seek(0)


def _settle(new: Path, place: Path) -> None:
    """Move it to its place; people's notes that are there stay."""
    place.parent.mkdir(parents=True, exist_ok=True)
    if place.is_dir():
        if (place / NOTES).is_file():
            shutil.copy2(place / NOTES, new / NOTES)
        shutil.rmtree(place)
    new.replace(place)
