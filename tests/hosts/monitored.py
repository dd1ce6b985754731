"""Prometheus and Alertmanager of the router's machine, with the shipped rules as the lab uses them."""

from __future__ import annotations

from pathlib import Path

from ruamel.yaml import YAML

from drills.lab import monitoring
from drills.lab.config import SERVICE, LabConfig
from drills.model import Json
from tests.hosts import layout
from tests.hosts.unittext import python, service

CONF, DATA = "/etc/monitoring", "/var/lib/monitoring"
RULES = (monitoring.RULES.name, monitoring.MINIMUM.name)


def there() -> bool:
    """Whether this machine has the programs."""
    return monitoring.binaries().complete


def provision(upper: Path) -> dict[str, str]:
    """Put the files on the disk; returns the units, none where the programs are missing."""
    programs = monitoring.binaries()
    if programs.prometheus is None or programs.alertmanager is None:
        return {}
    conf, data = upper / CONF.lstrip("/"), upper / DATA.lstrip("/")
    conf.mkdir(parents=True)
    data.mkdir(parents=True)
    texts = (monitoring.rules(LabConfig(replicas=len(layout.HOSTS))), monitoring.minimum())
    for name, text in zip(RULES, texts, strict=True):
        (conf / name).write_text(text)
    yaml = YAML(typ="safe")
    for name, content in {"prometheus.yml": _prometheus(), "alertmanager.yml": _alertmanager()}.items():
        with (conf / name).open("w") as out:
            yaml.dump(content, out)
    alertmanager, folder = monitoring.runnable(programs.alertmanager, data)
    inside = alertmanager.removeprefix(str(upper))
    return {
        "prometheus.service": service("Prometheus", _prometheus_command(programs.prometheus)),
        "pager.service": service("Pager", python("tests.hosts.pager", str(layout.PAGER_PORT))),
        "alertmanager.service": service("Alertmanager", _alertmanager_command(inside), folder=str(folder or "/")),
    }


def settled() -> str:
    """Return PromQL that has a result once everything is scraped and expected, and no alert is even pending."""
    parts = 2 * len(layout.HOSTS) + 3
    return f"count(up == 1) == {parts} and on () count(vllm:replicas_expected) unless on () count(ALERTS)"


def _prometheus_command(program: str) -> tuple[str, ...]:
    return (
        program,
        f"--config.file={CONF}/prometheus.yml",
        f"--storage.tsdb.path={DATA}/prometheus",
        f"--web.listen-address=0.0.0.0:{layout.PROMETHEUS_PORT}",
        "--web.console.templates=",
        "--web.console.libraries=",
        "--log.level=warn",
    )


def _alertmanager_command(program: str) -> tuple[str, ...]:
    return (
        program,
        f"--config.file={CONF}/alertmanager.yml",
        f"--storage.path={DATA}/alertmanager",
        f"--web.listen-address=0.0.0.0:{layout.ALERTMANAGER_PORT}",
        "--cluster.listen-address=",
        "--log.level=warn",
    )


def _prometheus() -> Json:
    """Return prometheus.yml. The hosts are asked by the way that no rule against the router touches."""
    hosts = [machine for machine in layout.ALL if not machine.is_router]
    engines = [_engine(f"{host.watch}:{layout.ENGINE_PORT}", host.name, "primary", layout.MODEL) for host in hosts]
    engines.append(_engine(f"127.0.0.1:{layout.SMALL_PORT}", "small-0", "fallback", layout.FALLBACK_MODEL))
    jobs = {
        "vllm": engines,
        "edge": [_target(f"127.0.0.1:{layout.EDGE_PORT}")],
        "router": [_target(f"127.0.0.1:{layout.ROUTER_METRICS_PORT}")],
        "dcgm": [_target(f"{host.watch}:{layout.EXPORTER_PORT}") for host in hosts],
    }
    return {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
        "rule_files": list(RULES),
        "alerting": {"alertmanagers": [{"static_configs": [{"targets": [f"127.0.0.1:{layout.ALERTMANAGER_PORT}"]}]}]},
        "scrape_configs": [{"job_name": job, "static_configs": targets} for job, targets in jobs.items()],
    }


def _engine(address: str, name: str, role: str, model: str) -> Json:
    return {"targets": [address], "labels": {"replica": name, "role": role, "model": model, "service": SERVICE}}


def _target(address: str) -> Json:
    return {"targets": [address], "labels": {"service": SERVICE}}


def _alertmanager() -> Json:
    """Return alertmanager.yml: what is to be told is told at once."""
    groups = ["alertname", "service", "model", "instance"]
    times = {"group_wait": "0s", "group_interval": "1s", "repeat_interval": "1h"}
    pager = {"name": "pager", "webhook_configs": [{"url": f"http://127.0.0.1:{layout.PAGER_PORT}/"}]}
    return {"route": {"receiver": "pager", "group_by": groups, **times}, "receivers": [pager]}
