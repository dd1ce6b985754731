"""Prometheus and Alertmanager over HTTP, with explicit time-outs and no retries.

prometheus-api-client hides failures behind three retries and has no time-out of its own, and it lacks
alerts and rules; so it gets a session of ours, and those two go through the same session.
"""

from __future__ import annotations

from typing import Any

import requests
from prometheus_api_client import PrometheusConnect
from requests.adapters import HTTPAdapter
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError
from urllib3.util.retry import Retry

from drills.errors import first_line
from drills.model import HasTokens, Json, Target
from drills.probes import answers
from drills.probes.answers import held, understood
from drills.probes.http import ProbeError

TIMEOUT_S = 3.0
#: Alertmanager's counters of what it handed to receivers, retries included, and of what they did not take.
REQUESTS = "alertmanager_notification_requests_total"
FAILED = "alertmanager_notification_requests_failed_total"


class Prometheus:
    """One Prometheus server."""

    def __init__(self, url: str, *, bearer: str | None = None, timeout_s: float = TIMEOUT_S) -> None:
        self.url, self.timeout_s = url.rstrip("/"), timeout_s
        self.session = _session(bearer)
        never = Retry(total=0, redirect=0)
        self.client = PrometheusConnect(url=self.url, session=self.session, retry=never, timeout=int(timeout_s) or 1)
        self.session.mount(self.url, HTTPAdapter(max_retries=never))

    def query(self, promql: str, *, lookback: str | None = None) -> list[Json]:
        """Return the instant vector of a query; older samples than `lookback` do not count. Raises ProbeError."""
        params = {"timeout": f"{self.timeout_s:g}s"} | ({"lookback_delta": lookback} if lookback else {})
        try:
            found = self.client.custom_query(promql, params=params)
        except Exception as error:
            raise ProbeError(f"query: {_why(error)}") from None
        return held(answers.SAMPLES, found)

    def alerts(self) -> list[Json]:
        """Return the pending and firing alerts: labels, state, activeAt, value. Raises ProbeError."""
        return held(answers.FIRING, self._data("/api/v1/alerts", "alerts"))

    def rules(self) -> list[Json]:
        """Return all alerting rules: name, health, lastEvaluation, duration. Raises ProbeError."""
        groups = held(answers.RULES, self._data("/api/v1/rules?type=alert", "groups"))
        return [rule for group in groups for rule in group["rules"]]

    def managers(self) -> list[str]:
        """Return the addresses of the Alertmanagers that it tells of alerts. Raises ProbeError."""
        found = held(answers.MANAGERS, self._data("/api/v1/alertmanagers", "activeAlertmanagers"))
        return [str(one["url"]) for one in found]

    def _data(self, path: str, key: str) -> Any:
        answer = _get(self.session, self.url + path, self.timeout_s)
        with understood():
            return answer["data"][key]


class Alertmanager:
    """One Alertmanager."""

    def __init__(self, url: str, *, bearer: str | None = None, timeout_s: float = TIMEOUT_S) -> None:
        self.url, self.timeout_s = url.rstrip("/"), timeout_s
        self.session = _session(bearer)
        self.session.mount(self.url, HTTPAdapter(max_retries=Retry(total=0, redirect=0)))

    def alerts(self) -> list[Json]:
        """Return its alerts with state, startsAt and silences. Raises ProbeError."""
        return held(answers.ALERTS, _get(self.session, f"{self.url}/api/v2/alerts", self.timeout_s))

    def groups(self) -> list[Json]:
        """Return its groups with labels, receiver, and their alerts that nothing silences. Raises ProbeError."""
        url = f"{self.url}/api/v2/alerts/groups?silenced=false&inhibited=false"
        return held(answers.GROUPS, _get(self.session, url, self.timeout_s))

    def sent(self) -> float:
        """Return how many notifications were accepted by whoever was to get them. Raises ProbeError."""
        text = _text(self.session, f"{self.url}/metrics", self.timeout_s)
        with understood():
            counts = {name: _counter(text, name) for name in (REQUESTS, FAILED)}
        if counts[REQUESTS] is None:
            raise ProbeError(f"/metrics has no {REQUESTS}")
        return (counts[REQUESTS] or 0.0) - (counts[FAILED] or 0.0)

    def ways(self) -> dict[str, int]:
        """Return in how many ways each receiver of its configuration is notified: 0 tells nobody. Raises ProbeError."""
        status = _get(self.session, f"{self.url}/api/v2/status", self.timeout_s)
        try:
            with understood():
                receivers = YAML(typ="safe").load(str(status["config"]["original"]))["receivers"]
                return {
                    str(one["name"]): sum(len(part or ()) for key, part in one.items() if key.endswith("_configs"))
                    for one in receivers
                }
        except (YAMLError, ProbeError):
            raise ProbeError("its configuration cannot be read") from None

    def silences(self) -> list[Json]:
        """Return its silences with id, status, matchers, comment and endsAt, expired ones too. Raises ProbeError."""
        return held(answers.SILENCES, _get(self.session, f"{self.url}/api/v2/silences", self.timeout_s))

    def silence(self, body: Json) -> str:
        """Create a silence and return its id. Raises ProbeError."""
        url = f"{self.url}/api/v2/silences"
        said = _ask(self.session, "POST", url, self.timeout_s, body)
        if not isinstance(said, dict) or not said.get("silenceID"):
            raise ProbeError("the answer names no silence")
        return str(said["silenceID"])

    def expire(self, silence: str) -> None:
        """End a silence now; one that has ended is no error for Alertmanager. Raises ProbeError."""
        _ask(self.session, "DELETE", f"{self.url}/api/v2/silence/{silence}", self.timeout_s)

    def tell(self, alerts: list[Json]) -> None:
        """Hand it alerts of our own. Raises ProbeError."""
        _ask(self.session, "POST", f"{self.url}/api/v2/alerts", self.timeout_s, alerts)


def prometheus_of(target: Target) -> Prometheus | None:
    """Return the target's Prometheus, None when it names none."""
    bearer = target.bearer("prometheus") if isinstance(target, HasTokens) else None
    return Prometheus(target.prometheus, bearer=bearer) if target.prometheus else None


def alertmanager_of(target: Target) -> Alertmanager | None:
    """Return the target's Alertmanager, None when it names none."""
    bearer = target.bearer("alertmanager") if isinstance(target, HasTokens) else None
    return Alertmanager(target.alertmanager, bearer=bearer) if target.alertmanager else None


class _Bearer(requests.auth.AuthBase):
    """Sends a token; as a header of the session a ~/.netrc would take its place."""

    def __init__(self, token: str) -> None:
        self._token = token

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        request.headers["Authorization"] = f"Bearer {self._token}"
        return request


def _session(bearer: str | None) -> requests.Session:
    session = requests.Session()
    session.auth = _Bearer(bearer) if bearer else None
    return session


def _get(session: requests.Session, url: str, timeout_s: float) -> Any:
    return _ask(session, "GET", url, timeout_s)


def _ask(session: requests.Session, method: str, url: str, timeout_s: float, body: Any = None) -> Any:
    """Return the answer to one request, None when it is empty. Raises ProbeError."""
    try:
        answer = session.request(method, url, json=body, timeout=timeout_s)
        answer.raise_for_status()
        return answer.json() if answer.content.strip() else None
    except (requests.RequestException, ValueError) as error:
        raise ProbeError(_why(error)) from None


def _counter(text: str, name: str) -> float | None:
    """Return the sum of a counter's series, None when there is none."""
    lines = [line for line in text.splitlines() if line.startswith((f"{name}{{", f"{name} "))]
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines) if lines else None


def _text(session: requests.Session, url: str, timeout_s: float) -> str:
    try:
        answer = session.get(url, timeout=timeout_s)
        answer.raise_for_status()
    except requests.RequestException as error:
        raise ProbeError(_why(error)) from None
    return answer.text


def _why(error: Exception) -> str:
    if isinstance(error, requests.Timeout) or "Read timed out" in str(error):  # the latter where retries are counted
        return "timed out"
    if isinstance(error, requests.ConnectionError):
        return "cannot connect"
    return first_line(error)[:160]
