"""Engines with nothing in front of them, a router, and the application before it: what ledger proxies are put into."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from tests.cluster.emulator import READY_TIMEOUT_S, SELECTOR, Emulator, declared_helper
from tests.cluster.kube import MANIFESTS

PORT = 8000


class Served(Emulator):
    """The emulator's words, for engines that are reached at their own port."""

    def create(self) -> None:
        """Create all of it and wait until it is Ready."""
        self.route()  # first: the others are told its address when they start
        self.namespace.create(MANIFESTS / "served.yaml")
        self.namespace.wait("a Ready router", lambda: self.namespace.ready_pods("app=router"), READY_TIMEOUT_S)
        self.until_ready()
        for app in ("small", "edge"):
            self.namespace.wait(f"a Ready {app}", partial(self.namespace.ready_pods, f"app={app}"), READY_TIMEOUT_S)
            self.namespace.until_reached(app)

    def route(self) -> None:
        """Create the router, which is Ready once it has found a replica."""
        self.namespace.create_text((MANIFESTS / "router.yaml").read_text().replace("8080", str(PORT)))

    def address(self, service: str) -> str:
        """Return where a Service is, without /v1."""
        found = self.namespace.core.read_namespaced_service(service, self.namespace.name)
        return f"http://{found.spec.cluster_ip}"

    def declare(
        self, folder: Path, *, ledger: bool = False, entry: str = "edge", e2e: str = "12s", **changes: str
    ) -> None:
        """Write the targets file. The shorter the SLA's `e2e`, the shorter a baseline may be."""
        where = f'namespace: {self.namespace.name}, selector: "{SELECTOR}", fallback_selector: app=small'
        more = f"container: vllm, port: {PORT}, helper: {declared_helper()}, ledger: {str(ledger).lower()}"
        more += "".join(f", {key}: {value}" for key, value in changes.items())
        (folder / "drill.yaml").write_text(f"""\
targets:
  prod:
    endpoint: {{url: {self.address(entry)}/v1, model: lab-chat}}
    sla: {{ttft: {{p99: 3s}}, e2e: {{p99: {e2e}}}, max_gap: {{p99: 4s}}, errors: 5%}}
    kubernetes: {{{where}, {more}}}
    router: {{kind: vllm-router, metrics: {self.address("router")}:29000/metrics, selector: app=router}}
    degradation: {{fallback_models: [lab-small], cached: {{header: x-cache, value: hit}}}}
    limits: {{allow_route_faults: true}}
""")
