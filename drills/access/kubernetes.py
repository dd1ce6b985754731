"""The Kubernetes API, wrapped once: every call has a deadline, every failure is one line, nothing is retried in secret.

    api = connect(context="staging")
    pods, version = api.list_all(PODS, "llm", labels="app=vllm", keep=slim)
    api.delete(PODS, "llm", name, body)

The official client gives credentials, TLS and the proxy of the environment; objects stay plain JSON. Reads are repeated
on 429 (as Retry-After says), 5xx and broken connections until a deadline; a write only when the server surely did not
carry it out, or when doing it twice does no harm.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, TypeVar
from urllib.parse import urlencode

import urllib3
from kubernetes.client import ApiClient, ApiException, Configuration

from drills.access import kubeconfig, kubehttp
from drills.access.kubehttp import NoAnswer
from drills.access.kubetypes import (
    BUDGET,
    PODS,
    ClusterAway,
    ClusterError,
    PlanMode,
    Resource,
    Right,
    causes_of,
    what_of,
)
from drills.clock import Clock
from drills.errors import Refused
from drills.model import Json

PAGE: Final = 250
POOL: Final = 32  # connections kept; every probe has a thread of its own
LIST_RESTARTS: Final = 3
REVIEWS: Final = Resource("authorization.k8s.io", "v1", "selfsubjectaccessreviews")
WHO: Final = Resource("authentication.k8s.io", "v1", "selfsubjectreviews")
BODY_MAX: Final = 64 << 20  # bytes; a page of 250 pods is a twentieth of it
READ_AGAIN: Final = frozenset({429, 500, 502, 503, 504})
BACKOFF_S: Final = (0.25, 0.5, 1.0, 2.0)
MERGE: Final = "application/merge-patch+json"
T = TypeVar("T")


@dataclass(frozen=True)
class Limits:
    """How long a call may take, seconds: to connect, for each read, and in all with its repetitions."""

    connect_s: float = 3.0
    read_s: float = 10.0
    deadline_s: float = 20.0


@dataclass(frozen=True)
class _Answer:
    status: int
    retry_after: str | None
    data: Json


@dataclass(frozen=True)
class _Request:
    method: str
    path: str
    what: str  # for people: verb and object
    query: dict[str, str] | None = None
    body: Json | None = None
    kind: str = "application/json"
    again: bool = False  # doing it twice does no harm


def connect(
    context: str | None = None, *, read_only: bool = False, limits: Limits | None = None, clock: Clock | None = None
) -> Api:
    """Return the API of a kubeconfig context, or of the cluster this runs in. Asks the server nothing yet.

    Raises UsageError or Refused when there are no such credentials.
    """
    configuration, name = kubeconfig.load(context)
    return Api(configuration, name, read_only=read_only, limits=limits or Limits(), clock=clock or Clock())


class Api:
    """One API server; may be used from several threads. `asked` holds every right that was needed so far."""

    def __init__(
        self, configuration: Configuration, name: str, *, read_only: bool, limits: Limits, clock: Clock
    ) -> None:
        configuration.retries = False  # urllib3's own default is three, without a word
        configuration.connection_pool_maxsize = POOL
        self.configuration, self.name, self.read_only = configuration, name, read_only
        self.limits, self.clock = limits, clock
        self.server = str(configuration.host).rstrip("/")
        self.asked: set[Right] = set()
        self._reviewed: dict[tuple[Right, str], bool] = {}
        self._client = ApiClient(configuration)
        self._refreshing = threading.Lock()

    def close(self) -> None:
        """Close its connections."""
        self._client.rest_client.pool_manager.clear()

    # ---- reading ---------------------------------------------------------------------------------------

    def version(self) -> Json:
        """Return what the server says of itself: gitVersion and more."""
        return self._call(_Request("GET", "/version", "version", again=True)).data

    def get(self, resource: Resource, namespace: str | None, name: str) -> Json:
        """Return an object. Raises ClusterError with status 404 when it is not there."""
        self.note("get", resource)
        what = what_of("get", resource, namespace, name)
        return self._call(_Request("GET", resource.path(namespace, name), what, again=True)).data

    def find(self, resource: Resource, namespace: str | None, name: str) -> Json | None:
        """Return an object, None when it is not there."""
        try:
            return self.get(resource, namespace, name)
        except ClusterError as error:
            if error.status == 404:
                return None
            raise

    def list_all(
        self,
        resource: Resource,
        namespace: str | None,
        *,
        labels: str | None = None,
        keep: Callable[[Json], T],
    ) -> tuple[list[T], str]:
        """Return what `keep` makes of each object, and the version of the list; page by page, so memory is bounded.

        A list that expires between two pages (410) is begun again.
        """
        self.note("list", resource)
        query = {"limit": str(PAGE)} | ({"labelSelector": labels} if labels else {})
        first = _Request("GET", resource.path(namespace), what_of("list", resource, namespace), query, again=True)
        for _ in range(LIST_RESTARTS):
            try:
                return self._pages(first, keep)
            except ClusterError as error:
                if error.status != 410:
                    raise
        raise ClusterAway(f"{self.where(first.what)}: the list expired {LIST_RESTARTS} times between two pages")

    def _pages(self, request: _Request, keep: Callable[[Json], T]) -> tuple[list[T], str]:
        found: list[T] = []
        query = dict(request.query or {})
        while True:
            page = self._call(_Request("GET", request.path, request.what, query, again=True)).data
            meta, items = page.get("metadata"), page.get("items") or []
            if not isinstance(meta, dict) or not isinstance(items, list):
                raise ClusterError(f"{self.where(request.what)}: {self.server} answers like no API server")
            found += [keep(item) for item in items]
            if not meta.get("continue"):
                return found, str(meta.get("resourceVersion", ""))
            query = {**query, "continue": str(meta["continue"])}

    def watch(
        self,
        resource: Resource,
        namespace: str,
        *,
        labels: str,
        since: str,
        lasts_s: float,
        opened: Callable[[urllib3.HTTPResponse], None] = lambda _: None,
    ) -> Iterator[Json]:
        """Yield {type, object} of each change after version `since` until the server ends it, after about `lasts_s`.

        Raises ClusterError when the connection breaks, or with status 410 when `since` is too old: list again then.
        """
        self.note("watch", resource)
        query = {"watch": "1", "resourceVersion": since, "allowWatchBookmarks": "true", "labelSelector": labels}
        query |= {"timeoutSeconds": str(max(1, int(lasts_s)))}
        request = _Request("GET", resource.path(namespace), what_of("watch", resource, namespace), query)
        try:
            response = self._open(request, read_s=lasts_s + self.limits.read_s)
            opened(response)
            with kubehttp.given_back(response):
                if response.status != 200:
                    answer = self._read(response, self.clock.mono() + self.limits.read_s)
                    raise self.refused(request.what, answer.status, answer.data)
                for line in kubehttp.lines(response):
                    yield self._event(request.what, kubehttp.parsed(line))
        except NoAnswer as error:
            raise ClusterAway(f"{self.where(request.what)}: {self.server} {error}") from None

    def _event(self, what: str, event: Json) -> Json:
        said = event.get("object")
        if not isinstance(said, dict):
            raise NoAnswer("answers with a change of nothing")
        if event.get("type") == "ERROR":
            raise self.refused(what, int(said.get("code") or 500), said)
        return event

    def may(self, right: Right, namespace: str) -> bool:
        """Return whether our credentials grant a right in that namespace. Asks for no right itself, changes nothing.

        Who may only read asks once for each: a look is of one moment.
        """
        if self.read_only and (right, namespace) in self._reviewed:
            return self._reviewed[right, namespace]
        verb, group, resource = right
        plural, _, sub = resource.partition("/")
        wanted = {"namespace": namespace, "verb": verb, "group": group, "resource": plural, "subresource": sub}
        body: Json = {"apiVersion": REVIEWS.group + "/v1", "kind": "SelfSubjectAccessReview"}
        body["spec"] = {"resourceAttributes": wanted}
        request = _Request("POST", REVIEWS.path(None), f"review of {verb} {resource}", body=body, again=True)
        allowed = bool((self._call(request).data.get("status") or {}).get("allowed"))
        self._reviewed[right, namespace] = allowed
        return allowed

    def who(self) -> str:
        """Return as whom the server knows our credentials, "" where it does not tell. Changes nothing."""
        body: Json = {"apiVersion": WHO.group + "/v1", "kind": "SelfSubjectReview"}
        try:
            said = self._call(_Request("POST", WHO.path(None), "review of ourselves", body=body, again=True)).data
        except ClusterError as error:
            if error.status in (403, 404):  # a server older than 1.28, or one that lets nobody ask
                return ""
            raise
        return str(((said.get("status") or {}).get("userInfo") or {}).get("username") or "")

    # ---- writing ---------------------------------------------------------------------------------------

    def create(self, resource: Resource, namespace: str, body: Json, *, name: str | None = None, sub: str = "") -> Json:
        """Create an object, or a subresource of the object `name`."""
        self.note("create", resource, sub)
        what = what_of("create", resource, namespace, name or str(body["metadata"]["name"]), sub)
        return self._call(_Request("POST", resource.path(namespace, name, sub), what, body=body)).data

    def replace(self, resource: Resource, namespace: str, body: Json) -> Json:
        """Replace an object if it still has the resourceVersion of `body` (else ClusterError with status 409)."""
        self.note("update", resource)
        name = str(body["metadata"]["name"])
        what = what_of("update", resource, namespace, name)
        return self._call(_Request("PUT", resource.path(namespace, name), what, body=body)).data

    def patch(self, resource: Resource, namespace: str | None, name: str, body: Json) -> Json:
        """Merge `body` into an object (JSON merge patch)."""
        self.note("patch", resource)
        what = what_of("patch", resource, namespace, name)
        path = resource.path(namespace, name)
        return self._call(_Request("PATCH", path, what, body=body, kind=MERGE, again=True)).data

    def delete(self, resource: Resource, namespace: str, name: str, body: Json | None = None) -> Json:
        """Delete an object; with a UID among the preconditions in `body` it may be repeated without harm."""
        self.note("delete", resource)
        body = body or {}
        pinned = "uid" in (body.get("preconditions") or {})
        what = what_of("delete", resource, namespace, name)
        return self._call(_Request("DELETE", resource.path(namespace, name), what, body=body, again=pinned)).data

    # ---- reaching pods ---------------------------------------------------------------------------------

    def proxied(self, namespace: str, pod: str, port: int) -> str:
        """Return the address under which the API server passes requests on to a pod's port."""
        return f"{self.server}{PODS.path(namespace, f'{pod}:{port}', 'proxy')}"

    def http(self) -> urllib3.PoolManager:
        """Return a pool of connections to the API server, with its CA and proxy; it alone sees the credentials."""
        return _ApiPool(self, self._client.rest_client.pool_manager)

    def headers(self) -> dict[str, str]:
        """Return the headers that sign a request in, with a token that is still valid."""
        with self._refreshing:
            try:
                token = self.configuration.get_api_key_with_prefix("BearerToken", alias="authorization")
            except Refused:
                raise
            except Exception as error:
                why = f"cannot be renewed ({type(error).__name__}); sign in again"
                raise ClusterAway(f"cluster {self.name}: the credentials {why}", status=401) from None
        return {"authorization": str(token)} if token else {}

    # ---- one call --------------------------------------------------------------------------------------

    def note(self, verb: str, resource: Resource, sub: str = "") -> None:
        """Write down that this right was needed. Raises PlanMode when it is to write, and only reading is allowed."""
        if self.read_only and verb not in ("get", "list", "watch"):
            raise PlanMode(f"{verb} {resource.plural}: a plan changes nothing")
        self.asked.add((verb, resource.group, f"{resource.plural}/{sub}" if sub else resource.plural))

    def _call(self, request: _Request) -> _Answer:
        """Return the answer of one call, repeated where that is safe. Raises ClusterError."""
        deadline = self.clock.mono() + self.limits.deadline_s
        attempt = 0
        while True:
            wait_s = BACKOFF_S[min(attempt, len(BACKOFF_S) - 1)]
            attempt += 1
            read_s = max(0.05, min(self.limits.read_s, deadline - self.clock.mono()))
            try:
                answer = self._read(self._open(request, read_s=read_s), deadline)
                if answer.status < 300:
                    return answer
                failure = self.refused(request.what, answer.status, answer.data)
                if not _worth_another(answer, request.again):
                    raise failure
                wait_s = max(wait_s, kubehttp.seconds(answer.retry_after, self.clock.wall()))
            except NoAnswer as error:
                failure = ClusterAway(f"{self.where(request.what)}: {self.server} {error}")
                if error.sent and not request.again:
                    raise failure from None
            if self.clock.mono() + wait_s >= deadline:
                raise failure
            self.clock.sleep(wait_s)

    def _open(self, request: _Request, *, read_s: float) -> urllib3.HTTPResponse:
        """Send the request and return the response with its body still to be read. Raises NoAnswer."""
        headers = {"Accept": "application/json", "User-Agent": "drill", **self.headers()}
        if request.body is not None:
            headers["Content-Type"] = request.kind
        url = f"{self.server}{request.path}" + (f"?{urlencode(request.query)}" if request.query else "")
        timeout = (self.limits.connect_s, read_s)
        rest: Any = self._client.rest_client
        try:
            sent = rest.request(request.method, url, headers=headers, body=request.body, _request_timeout=timeout)
        except urllib3.exceptions.HTTPError as error:
            raise kubehttp.no_answer(error) from None
        except ApiException:  # what the client makes of a failure of TLS
            raise kubehttp.no_answer(urllib3.exceptions.SSLError()) from None
        response: urllib3.HTTPResponse = sent.response
        return response

    def _read(self, response: urllib3.HTTPResponse, deadline: float) -> _Answer:
        """Read the whole body by the deadline, even of a server that drips. Raises NoAnswer."""
        body, size = [], 0
        with kubehttp.given_back(response):
            for part in kubehttp.parts(response):
                body.append(part)
                size += len(part)
                if size > BODY_MAX or self.clock.mono() > deadline:
                    raise NoAnswer("answers with more than can be read in time")
        text = b"".join(body)
        try:
            data = kubehttp.parsed(text)
        except NoAnswer:
            if response.status < 300:
                raise
            data = {"message": text[:200].decode(errors="replace")}  # of what stands in between
        return _Answer(response.status, response.headers.get("Retry-After"), data)

    # ---- words -----------------------------------------------------------------------------------------

    def where(self, what: str) -> str:
        """Return how an error of this cluster begins."""
        return f"cluster {self.name}: {what}"

    def refused(self, what: str, status: int, data: Json) -> ClusterError:
        """Return the error for a call that was answered with no."""
        message = self.clean(str(data.get("message") or f"HTTP {status}"))
        said = {
            401: "the credentials are not accepted (401), they may have expired; sign in again or renew the token",
            403: f"is not allowed (403): {message}",
            429: f"the API server turns it away (429): {message}",
        }.get(status, f"HTTP {status}: {message}")
        away = status in READ_AGAIN or status == 401
        return (ClusterAway if away else ClusterError)(
            f"{self.where(what)}: {said}",
            status=status,
            reason=str(data.get("reason") or ""),
            message=message,
            causes=causes_of(data),
        )

    def clean(self, text: str) -> str:
        """Return a text of the server as one short line, without our credentials should it repeat them."""
        for secret in (self.configuration.api_key or {}).values():
            for word in str(secret).split():
                text = text.replace(word, "***") if len(word) > 6 else text
        return " ".join("".join(c if c.isprintable() else " " for c in text).split())[:300]


class _ApiPool(urllib3.PoolManager):
    """Signs in at the API server and nowhere else: redirects are not followed. The connections are the client's."""

    def __init__(self, api: Api, connections: Any) -> None:
        super().__init__(retries=False)
        self._api, self._connections = api, connections

    def urlopen(self, method: str, url: str, redirect: bool = True, **kw: Any) -> Any:  # type: ignore[override]  # noqa: ARG002
        """Send one request."""
        if url.startswith(f"{self._api.server}/"):
            kw["headers"] = {**(kw.get("headers") or {}), **self._api.headers()}
        return self._connections.urlopen(method, url, redirect=False, **kw)


def _worth_another(answer: _Answer, again: bool) -> bool:
    if answer.status == 429:  # turned away before anything was done, unless it is a budget that says no
        return not any(cause.get("reason") == BUDGET for cause in causes_of(answer.data))
    return again and answer.status in READ_AGAIN
