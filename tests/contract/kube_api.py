"""A small API server on loopback that keeps objects as the real one does: versions, conflicts, preconditions, watches.

It is here to show what custody and target do when two of them meet; how a cluster behaves is for a real one to show.
"""

from __future__ import annotations

import copy
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from tests.contract.kube_talk import status

Json = dict[str, Any]


class Store:
    """Objects by (plural, namespace, name), and everything that happened to them."""

    def __init__(self) -> None:
        self.lock = threading.Condition()
        self.objects: dict[tuple[str, str, str], Json] = {}
        self.history: list[tuple[int, str, str, Json]] = []  # version, plural, type, object
        self.version = 100
        self.asked: list[tuple[str, str]] = []
        self.budget: str | None = None  # why no eviction is allowed now
        self.on_delete: Callable[[Json], object] = lambda _: None
        self.answer: Callable[[str], tuple[int, Json]] = lambda _: (200, {})  # of a pod behind the proxy
        self.forbidden: set[tuple[str, str]] = set()  # (method, plural)
        self.denied: set[tuple[str, str]] = set()  # (verb, resource), in a review of access
        self.user, self.expired = "drill", False  # of the credentials
        self.labels: Json = {}  # of the namespace
        self.ended = False

    def put(self, plural: str, item: Json, *, change: str = "ADDED") -> Json:
        """Store an object under the next version."""
        with self.lock:
            self.version += 1
            meta = item["metadata"]
            meta.setdefault("namespace", "llm")
            meta.setdefault("uid", f"uid-{self.version}")
            meta.setdefault("creationTimestamp", f"2026-01-01T00:{self.version // 60:02}:{self.version % 60:02}Z")
            meta["resourceVersion"] = str(self.version)
            self.objects[plural, meta["namespace"], meta["name"]] = item
            self._note(plural, change, item)
            return copy.deepcopy(item)

    def drop(self, plural: str, name: str, namespace: str = "llm") -> None:
        with self.lock:
            item = self.objects.pop((plural, namespace, name))
            self.version += 1
            item["metadata"]["resourceVersion"] = str(self.version)
            self._note(plural, "DELETED", item)

    def edit(self, plural: str, name: str, edit: Callable[[Json], None], namespace: str = "llm") -> None:
        with self.lock:
            item = self.objects[plural, namespace, name]
            edit(item)
            self.put(plural, item, change="MODIFIED")

    def _note(self, plural: str, change: str, item: Json) -> None:
        self.history.append((self.version, plural, change, copy.deepcopy(item)))
        self.lock.notify_all()

    def all(self, plural: str, selector: str | None) -> list[Json]:
        with self.lock:
            found = [copy.deepcopy(o) for (p, _, _), o in sorted(self.objects.items()) if p == plural]
        return [o for o in found if matches(o, selector)]


def matches(item: Json, selector: str | None) -> bool:
    labels = item["metadata"].get("labels") or {}
    pairs = (part.partition("=") for part in (selector or "").split(",") if part)
    return all(labels.get(key) == value for key, _, value in pairs)


class _No(Exception):
    def __init__(self, code: int, reason: str, message: str = "", **details: Any) -> None:
        super().__init__(reason)
        self.code, self.body = code, status(code, reason, message, **details)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def log_message(self, *_: object) -> None:
        pass

    def _handle(self) -> None:
        store, url = self.server.store, urlsplit(self.path)
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length) or b"{}") if length else {}
        query = {key: values[0] for key, values in parse_qs(url.query).items()}
        store.asked.append((self.command, self.path))
        try:
            if store.expired:
                raise _No(401, "Unauthorized")
            if url.path.startswith("/api/v1/namespaces/") and url.path.count("/") == 4:
                return self._send(200, {"metadata": {"name": url.path.rpartition("/")[2], "labels": store.labels}})
            if url.path == "/version":
                return self._send(200, {"gitVersion": "v1.36.2"})
            if "/proxy" in url.path:
                return self._send(*store.answer(url.path))
            plural, namespace, name, sub = place(url.path)
            if plural == "selfsubjectaccessreviews":
                asked = body["spec"]["resourceAttributes"]
                sort = asked["resource"] + (f"/{asked['subresource']}" if asked["subresource"] else "")
                return self._send(201, {"status": {"allowed": (asked["verb"], sort) not in store.denied}})
            if plural == "selfsubjectreviews":
                return self._send(201, {"status": {"userInfo": {"username": store.user}}})
            if (self.command, plural) in store.forbidden:
                raise _No(403, "Forbidden", f'{plural} is forbidden: User "drill" cannot {self.command.lower()} them')
            if query.get("watch"):
                return self._watch(plural, query)
            self._send(*self._do(plural, namespace, name, sub, query, body))
        except _No as no:
            self._send(no.code, no.body)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _handle  # noqa: N815 - of http.server

    def _do(self, plural: str, namespace: str, name: str, sub: str, query: Json, body: Json) -> tuple[int, Json]:
        store = self.server.store
        with store.lock:
            if self.command == "POST" and not sub:
                if (plural, namespace, body["metadata"]["name"]) in store.objects:
                    raise _No(409, "AlreadyExists")
                return 201, store.put(plural, body)
            if not name:
                return 200, self._list(plural, query)
            item = store.objects.get((plural, namespace, name))
            if item is None:
                raise _No(404, "NotFound", f"{plural} {name!r} not found")
            match self.command:
                case "GET":
                    return 200, copy.deepcopy(item)
                case "POST":
                    return 201, self._evict(item, body)
                case "PUT":
                    if body["metadata"].get("resourceVersion") not in (None, item["metadata"]["resourceVersion"]):
                        raise _No(409, "Conflict")
                    body["metadata"]["uid"] = item["metadata"]["uid"]
                    return 200, store.put(plural, body, change="MODIFIED")
                case "PATCH":
                    merge(item, body)
                    return 200, store.put(plural, item, change="MODIFIED")
            return 200, self._delete(plural, item, body)

    def _list(self, plural: str, query: Json) -> Json:
        found = self.server.store.all(plural, query.get("labelSelector"))
        begin, limit = int(query.get("continue") or 0), int(query.get("limit") or 0) or len(found) or 1
        more = str(begin + limit) if begin + limit < len(found) else ""
        meta = {"resourceVersion": str(self.server.store.version), "continue": more}
        return {"metadata": meta, "items": found[begin : begin + limit]}

    def _delete(self, plural: str, item: Json, options: Json) -> Json:
        store, meta = self.server.store, item["metadata"]
        for key, value in (options.get("preconditions") or {}).items():
            if meta[key] != value:
                raise _No(409, "Conflict", f"Precondition failed: {key}")
        grace = options.get("gracePeriodSeconds", 30 if plural == "pods" else 0)
        if "All" in options.get("dryRun", ()):
            return item
        if grace:
            meta["deletionTimestamp"], meta["deletionGracePeriodSeconds"] = "2026-01-01T00:00:00Z", grace
            store.put(plural, item, change="MODIFIED")
        else:
            store.drop(plural, meta["name"], meta["namespace"])
        if plural == "pods":
            store.on_delete(item)
        return item

    def _evict(self, pod: Json, body: Json) -> Json:
        if self.server.store.budget is not None:
            causes = [{"reason": "DisruptionBudget", "message": self.server.store.budget}]
            raise _No(429, "TooManyRequests", "Cannot evict pod as it would violate the budget.", causes=causes)
        return self._delete("pods", pod, body.get("deleteOptions") or {})

    def _watch(self, plural: str, query: Json) -> None:
        store, since = self.server.store, int(query["resourceVersion"])
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        with store.lock:
            while not store.ended:
                for version, kind, change, item in [h for h in store.history if h[0] > since]:
                    since = version
                    if kind == plural and matches(item, query.get("labelSelector")):
                        line = json.dumps({"type": change, "object": item}).encode() + b"\n"
                        self.wfile.write(f"{len(line):x}\r\n".encode() + line + b"\r\n")
                        self.wfile.flush()
                store.lock.wait(5.0)

    def _send(self, code: int, body: Json) -> None:
        data = json.dumps(body).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    store: Store

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients may go away."""


def place(path: str) -> tuple[str, str, str, str]:
    """Return plural, namespace, name and subresource of a path."""
    parts = [unquote(part) for part in path.split("/") if part]
    parts = parts[2:] if parts[0] == "api" else parts[3:]
    namespace = parts[1] if parts[0] == "namespaces" else ""
    rest = (parts[2:] if namespace else parts) + ["", ""]
    return rest[0], namespace, rest[1], rest[2]


def merge(item: Json, patch: Json) -> None:
    for key, value in patch.items():
        if value is None:
            item.pop(key, None)
        elif isinstance(value, dict):
            merge(item.setdefault(key, {}), value)
        else:
            item[key] = value


@contextmanager
def serving() -> Iterator[tuple[Store, str]]:
    """Serve until the block ends; yields the objects and the server's address."""
    server = _Server(("127.0.0.1", 0), _Handler)
    server.store = store = Store()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield store, f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        with store.lock:
            store.ended = True
            store.lock.notify_all()
        server.shutdown()
        server.server_close()
        thread.join(5)


def pod(name: str, *, workload: str = "vllm", ready: bool = True, labels: Json | None = None, **status_: Any) -> Json:
    """Return a pod of a Deployment, running."""
    running = {"running": {"startedAt": "2026-01-01T00:00:00Z"}} if ready else {"waiting": {"reason": "Starting"}}
    return {
        "metadata": {
            "name": name,
            "labels": {"app": workload, "pod-template-hash": "5d8f", **(labels or {})},
            "ownerReferences": [{"kind": "ReplicaSet", "name": f"{workload}-5d8f", "controller": True}],
        },
        "spec": {"nodeName": "node-1", "containers": [{"name": "engine", "image": "engine:1"}]},
        "status": {
            "phase": "Running",
            "podIP": "10.0.0.9",
            "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
            "containerStatuses": [{"name": "engine", "restartCount": 0, "state": running}],
            **status_,
        },
    }


def deployment(store: Store, replicas: int = 3, workload: str = "vllm") -> None:
    """Store a Deployment that is rolled out, its ReplicaSet, the pods and their node."""
    for letter in "abcdefghij"[:replicas]:
        store.put("pods", pod(f"{workload}-5d8f-{letter}", workload=workload))
    above = [{"kind": "Deployment", "name": workload, "controller": True}]
    spec: Json = {"replicas": replicas}
    store.put("replicasets", {"metadata": {"name": f"{workload}-5d8f", "ownerReferences": above}, "spec": spec})
    store.put("deployments", {"metadata": {"name": workload, "generation": 1}, "spec": {**spec, "template": {}},
                              "status": rolled_out(replicas)})  # fmt: skip
    if ("nodes", "", "node-1") not in store.objects:
        store.put("nodes", {"metadata": {"name": "node-1", "namespace": ""}, "spec": {}})


def rolled_out(replicas: int) -> Json:
    """Return the status of a Deployment with nothing left to do."""
    return {"observedGeneration": 1, "replicas": replicas, "updatedReplicas": replicas, "availableReplicas": replicas}
