"""What `drill schedule render` gives, on a real cluster: the API server takes it, and a Job of its CronJob drills."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from drills.model import Json
from tests.cluster import build, conftest, layout
from tests.cluster.emulator import Emulator
from tests.cluster.kube import Namespace
from tests.cluster.test_pod_kill import service, shared
from tests.lab.drilling import Driller, Ran

__all__ = ["service", "shared"]  # fixtures

OVERLAY = Path(__file__).parent / "overlays" / "schedule"
EXPERIMENT = (Path(__file__).parent / "experiments" / "node-fault.yaml").read_text()
IMAGE = "drills:dev"  # the overlay says which one that is here
KUBECTL_TIMEOUT_S, JOB_TIMEOUT_S = 90.0, 1500.0
#: Name, fault and check of each drill.
DRILLS = {
    "packet-loss": ("packet-loss: {victims: 1, mode: reject, ports: [8080]}", "failover: {within: 10s}"),
    "pod-kill": ("pod-kill: {victims: 1, how: delete}", "replica_restart: {within: 60s, by: controller}"),
}


class Scheduled:
    """A target with its drills as a user has them in a folder, and the namespace of their schedule."""

    def __init__(self, folder: Path, kubeconfig: Path, service: Emulator) -> None:
        self.folder, self.kubeconfig, self.service = folder, kubeconfig, service
        self.namespace = Namespace(f"{service.namespace.name}-drills", kubeconfig, service.namespace.api)
        self.volume = folder / "volume"
        self.drill = Driller(folder / "lab", folder / "home", 0, timeout_s=300.0)
        self.drill.env["KUBECONFIG"] = str(kubeconfig)
        self.volume.mkdir()
        (folder / "experiments").mkdir()
        for name, (fault, check) in DRILLS.items():
            text = EXPERIMENT.replace("cluster-node-fault", name).replace("FAULT", fault).replace("CHECKS", check)
            (folder / "experiments" / f"{name}.yaml").write_text(text)
        (folder / "drill.yaml").write_text(self.target())

    def target(self) -> str:
        where = f'namespace: {self.service.namespace.name}, selector: "app=vllm", container: vllm, port: 8000'
        router = self.service.router
        return f"""\
targets:
  prod:
    endpoint: {{url: {router}/v1, model: lab-chat}}
    sla: {{ttft: {{p99: 2s}}, e2e: {{p99: 12s}}, max_gap: {{p99: 4s}}, errors: 5%}}
    kubernetes: {{{where}, helper: {{image: "drills.test/drills:dev"}}}}
    router: {{kind: vllm-router, metrics: {router}:29000/metrics, selector: app=router}}
    limits: {{allow_route_faults: true}}
"""

    def __call__(self, *words: str) -> Ran:
        """Run `drill` in the folder."""
        return self.drill(*words, cwd=self.folder)

    def render(self) -> str:
        ran = self("schedule", "render", *DRILLS, "--image", IMAGE, "--namespace", self.namespace.name)
        assert ran.code == 0, ran.err
        return ran.out

    def overlaid(self) -> str:
        """Return what the overlay makes of what is rendered."""
        place = self.folder / "overlay"
        shutil.copytree(OVERLAY, place)
        (place / "rendered.yaml").write_text(self.render())
        volume = (place / "volume.yaml").read_text()
        for word, value in (("NAMESPACE", self.namespace.name), ("FOLDER", self.volume), ("NODE", layout.NODE)):
            volume = volume.replace(word, str(value))
        (place / "volume.yaml").write_text(volume)
        if conftest.GIVEN:  # another cluster has a storage class
            text = (place / "kustomization.yaml").read_text()
            (place / "kustomization.yaml").write_text(text.replace("  - volume.yaml\n", ""))
        return self.kubectl("kustomize", str(place))

    def kubectl(self, *words: str, stdin: str | None = None) -> str:
        programs = build.programs() / "kubectl"
        command = [str(programs) if programs.exists() else "kubectl", f"--kubeconfig={self.kubeconfig}", *words]
        done = subprocess.run(
            command, input=stdin, capture_output=True, text=True, timeout=KUBECTL_TIMEOUT_S + 10, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def run(self) -> int:
        """Run a Job of the CronJob to its end; returns the drills' exit code."""
        ours = self.namespace
        self.kubectl("-n", ours.name, "create", "job", "now", "--from=cronjob/drill-prod")
        ended = ours.wait("the Job's end", lambda: self._exit_code(), JOB_TIMEOUT_S)
        return int(ended[0])

    def _exit_code(self) -> list[int]:
        pods = self.namespace.pods("job-name=now")
        states = [s.state.terminated for pod in pods for s in pod.status.container_statuses or ()]
        return [state.exit_code for state in states if state is not None]

    def log(self) -> str:
        return self.kubectl("-n", self.namespace.name, "logs", "job/now")

    def delete(self) -> None:
        name = self.namespace.name
        self.kubectl("delete", "--ignore-not-found", "--wait=false", f"persistentvolume/{name}")
        self.kubectl("delete", "--ignore-not-found", f"--timeout={KUBECTL_TIMEOUT_S:.0f}s", f"namespace/{name}")


@pytest.fixture
def scheduled(tmp_path: Path, cluster: Path, service: Emulator) -> Iterator[Scheduled]:
    if not service.namespace.pods("app=router"):
        service.route()
    made = Scheduled(tmp_path, cluster, service)
    try:
        yield made
    finally:
        made.delete()


def documents(text: str) -> list[Json]:
    return list(YAML(typ="safe").load_all(text))


def test_the_api_server_takes_every_object_to_the_letter(scheduled: Scheduled) -> None:
    scheduled.kubectl("create", "namespace", scheduled.namespace.name)
    rendered = scheduled.render()
    said = scheduled.kubectl("apply", "--dry-run=server", "--validate=strict", "-f", "-", stdin=rendered)
    assert len(said.splitlines()) == len(documents(rendered))


def test_a_job_of_the_cronjob_drills_and_its_reports_come_home(scheduled: Scheduled) -> None:
    scheduled.kubectl("apply", "--validate=strict", "-f", "-", stdin=scheduled.overlaid())
    code = scheduled.run()
    log = scheduled.log()
    assert code == 0, log
    ran = scheduled("reports", "fetch", "--namespace", scheduled.namespace.name, "--reports", "home")
    assert ran.code == 0, ran.out + ran.err
    runs = sorted((scheduled.folder / "home" / "runs").iterdir())
    found: dict[str, Any] = {}
    for run in runs:
        plan, verdict = (json.loads((run / name).read_text()) for name in ("plan.json", "verdict.json"))
        found[plan["experiment"]["name"]] = verdict
        assert (run / "postmortem.md").is_file()
    assert list(found) == list(DRILLS), log
    assert {(v["verdict"], v["restored"]) for v in found.values()} == {("pass", "clean")}
    [index] = (scheduled.folder / "home").glob("????-??/index.md")
    assert all(run.name in index.read_text() for run in runs)
    again = scheduled("reports", "fetch", "--namespace", scheduled.namespace.name, "--reports", "home")
    assert (again.code, f"0 of {len(runs)} runs fetched" in again.out) == (0, True)
    left = [pod.metadata.name for pod in scheduled.namespace.pods() if not pod.metadata.name.startswith("now-")]
    assert left == []
