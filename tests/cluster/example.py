"""The service of examples/kubernetes in a namespace of its own: the very files, with the tests' images laid over."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from kubernetes import utils
from ruamel.yaml import YAML

from drills.model import Json
from drills.probes.http import ProbeError
from drills.probes.prometheus import Prometheus
from tests.cluster.cache import TREE
from tests.cluster.emulator import REPLICAS, Emulator
from tests.cluster.images import DRILLS, MONITORING
from tests.cluster.kube import Namespace
from tests.lab.drilling import Driller, Ran

EXAMPLES = TREE / "examples" / "kubernetes"
SERVICE = ("engines-emulated.yaml", "service.yaml", "router.yaml")
APPLICATION = "application-emulated.yaml"
MONITORED = ("alerts-emulated.yaml", "prometheus.yaml", "alertmanager.yaml")
#: What the files name, and what the tests' own node has instead. It pulls nothing.
IMAGES = {"drills": DRILLS, "prom/prometheus": MONITORING, "prom/alertmanager": MONITORING}
PARTS = ("router", "prometheus", "alertmanager")
IN_FRONT = ("small", "application")
MODEL = "lab-chat"
ALERT = "VllmReplicaDown"
RUN_TIMEOUT_S = 600.0
#: Of the short experiments, which have too few requests to show more.
PATIENT = {"ttft": {"p99": "2s"}, "e2e": {"p99": "8s"}, "max_gap": {"p99": "4s"}, "errors": "5%"}
CORDONED, TRIES, CORDONED_TIMEOUT_S = "is cordoned", 4, 300.0
CALLED = ("router", "small")  # by others, with their names
MONITORING_TIMEOUT_S, WATCHED_TIMEOUT_S = 240.0, 120.0

#: Debian's Prometheus is built without the discovery that the example uses. A container beside it asks the API server
#: for the same pods and gives them the same labels, so that everything behind the discovery is as in the example.
DISCOVERY = "kubernetes_sd_configs: [{role: pod, namespaces: {own_namespace: true}}]"
DISCOVERED = "file_sd_configs: [{files: [/discovered/pods.json], refresh_interval: 5s}]"
SCRIPT = Path(__file__).parent / "manifests" / "discovery.py"

Change = Callable[[Json], None]


def documents(file: str) -> Iterator[Json]:
    """Yield the objects of an example, with the tests' images."""
    for document in YAML(typ="safe").load_all((EXAMPLES / file).read_text()):
        for container in containers(document):
            container["image"] = IMAGES[container["image"].partition(":")[0]]
            container["imagePullPolicy"] = "Never"
        if document["metadata"]["name"] == "prometheus":
            _discover(document)
        yield document


def _discover(document: Json) -> None:
    """Let the objects of Prometheus discover pods by way of a file."""
    if document["kind"] == "ConfigMap":
        text = document["data"]["prometheus.yml"]
        assert DISCOVERY in text
        document["data"]["prometheus.yml"] = text.replace(DISCOVERY, DISCOVERED)
    if document["kind"] == "Deployment":
        pod, where = document["spec"]["template"]["spec"], {"name": "discovered", "mountPath": "/discovered"}
        pod["volumes"].append({"name": "discovered", "emptyDir": {}})
        pod["containers"][0]["volumeMounts"].append(where)
        beside = {"name": "discovery", "image": DRILLS, "imagePullPolicy": "Never", "volumeMounts": [where]}
        pod["containers"].append(beside | {"command": ["python3", "-c", SCRIPT.read_text()]})


def containers(document: Json) -> list[Json]:
    """Return the containers of a Deployment, none of another object."""
    if document["kind"] != "Deployment":
        return []
    found: list[Json] = document["spec"]["template"]["spec"]["containers"]
    return found


class Example(Emulator):
    """The example's service: engines, router, Prometheus, Alertmanager. `change` is laid over its objects."""

    def __init__(self, namespace: Namespace, change: Change | None = None) -> None:
        super().__init__(namespace)
        self._change = change

    def create(self) -> None:
        """Apply the files, and wait until everything is Ready and Prometheus has seen all engines."""
        for file in (*MONITORED, *SERVICE):
            self.apply(file)
        self.until_ready()
        for part in PARTS:
            ready = partial(self.namespace.ready_pods, f"app={part}")
            self.namespace.wait(f"a Ready {part}", ready, MONITORING_TIMEOUT_S)
        self.until_watched()

    def until_watched(self) -> None:
        """Wait until all engines are Ready, the router can be asked, Prometheus knows, and no alert is on."""
        self.until_ready()
        self.namespace.until_reached("router")
        self.namespace.wait("Prometheus to see all engines and no alert", self._watched, WATCHED_TIMEOUT_S)

    def _watched(self) -> bool:
        server = Prometheus(f"http://{self.address('prometheus')}:9090")
        try:
            seen = server.query("vllm:replicas_ready and vllm:replicas_expected == vllm:replicas_ready")
            ready = [one["value"][1] for one in seen if one["metric"]["model"] == MODEL]
            return ready == [str(REPLICAS)] and not server.alerts()
        except ProbeError:
            return False

    def undisturbed(self, run: Callable[[], Ran]) -> Ran:
        """Run a drill, again when others cordoned the node meanwhile: tests of GPUs do, and so void every run on it."""
        for _ in range(TRIES):
            self.namespace.wait("a node that is not cordoned", self._open, CORDONED_TIMEOUT_S)
            self.until_watched()
            ran = run()
            if CORDONED not in ran.out + ran.err:
                break
        return ran

    def _open(self) -> bool:
        return not any(node.spec.unschedulable for node in self.namespace.core.list_node().items)

    def apply(self, file: str) -> None:
        """Create the objects of one file."""
        for document in documents(file):
            self._name_by_address(document)
            if self._change is not None:
                self._change(document)
            utils.create_from_dict(self.namespace.api, document, namespace=self.namespace.name)

    def _name_by_address(self, document: Json) -> None:
        """Let a Deployment call Services by address."""
        for container in containers(document):
            for name in CALLED:
                container["args"] = [
                    arg.replace(f"=http://{name}", f"=http://{self.address(name)}") if f"=http://{name}" in arg else arg
                    for arg in container.get("args", ())
                ]

    def put_application(self) -> None:
        """Put the application in front. It calls Services by name, which only a cluster with DNS can answer."""
        self.apply(APPLICATION)
        for part in IN_FRONT:
            ready = partial(self.namespace.ready_pods, f"app={part}")
            self.namespace.wait(f"a Ready {part}", ready, MONITORING_TIMEOUT_S)
            self.namespace.until_reached(part)

    def address(self, service: str) -> str:
        """Return the address of a Service; there is no DNS on the tests' node."""
        found = self.namespace.core.read_namespaced_service(service, self.namespace.name)
        return str(found.spec.cluster_ip)

    def targets(self, folder: Path, change: Change | None = None) -> Path:
        """Write the example's drill.yaml with what is this cluster's: addresses, namespace, image."""
        text = (EXAMPLES / "drill.yaml").read_text().replace("drills:0.1.0", DRILLS)
        for service in self.namespace.core.list_namespaced_service(self.namespace.name).items:
            text = text.replace(f"{service.metadata.name}.llm.svc", service.spec.cluster_ip)
        yaml = YAML(typ="safe")
        content: Json = yaml.load(text)
        for declared in content["targets"].values():
            declared["kubernetes"]["namespace"] = self.namespace.name
            if change is not None:
                change(declared)
        path = folder / "drill.yaml"
        with path.open("w") as out:
            yaml.dump(content, out)
        return path

    def paged(self) -> str:
        """Return what the stand-in for a pager was told."""
        [pod] = self.namespace.ready_pods("app=alertmanager")
        return str(
            self.namespace.core.read_namespaced_pod_log(pod.metadata.name, self.namespace.name, container="pager")
        )


def run(service: Example, drill: Driller, what: str, targets: Path, *more: str) -> Ran:
    """Run `drill run WHAT` with that targets file, with nobody else at work on the node."""
    words = ["run", what, "--targets", str(targets), "--reports", str(drill.reports), "--plain", *more]
    return service.undisturbed(lambda: drill(*words))
