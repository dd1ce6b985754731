"""The wrapped API against a server that misbehaves: deadlines, what is repeated and what is not, one line, no token."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from drills.access.kubernetes import Api, Limits, connect
from drills.access.kubetypes import CONFIGMAPS, PODS, ClusterAway, ClusterError, PlanMode
from drills.clock import Clock
from drills.errors import EXIT_REFUSED
from tests.contract.kube_talk import TOKEN, changes, cut, kubeconfig, pod_list, says, status
from tests.unit.scripted import Script, Server, in_turn, reset, silence

QUICK = Limits(connect_s=0.5, read_s=0.3, deadline_s=1.5)
BODY = {"metadata": {"name": "x"}}
UID = {"preconditions": {"uid": "u1"}}


class Waiting(Clock):
    """A clock that goes on by itself when somebody waits, and notes for how long."""

    def __init__(self) -> None:
        self.waits: list[float] = []

    def mono(self) -> float:
        return super().mono() + sum(self.waits)

    def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)


@contextmanager
def serving(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *scripts: Script, **more: Any
) -> Iterator[tuple[Api, Server, Waiting]]:
    clock = Waiting()
    with Server(in_turn(*scripts)) as server:
        path = kubeconfig(tmp_path, f"http://127.0.0.1:{server.port}")
        monkeypatch.setenv("KUBECONFIG", str(path))
        api = connect(limits=more.pop("limits", QUICK), clock=clock, **more)
        try:
            yield api, server, clock
        finally:
            api.close()


Serving = Callable[..., Any]


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Serving:
    return lambda *scripts, **more: serving(tmp_path, monkeypatch, *scripts, **more)


def refused(act: Callable[[], object], kind: type[ClusterError] = ClusterAway) -> ClusterError:
    """Return the error, which is one line without the token."""
    with pytest.raises(kind) as caught:
        act()
    text = str(caught.value)
    assert len(text.splitlines()) == 1
    assert TOKEN not in text
    assert text.startswith("cluster test: ")
    assert caught.value.exit_code == EXIT_REFUSED
    return caught.value


def names(api: Api) -> list[str]:
    found, _ = api.list_all(PODS, "llm", labels="app=vllm", keep=lambda pod: str(pod["metadata"]["name"]))
    return found


# ---- reads are repeated, within a deadline ---------------------------------------------------------------


def test_a_list_is_read_page_by_page_with_the_selector_and_signed_in(served: Serving) -> None:
    with served(says(200, pod_list("a", "b", more="m1")), says(200, pod_list("c"))) as (api, server, _):
        assert names(api) == ["a", "b", "c"]
    first, second = (request.decode() for request in server.requests)
    assert first.startswith("GET /api/v1/namespaces/llm/pods?limit=250&labelSelector=app%3Dvllm HTTP")
    assert "continue=m1" in second
    assert f"authorization: bearer {TOKEN}" in first.lower()


def test_a_busy_server_is_asked_again_when_it_says_so(served: Serving) -> None:
    busy = says(429, status(429, "TooManyRequests"), "Retry-After: 1")
    with served(busy, says(200, pod_list("a"))) as (api, _, clock):
        assert names(api) == ["a"]
    assert clock.waits == [1.0]


def test_a_server_that_wants_to_be_asked_after_the_deadline_is_given_up_at_once(served: Serving) -> None:
    busy = says(429, status(429, "TooManyRequests", "try later"), "Retry-After: 60")
    with served(busy) as (api, server, clock):
        assert "429" in str(refused(lambda: names(api)))
    assert clock.waits == []
    assert len(server.requests) == 1


@pytest.mark.parametrize("code", [500, 502, 503, 504])
def test_a_server_with_trouble_is_asked_again(served: Serving, code: int) -> None:
    with served(says(code, "<html>bad gateway</html>"), says(200, pod_list("a"))) as (api, _, _):
        assert names(api) == ["a"]


@pytest.mark.parametrize("script", [lambda c, n: reset(c), cut(200, pod_list("a"), 9), says(200, "not json {")])
def test_an_answer_that_breaks_off_is_asked_for_again(served: Serving, script: Script) -> None:
    with served(script, says(200, pod_list("a"))) as (api, _, _):
        assert names(api) == ["a"]


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (lambda c, n: silence(c), "does not answer in time"),
        (lambda c, n: reset(c), "broke the connection"),
        (says(503, status(503, "ServiceUnavailable", "etcd is away")), "etcd is away"),
        (says(200, "[1, 2]"), "no JSON object"),
        (cut(200, pod_list("a"), 9), "broke the connection"),
    ],
)
def test_a_server_that_stays_bad_is_given_up_by_the_deadline(served: Serving, script: Script, words: str) -> None:
    with served(script) as (api, server, clock):
        began = clock.mono()
        assert words in str(refused(lambda: names(api)))
        assert clock.mono() - began <= QUICK.deadline_s + QUICK.read_s
    assert len(server.requests) > 1


def test_a_server_that_drips_is_cut_off(served: Serving) -> None:
    def drip(connection: socket.socket, number: int) -> bool:
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
        while True:
            connection.sendall(b" ")
            time.sleep(0.05)

    limits = Limits(connect_s=0.5, read_s=0.3, deadline_s=0.5)
    with served(drip, limits=limits) as (api, _, clock):
        began = clock.mono()
        assert "in time" in str(refused(lambda: names(api)))
        assert clock.mono() - began < 5.0


def test_nobody_there_is_said_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig(tmp_path, f"http://127.0.0.1:{port}")))
    api = connect(limits=QUICK, clock=Waiting())
    assert "refuses connections" in str(refused(lambda: names(api)))


def test_a_list_that_expires_between_two_pages_is_begun_again(served: Serving) -> None:
    gone = says(410, status(410, "Expired", "the provided continue parameter is too old"))
    fresh = says(200, pod_list("b", "c"))
    with served(says(200, pod_list("a", more="m1")), gone, fresh) as (api, server, _):
        assert names(api) == ["b", "c"]
    assert "continue" not in server.requests[2].decode()


def test_a_list_that_always_expires_ends(served: Serving) -> None:
    gone = says(410, status(410, "Expired"))
    with served(gone) as (api, server, _):
        assert "expired 3 times" in str(refused(lambda: names(api)))
    assert len(server.requests) == 3


def test_a_server_that_is_no_api_server_is_named(served: Serving) -> None:
    with served(says(200, {"hello": "world"})) as (api, server, _):
        assert str(server.port) in str(refused(lambda: names(api), ClusterError))


def test_a_redirect_is_not_followed_so_that_the_token_stays(served: Serving) -> None:
    with Server(says(200, pod_list("stolen"))) as thief:
        elsewhere = says(302, {}, f"Location: http://127.0.0.1:{thief.port}/")
        with served(elsewhere) as (api, _, _):
            assert "302" in str(refused(lambda: names(api), ClusterError))
        assert thief.requests == []


# ---- refusals --------------------------------------------------------------------------------------------


def test_a_token_that_has_run_out_says_what_to_do(served: Serving) -> None:
    with served(says(401, status(401, "Unauthorized"))) as (api, server, _):
        assert "sign in again" in str(refused(lambda: names(api)))
    assert len(server.requests) == 1


def test_a_missing_right_is_told_in_the_servers_words(served: Serving) -> None:
    words = 'pods is forbidden: User "drill" cannot list resource "pods"'
    with served(says(403, status(403, "Forbidden", words))) as (api, _, _):
        error = refused(lambda: names(api), ClusterError)
    assert words in str(error)
    assert error.status == 403


def test_a_server_that_repeats_our_token_gives_nothing_away(served: Serving) -> None:
    echo = says(403, status(403, "Forbidden", f"no\nright\x1b[31m for Bearer {TOKEN}"))
    with served(echo) as (api, _, _):
        assert "***" in str(refused(lambda: names(api), ClusterError))


def test_what_is_not_there_is_none(served: Serving) -> None:
    with served(says(404, status(404, "NotFound"))) as (api, _, _):
        assert api.find(PODS, "llm", "x") is None


# ---- writes ----------------------------------------------------------------------------------------------


def test_a_write_whose_outcome_nobody_knows_is_not_repeated(served: Serving) -> None:
    with served(lambda c, n: reset(c)) as (api, server, _):
        assert "broke the connection" in str(refused(lambda: api.create(CONFIGMAPS, "llm", BODY)))
    assert len(server.requests) == 1


def test_a_write_that_was_turned_away_is_repeated(served: Serving) -> None:
    busy = says(429, status(429, "TooManyRequests"), "Retry-After: 1")
    with served(busy, says(201, BODY)) as (api, server, _):
        assert api.create(CONFIGMAPS, "llm", BODY) == BODY
    assert len(server.requests) == 2


def test_a_delete_that_is_pinned_to_a_uid_is_repeated(served: Serving) -> None:
    with served(lambda c, n: reset(c), says(200, BODY)) as (api, server, _):
        api.delete(PODS, "llm", "x", UID)
    assert len(server.requests) == 2
    assert b'"uid": "u1"' in server.requests[0]


def test_a_delete_by_name_alone_is_not(served: Serving) -> None:
    with served(lambda c, n: reset(c), says(200, BODY)) as (api, server, _):
        refused(lambda: api.delete(PODS, "llm", "x"))
    assert len(server.requests) == 1


def test_a_budget_that_says_no_is_no_busy_server(served: Serving) -> None:
    causes = [{"reason": "DisruptionBudget", "message": "The disruption budget vllm needs 3 healthy pods"}]
    no = says(429, status(429, "TooManyRequests", "Cannot evict pod", causes=causes))
    with served(no) as (api, server, clock):
        error = refused(lambda: api.create(PODS, "llm", BODY, name="x", sub="eviction"))
    assert error.causes == tuple(causes)
    assert clock.waits == []
    assert len(server.requests) == 1


def test_a_plan_cannot_write(served: Serving) -> None:
    with served(says(200, BODY), read_only=True) as (api, server, _):
        writes: list[Callable[[], object]] = [
            lambda: api.create(CONFIGMAPS, "llm", BODY),
            lambda: api.replace(CONFIGMAPS, "llm", BODY),
            lambda: api.patch(CONFIGMAPS, "llm", "x", {}),
            lambda: api.delete(PODS, "llm", "x", UID),
        ]
        for write in writes:
            with pytest.raises(PlanMode):
                write()
        assert server.requests == []
        api.get(PODS, "llm", "x")


def test_the_rights_that_were_needed_are_written_down(served: Serving) -> None:
    with served(says(200, pod_list("a"))) as (api, _, _):
        names(api)
        api.create(PODS, "llm", BODY, name="x", sub="eviction")
        assert api.asked == {("list", "", "pods"), ("create", "", "pods/eviction")}


# ---- watches ---------------------------------------------------------------------------------------------


def watched(api: Api, since: str = "7") -> list[str]:
    found = api.watch(PODS, "llm", labels="app=vllm", since=since, lasts_s=1.0)
    return [f"{event['type']} {event['object']['metadata']['name']}" for event in found]


def change(kind: str, name: str) -> dict[str, object]:
    return {"type": kind, "object": {"metadata": {"name": name}}}


def test_a_watch_gives_the_changes_in_order(served: Serving) -> None:
    with served(changes(change("ADDED", "a"), change("DELETED", "b"))) as (api, server, _):
        assert watched(api) == ["ADDED a", "DELETED b"]
    assert b"resourceVersion=7" in server.requests[0]


def test_a_watch_from_too_long_ago_says_so_as_an_answer(served: Serving) -> None:
    with served(says(410, status(410, "Expired"))) as (api, _, _):
        assert refused(lambda: watched(api), ClusterError).status == 410


def test_a_watch_from_too_long_ago_says_so_as_a_change(served: Serving) -> None:
    with served(changes({"type": "ERROR", "object": status(410, "Expired")})) as (api, _, _):
        assert refused(lambda: watched(api), ClusterError).status == 410


@pytest.mark.parametrize("end", [b"", b'5\r\n{"ty'])
def test_a_watch_that_breaks_off_is_told(served: Serving, end: bytes) -> None:
    with served(changes(change("ADDED", "a"), end=end)) as (api, _, _):
        assert "broke the connection" in str(refused(lambda: watched(api)))


def test_a_watch_of_nonsense_is_told(served: Serving) -> None:
    with served(changes("text")) as (api, _, _):
        assert "no JSON object" in str(refused(lambda: watched(api)))


# ---- the way to pods -------------------------------------------------------------------------------------


def test_the_pool_signs_in_at_the_api_server_and_nowhere_else(served: Serving) -> None:
    with Server(says(200, {})) as pod, served(says(200, {})) as (api, server, _):
        pool: Any = api.http()
        pool.request("POST", api.proxied("llm", "vllm-0", 8000) + "/v1/x", headers={"Content-Type": "a/b"}, body=b"{}")
        pool.request("GET", f"http://127.0.0.1:{pod.port}/health")
        pool.clear()
    asked = server.requests[0].decode().lower()
    assert asked.startswith("post /api/v1/namespaces/llm/pods/vllm-0:8000/proxy/v1/x http")
    assert f"authorization: bearer {TOKEN}" in asked
    assert "content-type: a/b" in asked
    assert TOKEN not in pod.requests[0].decode()


def test_the_proxy_of_the_environment_is_used_for_the_api_and_for_pods(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Server(says(200, BODY)) as proxy:
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{proxy.port}")
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig(tmp_path, "http://api.example:6443")))
        api = connect(limits=QUICK, clock=Waiting())
        api.get(PODS, "llm", "x")
        api.http().request("GET", api.proxied("llm", "vllm-0", 8000) + "/health")
        api.close()
        asked = [request.decode().split(" ")[1] for request in proxy.requests]
    assert [url.partition("/api/")[0] for url in asked] == ["http://api.example:6443"] * 2


def test_no_proxy_keeps_away_from_it(served: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with served(says(200, BODY)) as (api, _, _):
        assert api.get(PODS, "llm", "x") == BODY


def test_an_answer_is_read_to_its_end_and_the_connection_kept(served: Serving) -> None:
    with served(says(200, BODY), says(200, BODY)) as (api, server, _):
        api.get(PODS, "llm", "x")
        api.get(PODS, "llm", "x")
        assert server.connections == 1
