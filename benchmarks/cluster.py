"""What choosing victims costs as a namespace grows: seconds, requests and peak memory, and how they grow with the pods.

    python benchmarks/cluster.py [--pods 10,100,1000]

The pods are objects only: their ReplicaSets bind them to node objects behind which there is no machine, and their
status is written as a kubelet would. Each size is measured in a process of its own, so that the peak is its own; what
that process has before it asks anything is shown apart. Needs `make cluster-up`, or a cluster in KUBECONFIG.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
NODES = 10
MADE_TIMEOUT_S, GONE_TIMEOUT_S, MEASURE_TIMEOUT_S = 600.0, 300.0, 120.0
HEARTBEAT_S = 5.0
REQUEST_TIMEOUT_S = 30.0
ROUNDS = 3
TARGETS = """\
targets:
  bench:
    endpoint: {{url: http://127.0.0.1:1/v1, model: m}}
    sla: {{ttft: {{p99: 1s}}, e2e: {{p99: 12s}}, max_gap: {{p99: 2s}}, errors: 1%}}
    kubernetes: {{namespace: {namespace}, selector: "app=bench", port: 8000}}
"""


# ---- pods that are objects only --------------------------------------------------------------------------


class Fleet:
    """A namespace of pods, as many as are asked for, on nodes that run nothing."""

    def __init__(self, kubeconfig: Path) -> None:
        from kubernetes import client, config

        self.api = config.new_client_from_config(str(kubeconfig))
        self.core, self.apps = client.CoreV1Api(self.api), client.AppsV1Api(self.api)
        self.leases = client.CoordinationV1Api(self.api)
        self.name = f"drills-bench-{uuid.uuid4().hex[:8]}"
        self.nodes = [f"{self.name}-{n}" for n in range(NODES)]
        self.ready: set[str] = set()
        self.over = threading.Event()

    def begin(self) -> None:
        """Make the namespace, the nodes and an empty ReplicaSet for each."""
        self.core.create_namespace({"metadata": {"name": self.name}})
        for node in self.nodes:
            self.core.create_node({"metadata": {"name": node}, "spec": {"unschedulable": True}})
            self._lease(node, create=True)
            self.core.patch_node_status(node, {"status": {"conditions": [_condition("Ready")]}})
        for number, node in enumerate(self.nodes):
            self.apps.create_namespaced_replica_set(self.name, _replica_set(number, node))
        threading.Thread(target=self._beat, daemon=True).start()

    def grow(self, pods: int) -> None:
        """Have that many pods in all, each Ready."""
        for number in range(NODES):
            wanted = pods // NODES + (number < pods % NODES)
            self.apps.patch_namespaced_replica_set_scale(_set(number), self.name, {"spec": {"replicas": wanted}})
        _until(f"{pods} pods", lambda: self._made_ready() >= pods, MADE_TIMEOUT_S)

    def _made_ready(self) -> int:
        """Say for each new pod what its kubelet would; returns how many pods there are."""
        found = self.core.list_namespaced_pod(self.name, resource_version="0", _request_timeout=REQUEST_TIMEOUT_S).items
        running = {"running": {"startedAt": _now()}}
        container = {"name": "engine", "image": "none", "imageID": "none", "ready": True, "restartCount": 0}
        status = {"phase": "Running", "podIP": "192.0.2.1", "conditions": [_condition("Ready")]}
        status["containerStatuses"] = [{**container, "state": running}]
        for pod in found:
            if pod.metadata.name not in self.ready:
                self.core.patch_namespaced_pod_status(pod.metadata.name, self.name, {"status": status})
                self.ready.add(pod.metadata.name)
        return len(self.ready)

    def end(self) -> None:
        """Take everything away; no kubelet would ever say that these pods have ended."""
        self.over.set()
        for number in range(NODES):
            self.apps.delete_namespaced_replica_set(_set(number), self.name, propagation_policy="Orphan")
        self.core.delete_collection_namespaced_pod(self.name, grace_period_seconds=0)
        self.core.delete_namespace(self.name)
        for node in self.nodes:
            self.core.delete_node(node)
            self.leases.delete_namespaced_lease(node, "kube-node-lease")
        _until("the namespace's end", lambda: self.name not in self._namespaces(), GONE_TIMEOUT_S)

    def _namespaces(self) -> set[str]:
        return {one.metadata.name for one in self.core.list_namespace().items}

    def _beat(self) -> None:
        """Keep the nodes from being taken for dead, and their pods for not ready."""
        while not self.over.wait(HEARTBEAT_S):
            for node in self.nodes:
                self._lease(node, create=False)

    def _lease(self, node: str, *, create: bool) -> None:
        spec = {"holderIdentity": node, "leaseDurationSeconds": 40, "renewTime": _now(micro=True)}
        body = {"metadata": {"name": node}, "spec": spec}
        if create:
            self.leases.create_namespaced_lease("kube-node-lease", body)
        elif not self.over.is_set():
            self.leases.patch_namespaced_lease(node, "kube-node-lease", body)


def _set(number: int) -> str:
    return f"bench-h{number}"


def _replica_set(number: int, node: str) -> dict[str, Any]:
    labels = {"app": "bench", "pod-template-hash": f"h{number}"}
    container = {"name": "engine", "image": "none", "imagePullPolicy": "Never"}
    spec = {"nodeName": node, "containers": [container], "terminationGracePeriodSeconds": 0}
    spec["tolerations"] = [{"operator": "Exists"}]
    template = {"metadata": {"labels": labels}, "spec": spec}
    return {
        "metadata": {"name": _set(number), "labels": labels},
        "spec": {"replicas": 0, "selector": {"matchLabels": labels}, "template": template},
    }


def _condition(kind: str) -> dict[str, str]:
    return {"type": kind, "status": "True", "reason": "Bench", "message": "no machine", "lastTransitionTime": _now()}


def _now(*, micro: bool = False) -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S" + (".%fZ" if micro else "Z"))


def _until(what: str, true: Callable[[], bool], timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while not true():
        if time.monotonic() > deadline:
            raise SystemExit(f"waited {timeout_s:.0f} s in vain for {what}")
        time.sleep(0.5)


@contextmanager
def fleet(kubeconfig: Path) -> Iterator[Fleet]:
    made = Fleet(kubeconfig)
    try:
        made.begin()
        yield made
    finally:
        made.end()


# ---- the measurement -------------------------------------------------------------------------------------


def measure(targets: Path) -> None:
    """Plan a drill and choose its victim; print seconds, requests and memory as JSON."""
    from drills import session, victims
    from drills.access.kubernetes import Api
    from drills.clock import rng
    from drills.cluster import opening
    from drills.options import Options
    from drills.target import load_target

    asked = 0
    real = Api._open

    def counted(self: Api, *args: Any, **kw: Any) -> Any:
        nonlocal asked
        asked += 1
        return real(self, *args, **kw)

    Api._open = counted  # type: ignore[method-assign]
    options = Options("bench", targets)
    spec = load_target("bench", targets)
    experiment = session.experiment(str(ROOT / "tests" / "cluster" / "experiments" / "bench.yaml"))
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew: imports had one of their own
    before_mb = _status_mb("VmRSS")
    began, cpu = time.perf_counter(), time.process_time()
    plan = session.make_plan(experiment, spec, options, run="bench", seed=7)
    planned_s = time.perf_counter() - began
    with opening.opened(spec, options, lambda _: None) as target:
        limits = plan.to_json()["target"]["limits"]
        picked = victims.choose(
            target.replicas(), 1, rng(7, "victims-0"), max_victims=limits["max_victims"],
            min_healthy=limits["min_healthy"], protect=limits["protect"],
        )  # fmt: skip
    told = {"seconds": time.perf_counter() - began, "planned_s": planned_s, "cpu_s": time.process_time() - cpu}
    told |= {"requests": asked, "peak_mb": _status_mb("VmHWM") - before_mb, "before_mb": before_mb}
    print(json.dumps(told | {"victim": picked[0].name, "replicas": target.expected_replicas}))


def _status_mb(key: str) -> float:
    """Return a line of /proc/self/status in MiB: what is resident now (VmRSS), or was at most (VmHWM)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{key}:")) / 1024


def measured(targets: Path, kubeconfig: Path, pods: int) -> dict[str, Any]:
    """Return the round with the median time."""
    argv = [sys.executable, __file__, "--measure", str(targets)]
    env = {**os.environ, "KUBECONFIG": str(kubeconfig)}
    rows = []
    for _ in range(ROUNDS):
        done = subprocess.run(
            argv, cwd=ROOT, env=env, capture_output=True, text=True, timeout=MEASURE_TIMEOUT_S, check=False
        )
        if done.returncode:
            raise SystemExit(f"{pods} pods: {done.stderr.strip().splitlines()[-1]}")
        rows.append(json.loads(done.stdout))
    return {"pods": pods, **sorted(rows, key=lambda row: float(row["seconds"]))[ROUNDS // 2]}


def found_cluster() -> Path | None:
    """Return the kubeconfig of a cluster that is up."""
    if given := os.environ.get("KUBECONFIG"):
        return Path(given)
    from tests.cluster import node

    return node.kubeconfig() if os.geteuid() == 0 and node.is_up() else None


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pods", default="10,100,1000", help="sizes, comma-separated")
    options = parser.parse_args()
    kubeconfig = found_cluster()
    if kubeconfig is None:
        print("no cluster is up: make cluster-up, or KUBECONFIG=...")
        return 0
    rows: list[dict[str, Any]] = []
    print(f"{'pods':>6} {'seconds':>9} {'cpu s':>7} {'requests':>9} {'peak MB more':>13} {'before MB':>10}  victim")
    with fleet(kubeconfig) as pods, tempfile.TemporaryDirectory() as name:
        targets = Path(name) / "drill.yaml"
        targets.write_text(TARGETS.format(namespace=pods.name))
        for count in map(int, options.pods.split(",")):
            pods.grow(count)
            row = measured(targets, kubeconfig, count)
            assert row["replicas"] == count, row
            rows.append(row)
            print(f"{count:6,} {row['seconds']:9.2f} {row['cpu_s']:7.2f} {row['requests']:9} {row['peak_mb']:13.1f}"
                  f" {row['before_mb']:10.0f}  {row['victim']}", flush=True)  # fmt: skip
    first, last = rows[0], rows[-1]
    figures = ", ".join(
        f"{key} x{last[key] / first[key]:.1f}" for key in ("seconds", "cpu_s", "requests") if first[key]
    )
    print(f"x{last['pods'] / first['pods']:g} pods: {figures}, {last['peak_mb'] - first['peak_mb']:+.1f} MB of peak")
    return 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        measure(Path(sys.argv[2]))
    else:
        sys.exit(main())
