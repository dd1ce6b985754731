"""What `drill schedule render` gives, on a real cluster: the API server takes it, and a Job of its CronJob drills."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from drills.model import Json
from tests.cluster import build, conftest, gpus, layout
from tests.cluster.driving import declare, node_fault
from tests.cluster.emulator import Emulator, declared_helper, serving
from tests.cluster.gpus import GpuEmulator
from tests.cluster.kube import Namespace
from tests.cluster.served import Served
from tests.lab.drilling import Driller, Ran, events

OVERLAY = Path(__file__).parent / "overlays" / "schedule"
IMAGE = "drills:dev"  # the overlay says which one that is here
JOB = "now"
KUBECTL_TIMEOUT_S, START_TIMEOUT_S, JOB_TIMEOUT_S = 90.0, 120.0, 1500.0
LEASE_TIMEOUT_S = 240.0
#: Name, fault and check of each drill.
DRILLS = {
    "upstream-delay": ("upstream-delay: {mode: first_byte, delay: 3s}", "degraded"),
    "packet-loss": ("packet-loss: {victims: 1, mode: reject}", "availability"),
    "pod-kill": ("pod-kill: {victims: 1, how: delete}", "replica_restart: {within: 60s, by: controller}"),
}
RESET = {"gpu-reset": ("gpu-reset: {victims: 1, how: planned}", "replica_restart: {within: 150s}")}
Drills = dict[str, tuple[str, str]]


def kubectl(kubeconfig: Path, *words: str, stdin: str | None = None) -> str:
    """Run kubectl; returns what it says."""
    program = build.programs() / "kubectl"
    command = [str(program) if program.exists() else "kubectl", f"--kubeconfig={kubeconfig}", *words]
    done = subprocess.run(
        command, input=stdin, capture_output=True, text=True, timeout=KUBECTL_TIMEOUT_S + 10, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def shared(cluster: Path) -> Iterator[Served]:
    with serving(Served, cluster) as made:
        yield made


class Scheduled:
    """A target with its drills as a user has them in a folder, and the namespace of their schedule."""

    def __init__(self, folder: Path, kubeconfig: Path, service: Emulator, drills: Drills) -> None:
        self.folder, self.kubeconfig, self.service, self.drills = folder, kubeconfig, service, drills
        self.namespace = Namespace(f"{service.namespace.name}-drills", kubeconfig, service.namespace.api)
        self.volume = folder / "volume"
        self.drill = Driller(folder / "lab", folder / "home", 0, timeout_s=300.0)
        self.drill.env["KUBECONFIG"] = str(kubeconfig)
        self.volume.mkdir()
        (folder / "experiments").mkdir()
        for name, (fault, check) in drills.items():
            text = node_fault(fault, check).replace("cluster-node-fault", name)
            (folder / "experiments" / f"{name}.yaml").write_text(text)

    def __call__(self, *words: str) -> Ran:
        """Run `drill` in the folder."""
        return self.drill(*words, cwd=self.folder)

    def render(self) -> str:
        ran = self("schedule", "render", *self.drills, "--image", IMAGE, "--namespace", self.namespace.name)
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
        return kubectl(self.kubeconfig, *words, stdin=stdin)

    def apply(self) -> None:
        self.kubectl("apply", "--validate=strict", "-f", "-", stdin=self.overlaid())

    def begin(self, job: str = JOB) -> None:
        """Begin a Job of the CronJob."""
        self.kubectl("-n", self.namespace.name, "create", "job", job, "--from=cronjob/drill-prod")

    def end(self, job: str = JOB) -> int:
        """Wait for its end; returns the drills' exit code."""
        return int(self.namespace.wait("the Job's end", lambda: self._exit_codes(job), JOB_TIMEOUT_S)[0])

    def _exit_codes(self, job: str) -> list[int]:
        pods = self.namespace.pods(f"job-name={job}")
        states = [s.state.terminated for pod in pods for s in pod.status.container_statuses or ()]
        return [state.exit_code for state in states if state is not None]

    def until_said(self, words: str) -> None:
        """Wait until the Job has said that."""
        self.namespace.wait("its pod", lambda: self.namespace.ready_pods(f"job-name={JOB}"), START_TIMEOUT_S)
        self.namespace.wait(f"'{words}'", lambda: words in self.log(), JOB_TIMEOUT_S)

    def log(self, job: str = JOB) -> str:
        return self.kubectl("-n", self.namespace.name, "logs", f"job/{job}")

    def delete(self) -> None:
        name = self.namespace.name
        outside = [
            f"persistentvolume/{name}",
            f"clusterrole/{name}:drill-prod",
            f"clusterrolebinding/{name}:drill-prod",
        ]
        forget = ("delete", "--ignore-not-found", f"--timeout={KUBECTL_TIMEOUT_S:.0f}s")
        # First a Job that goes on: a namespace with its pod is looked at again only when half its grace is over.
        self.kubectl("-n", name, *forget, "--cascade=foreground", "jobs", "--all")
        self.kubectl("delete", "--ignore-not-found", "--wait=false", *outside)
        self.kubectl(*forget, f"namespace/{name}")


@contextlib.contextmanager
def scheduling(folder: Path, kubeconfig: Path, service: Emulator, drills: Drills) -> Iterator[Scheduled]:
    """Have the drills of a target that is declared, and no namespace of their schedule afterwards."""
    made = Scheduled(folder, kubeconfig, service, drills)
    try:
        yield made
    finally:
        made.delete()


@pytest.fixture
def scheduled(tmp_path: Path, cluster: Path, service: Served) -> Iterator[Scheduled]:
    """Three drills of replicas behind a router and an application."""
    service.declare(tmp_path)
    with scheduling(tmp_path, cluster, service, DRILLS) as made:
        yield made


@pytest.fixture
def of_the_link(tmp_path: Path, cluster: Path, service: Served) -> Iterator[Scheduled]:
    """One drill, of a fault that is held."""
    service.declare(tmp_path)
    with scheduling(tmp_path, cluster, service, {"packet-loss": DRILLS["packet-loss"]}) as made:
        yield made


@pytest.fixture
def with_gpus(tmp_path: Path, own_node: Path) -> Iterator[Scheduled]:
    """The drill of a GPU, where the only node with one is the driver's own."""
    with serving(GpuEmulator, own_node) as emulator:
        helper = declared_helper(gpus.ACCOUNT)
        declare(tmp_path, emulator, container="vllm", helper=helper, nvidia_smi=gpus.SMI)
        with scheduling(tmp_path, own_node, emulator, RESET) as made:
            yield made


def documents(text: str) -> list[Json]:
    return list(YAML(typ="safe").load_all(text))


EVERYTHING = """\
targets:
  prod:
    endpoint: {url: "http://llm.example/v1", model: m, api_key: {env: LLM_KEY}}
    sla: {ttft: {p99: 1s}, e2e: {p99: 12s}, max_gap: {p99: 2s}, errors: 1%}
    kubernetes:
      {namespace: SERVICE, selector: "app=vllm,tier in (a, b),!canary", helper: {image: "drills:1", pull_secret: pull,
       service_account: drill-node}}
    router: {kind: vllm-router, metrics: "http://router.example:29000/metrics"}
    degradation: {fallback_models: [small]}
    prometheus: {url: "http://prometheus.example:9090", bearer: {file: /var/run/token}}
    limits: {allow_route_faults: true, windows: ["Mon-Fri 10:00-16:00 Asia/Shanghai"]}
    publish: {run: [cp, -r, "{folder}", "/out/{name}"], env: {TOKEN: {file: ~/.token}}}
"""


def test_the_api_server_takes_every_object_to_the_letter(namespace: Namespace, tmp_path: Path) -> None:
    """All four drills, with everything that a target can ask a schedule for."""
    (tmp_path / "drill.yaml").write_text(EVERYTHING.replace("SERVICE", namespace.name))
    drill = Driller(tmp_path / "lab", tmp_path / "home", 0)
    ours = f"{namespace.name}-drills"
    ran = drill("schedule", "render", "--time-zone", "Asia/Shanghai", "--namespace", ours, cwd=tmp_path)
    assert ran.code == 0, ran.err
    assert "will be refused" in ran.err
    kubectl(namespace.kubeconfig, "create", "namespace", ours)
    try:
        dry = ("apply", "--dry-run=server", "--validate=strict", "-f", "-")
        said = kubectl(namespace.kubeconfig, *dry, stdin=ran.out)
    finally:
        kubectl(namespace.kubeconfig, "delete", "--wait=false", "namespace", ours)
    found = documents(ran.out)
    assert len(said.splitlines()) == len(found)
    assert [one["kind"] for one in found].count("ServiceAccount") == 2
    assert "ClusterRole" in {one["kind"] for one in found}


def fetched(scheduled: Scheduled) -> tuple[Ran, list[Path]]:
    """Bring the reports home; returns what was said, and the folders of the runs that are here now."""
    ran = scheduled("reports", "fetch", "--namespace", scheduled.namespace.name, "--reports", "home")
    assert ran.code == 0, ran.out + ran.err
    return ran, sorted((scheduled.folder / "home" / "runs").iterdir())


def review(scheduled: Scheduled) -> str:
    [path] = (scheduled.folder / "home").glob("????-??/review.md")
    return path.read_text()


def test_a_job_of_the_cronjob_drills_and_its_reports_come_home(scheduled: Scheduled) -> None:
    scheduled.apply()
    scheduled.begin()
    code, log = scheduled.end(), scheduled.log()
    assert code == 0, log
    _, runs = fetched(scheduled)
    found: dict[str, Any] = {}
    for run in runs:
        plan, verdict = (json.loads((run / name).read_text()) for name in ("plan.json", "verdict.json"))
        found[plan["experiment"]["name"]] = verdict
        facts = events(run, "header")[0]["data"]["facts"]
        assert (facts["reach"], facts["cluster"]["context"]) == ("direct", "in-cluster")
        assert (run / "postmortem.md").is_file()
        assert run.name in review(scheduled)
    assert list(found) == list(DRILLS), log
    assert {(v["verdict"], v["restored"]) for v in found.values()} == {("pass", "clean")}
    (runs[0] / "notes.md").write_text("What we thought of it.\n")
    again, _ = fetched(scheduled)
    assert f"0 of {len(runs)} runs fetched" in again.out
    assert (runs[0] / "notes.md").is_file()
    left = [pod.metadata.name for pod in scheduled.namespace.pods() if not pod.metadata.name.startswith("now-")]
    assert left == []


def test_a_pod_that_is_ended_puts_everything_back_first(of_the_link: Scheduled) -> None:
    of_the_link.apply()
    of_the_link.begin()
    of_the_link.until_said("packet-loss: proven on")
    [pod] = of_the_link.namespace.pods(f"job-name={JOB}")
    of_the_link.kubectl("-n", of_the_link.namespace.name, "delete", "--wait=true", f"pod/{pod.metadata.name}")
    assert of_the_link.service.left() == []
    _, [run] = fetched(of_the_link)
    verdict = json.loads((run / "verdict.json").read_text())
    assert (verdict["exit_code"], verdict["restored"]) == (4, "clean")
    assert events(run, "signal")[0]["data"]["signal"] == "SIGTERM"
    assert "| **stopped** |" in review(of_the_link)


def driver_of(pod: str) -> int:
    """Return the pid of a pod's driver, as this machine has it: nobody inside can kill the first process of a pod."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"HOSTNAME={pod}\0".encode() in (process / "environ").read_bytes():
                found += [int(process.name)] if b"\0monthly\0" in (process / "cmdline").read_bytes() else []
    [pid] = found
    return pid


@pytest.mark.usefixtures("own_node")
def test_the_next_month_puts_back_what_a_killed_driver_left(of_the_link: Scheduled) -> None:
    """The Lease of a driver that is gone has to run out first: three minutes."""
    of_the_link.apply()
    of_the_link.begin()
    of_the_link.until_said("packet-loss: proven on")
    [pod] = of_the_link.namespace.pods(f"job-name={JOB}")
    os.kill(driver_of(pod.metadata.name), signal.SIGKILL)
    assert of_the_link.end() == 128 + signal.SIGKILL
    assert of_the_link.service.left() != []
    ours = of_the_link.namespace
    ours.wait("the Lease to run out", lambda: "was cut short" in of_the_link("status").out, LEASE_TIMEOUT_S)
    of_the_link.begin("later")
    assert of_the_link.end("later") == 0, of_the_link.log("later")
    assert "packet-loss on vllm-" in of_the_link.log("later").partition("phase warmup")[0]
    assert of_the_link.service.left() == []
    _, runs = fetched(of_the_link)
    ends = [events(run, "end")[0]["data"]["status"] for run in runs]
    assert ends == ["crashed", "completed"]


def test_a_gpu_is_not_reset_on_the_node_of_its_own_driver(with_gpus: Scheduled) -> None:
    before = gpus.as_seen(with_gpus.service)
    with_gpus.apply()
    with_gpus.begin()
    assert with_gpus.end() == 3, with_gpus.log()
    _, [run] = fetched(with_gpus)
    [preflight] = events(run, "preflight")
    assert "on that very node" in preflight["data"]["refusals"][0]
    assert events(run, "inject.hit") == []
    assert f"| **refused** | unknown | clean | — | [{run.name.rsplit('-', 1)[1]}]" in review(with_gpus)
    assert gpus.as_seen(with_gpus.service) == before
    assert with_gpus.service.left() == []
