"""What probes make of real answers, and of none, over real connections."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any, cast

import pytest

from drills import gate
from drills.doctor import monitoring
from drills.doctor.wanted import Wanted
from drills.errors import Refused
from drills.model import Context, Receipt, Target
from drills.probes import health, http, promql
from drills.probes.alerts import AlertWatch
from drills.probes.http import ProbeError
from drills.probes.notified import Notifications
from drills.probes.prometheus import Alertmanager, Prometheus
from drills.silence import Silence


@contextmanager
def serving(status: int, body: Any, asked: list[str] | None = None) -> Iterator[str]:
    """Answer every GET in the same way; give the address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if asked is not None:
                asked.append(self.path)
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            """Keep quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)


# ---- health ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [200, 503])
def test_what_a_health_endpoint_says(status: int) -> None:
    with serving(status, {}) as url:
        said = health.ask(http.pool(), f"{url}/health", timeout_s=5)
    assert (said["endpoint"], said["status"], said["error"]) == (f"{url}/health", status, None)


def test_a_refusal_is_an_answer() -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and does not listen
        url = f"http://127.0.0.1:{nobody.getsockname()[1]}/health"
        said = health.ask(http.pool(), url, timeout_s=5)
    assert (said["status"], said["error"]) == (None, "connection refused")


def test_silence_is_an_answer() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/health"
        said = health.ask(http.pool(), url, timeout_s=0.1)
    assert (said["status"], said["error"]) == (None, "timed out")


# ---- PromQL ----------------------------------------------------------------------------------------------


def vector(*values: str) -> Any:
    result = [{"metric": {"instance": str(n)}, "value": [1.0, value]} for n, value in enumerate(values)]
    return {"status": "success", "data": {"resultType": "vector", "result": result}}


def test_one_series_is_a_value() -> None:
    asked: list[str] = []
    with serving(200, vector("0.25"), asked) as url:
        assert promql.ask(Prometheus(url), "sum(up)") == {"value": 0.25}
    assert "lookback_delta=1m" in asked[0]


def test_a_scalar_is_a_value() -> None:
    with serving(200, {"status": "success", "data": {"resultType": "scalar", "result": [1.0, "3"]}}) as url:
        assert promql.ask(Prometheus(url), "scalar(sum(up))") == {"value": 3.0}


@pytest.mark.parametrize(
    ("values", "said"),
    [([], "no series"), (["1", "2"], "2 series where one is meant"), (["NaN"], "NaN"), (["+Inf"], "Inf")],
)
def test_anything_else_is_none(values: list[str], said: str) -> None:
    with serving(200, vector(*values)) as url, pytest.raises(ProbeError, match=said):
        promql.ask(Prometheus(url), "up")


@pytest.mark.parametrize("status", [400, 503])
def test_an_error_is_none(status: int) -> None:
    with serving(status, {"status": "error", "error": "parse error"}) as url, pytest.raises(ProbeError, match="query"):
        promql.ask(Prometheus(url), "up)")


def test_only_the_plans_own_queries_are_asked() -> None:
    checks = [
        {"check": "availability", "params": {}},
        {"check": "metrics", "params": {"preset": "serving-minimum", "business": {"promql": "orders", "falls": 0.05}}},
        {
            "check": "metrics",
            "params": {"rows": [{"name": "queue", "promql": "waiting", "max": 3.0}], "business": None},
        },
    ]
    assert promql.wanted({"experiment": {"checks": checks}}) == {"business": "orders", "queue": "waiting"}
    assert promql.wanted({"experiment": {"checks": checks[:1]}}) == {}


# ---- answers of another form --------------------------------------------------------------------------------

STAMP = "2026-11-30T14:00:00.000Z"
ALERT: Any = {"labels": {"alertname": "Down"}, "status": {"state": "active"}, "fingerprint": "a", "startsAt": STAMP}
GROUP: Any = {"labels": {}, "receiver": {"name": "pager"}, "alerts": [ALERT]}
HELD: Any = {"id": "s", "status": {"state": "active"}, "endsAt": STAMP, "createdBy": "ada"}
FIRES: Any = {"labels": {"alertname": "Down"}, "state": "firing", "activeAt": STAMP}


def prometheus(key: str, *items: Any) -> Any:
    return {"status": "success", "data": {key: list(items)}}


def spoilt(whole: Any, **odd: tuple[Any, ...]) -> list[Any]:
    """Return it once for each of these values, with that one in place of its own."""
    return [whole | {key: value} for key, values in odd.items() for value in values]


NONE_OF_THESE: tuple[Any, ...] = ({}, [None], [3], [{}], [[]])
ODD: list[Any] = [b"<html>", b"", None, 3, "text", {}, [3], [None], [[]], [{}], {"data": None}, {"data": []}]
ODD += [{"config": None}, {"config": {"original": 3}}, {"config": {"original": "receivers: [a]"}}]
ODD += [{"config": {"original": "receivers: [{name: a, web_configs: 3}]"}}, {"config": {"original": "a: [b"}}]
ODD += [{"data": {"alerts": some, "groups": some, "activeAlertmanagers": some}} for some in NONE_OF_THESE]
ODD += [{"data": {"result": 5}}, prometheus("groups", {"rules": [{}]}), prometheus("groups", {"rules": None})]
ODD += [prometheus("alerts", one) for one in spoilt(FIRES, labels=(None,), state=(None,), activeAt=("soon", 5))]
ODD += [[one] for one in spoilt(ALERT, labels=([],), status=("active",), startsAt=("soon", 5))]
ODD += [[one] for one in spoilt(GROUP, receiver=("pager", None), alerts=([{}],), labels=(None,))]
ODD += [[one] for one in spoilt(HELD, id=(None,), status=({},), endsAt=(None,))]
ODD += [b"alertmanager_notification_requests_total{} much\n", b"alertmanager_notification_requests_total \n"]


@pytest.mark.parametrize("body", ODD, ids=lambda body: str(body)[:60])
def test_an_answer_of_another_form_is_none(body: Any) -> None:
    """Whatever stands at that address: what was asked for cannot be said, and that is all."""
    with serving(200, body) as url:
        server, manager = Prometheus(url), Alertmanager(url)
        asks: list[Callable[[], Any]] = [server.alerts, server.rules, server.managers, manager.alerts, manager.groups]
        asks += [manager.silences, manager.ways, manager.sent, lambda: promql.ask(server, "up")]
        for ask in asks:
            with contextlib.suppress(ProbeError):
                pytest.fail(f"{ask}: {ask()}")


@pytest.mark.parametrize("body", ODD, ids=lambda body: str(body)[:60])
def test_whoever_asks_takes_an_answer_of_another_form_for_none(body: Any) -> None:
    with serving(200, body) as url:
        found: Any = SimpleNamespace(name="t", kind="lab", prometheus=url, alertmanager=url)
        gate.firing(found)
        list(monitoring.look(Wanted(()), monitoring.Places(Prometheus(url), Alertmanager(url)), "t"))
        watch = AlertWatch(lambda *_: None)
        notes = Notifications(Alertmanager(url), lambda *_: None)
        notes.ways = {}
        looks: list[Callable[[], Any]] = [lambda: watch.prometheus(Prometheus(url)), notes.look]
        looks += [lambda: watch.alertmanager(Alertmanager(url))]
        for look in looks:
            with contextlib.suppress(ProbeError):
                look()
        receipt = Receipt("r-0", "r", Silence.name, "t", "a", (), {"alertmanager": url}, (), (), 60.0)
        wanted, context = Silence(Silence.Params(silences=()), "lab"), cast("Context", None)
        wanted.preflight(found, [])
        for deed in (wanted.observe, wanted.revert):
            with contextlib.suppress(Refused):
                deed(found, receipt, context)


def test_an_answer_of_the_right_form_is_taken_as_it_came() -> None:
    with serving(200, prometheus("alerts", FIRES | {"value": "1"})) as url:
        assert Prometheus(url).alerts() == [FIRES | {"value": "1"}]
    with serving(200, [GROUP]) as url:
        assert Alertmanager(url).groups() == [GROUP]
    with serving(200, [HELD]) as url:
        assert Alertmanager(url).silences() == [HELD]


def test_what_is_malformed_is_named() -> None:
    with (
        serving(200, [ALERT | {"startsAt": "soon"}]) as url,
        pytest.raises(ProbeError, match=r"malformed: 0\.startsAt"),
    ):
        Alertmanager(url).alerts()


# ---- pages -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("labels", "refused"),
    [
        ({"severity": "page"}, True),
        ({"severity": "critical"}, True),
        ({}, True),
        ({"severity": "ticket"}, False),
        ({"severity": "warning"}, False),
        ({"severity": "info"}, False),
    ],
)
def test_a_drill_is_refused_while_a_page_fires_and_by_nothing_less(labels: dict[str, str], refused: bool) -> None:
    alerts = [
        {"labels": {"alertname": "Some"} | labels, "state": "firing"},
        {"labels": {"alertname": "Other", "severity": "page"}, "state": "pending"},
        {"labels": {"alertname": "Watchdog"}, "state": "firing"},
    ]
    with serving(200, {"data": {"alerts": alerts}}) as url:
        found = gate.firing(cast("Target", SimpleNamespace(prometheus=url)))
    assert [("Some" in line, "Other" in line) for line in found] == ([(True, False)] if refused else [])
