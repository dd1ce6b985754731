"""What the doctor says of Prometheus, Alertmanager and router, by what they answer."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from drills.doctor import monitoring
from drills.doctor.finding import Finding, State
from drills.doctor.monitoring import Places
from drills.doctor.wanted import wanted
from drills.model import Json
from drills.options import Options
from drills.probes.prometheus import Alertmanager, Prometheus
from drills.target import lab_target

NOWHERE = "http://127.0.0.1:1"
RULE = {"name": "VllmReplicaDown", "health": "ok"}
CONFIG = "receivers: [{name: team, webhook_configs: [{url: http://pager/}]}, {name: nobody}]"


class _Handler(BaseHTTPRequestHandler):
    answers: dict[str, Any]

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        found = self.answers.get(self.path.partition("?")[0])
        data = found.encode() if isinstance(found, str) else json.dumps(found).encode()
        self.send_response(404 if found is None else 200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@pytest.fixture
def answers() -> Iterator[tuple[dict[str, Any], str]]:
    """Everything well; yields what is answered by path, and where."""
    found: dict[str, Any] = {
        "/api/v1/rules": rules(RULE),
        "/api/v1/alertmanagers": {"data": {"activeAlertmanagers": [{"url": "http://am:9093/api/v2/alerts"}]}},
        "/api/v2/status": {"config": {"original": CONFIG}},
        "/metrics": "vllm_router_active_workers 3\n",
    }
    handler = type("Handler", (_Handler,), {"answers": found})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    yield found, f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join(5)


def rules(*found: Json) -> Json:
    return {"data": {"groups": [{"rules": list(found)}]}}


@pytest.fixture
def look(answers: tuple[dict[str, Any], str]) -> Callable[..., dict[str, Finding]]:
    """Look at that server as everything there is, for drills."""
    _, url = answers

    def look(*drills: str, places: Places | None = None) -> dict[str, Finding]:
        asked = wanted(drills or ("pod-kill",), lab_target(), Options())
        there = places or Places(Prometheus(url), Alertmanager(url), f"{url}/metrics")
        return {f"{one.group} {one.name}": one for one in monitoring.look(asked, there, "prod")}

    return look


Look = Callable[..., dict[str, Finding]]
Answers = tuple[dict[str, Any], str]


def test_all_is_well(look: Look) -> None:
    found = look()
    assert {one.state for one in found.values()} == {State.OK}, found
    assert found["alerts alertmanager"].text.endswith("it has a way to notify team")


def test_what_nobody_declared_is_missing_where_an_alert_is_asked_for(look: Look) -> None:
    found = look(places=Places())
    for name in ("metrics prometheus", "metrics alertmanager", "metrics router"):
        assert (found[name].state, found[name].refuses) == (State.MISSING, False)
        assert found[name].fix[0] == "in drill.yaml, below targets.prod:"
    assert look("packet-loss", places=Places())["metrics prometheus"].state is State.OK


def test_a_prometheus_that_cannot_be_read_refuses_drills(look: Look) -> None:
    found = look(places=Places(Prometheus(NOWHERE), None, None))["metrics prometheus"]
    assert (found.state, found.refuses) == (State.MISSING, True)
    assert "cannot connect" in found.text


@pytest.mark.parametrize(
    ("rule", "says"),
    [
        ({"name": "Other", "health": "ok"}, "has no such rule; pod-kill would wait for it in vain"),
        (RULE | {"health": "err", "lastError": "many-to-many\nmatching"}, "cannot be evaluated: many-to-many matching"),
    ],
)
def test_a_rule_that_is_not_there_or_cannot_be_evaluated(look: Look, answers: Answers, rule: Json, says: str) -> None:
    answers[0]["/api/v1/rules"] = rules(rule)
    found = look()["alerts VllmReplicaDown"]
    assert (found.state, says in found.text) == (State.MISSING, True), found
    assert found.fix


def test_alerts_that_reach_nobody(look: Look, answers: Answers) -> None:
    answers[0]["/api/v1/alertmanagers"] = {"data": {"activeAlertmanagers": []}}
    answers[0]["/api/v2/status"] = {"config": {"original": "receivers: [{name: nobody}]"}}
    found = look()
    assert "nobody would be notified" in found["alerts delivery"].text
    assert "notifies nobody" in found["alerts alertmanager"].text


def test_answers_of_something_else_are_no_answers(look: Look, answers: Answers) -> None:
    answers[0].update({"/api/v1/alertmanagers": "<html>", "/api/v2/status": {"config": 3}, "/metrics": "up 1\n"})
    found = look()
    assert found["alerts delivery"].state is State.UNKNOWN
    assert found["alerts alertmanager"].state is State.MISSING
    assert "no router metric" in found["metrics router"].text
