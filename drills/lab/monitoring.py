"""Prometheus and Alertmanager of the lab: their files, rendered from the shipped rules, and their command lines."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

import drills
from drills.lab.config import SERVICE, LabConfig
from drills.lab.network import LOOPBACK, NO_NETWORK, Network
from drills.model import Json

RULES = Path(drills.__file__).parent / "data" / "alerts" / "vllm.rules.yml"
MINIMUM = RULES.with_name("serving-minimum.rules.yml")
#: The shipped windows suit scrapes every 15 to 30 s; the lab scrapes each second.
WINDOWS = {"[5m]": "[10s]", "[1m]": "[5s]"}
#: What would be on all the time here, and say nothing: the GPUs are stand-ins that compute nothing, and a drill's own
#: load, which begins and ends, is all the traffic that there is.
NOT_HERE = frozenset({"ServingGpuUtilisationLow", "ServingQpsChanged"})
#: Where Debian's Alertmanager looks for its templates, compiled in.
TEMPLATES = Path("/usr/share/prometheus/alertmanager")
INSTALL = "install them, or let `make setup` unpack them under .cache/tools, or say where they are with DRILL_TOOLS"


@dataclass(frozen=True)
class Binaries:
    """Where the programs are; None where there is none."""

    prometheus: str | None
    alertmanager: str | None
    promtool: str | None

    @property
    def complete(self) -> bool:
        """Whether alerts can fire and be notified."""
        return self.prometheus is not None and self.alertmanager is not None


def tools_dir() -> Path:
    """Return where unpacked programs are looked for: $DRILL_TOOLS, else .cache/tools of the repository or of here."""
    if named := os.environ.get("DRILL_TOOLS"):
        return Path(named).absolute()
    inside = Path(".cache") / "tools" / "usr" / "bin"
    repository = Path(drills.__file__).parents[1] / inside
    return repository if repository.is_dir() else Path.cwd() / inside


def binaries() -> Binaries:
    """Find the programs on the PATH, then in `tools_dir`. Debian calls Alertmanager prometheus-alertmanager."""

    def first(*names: str) -> str | None:
        found = (shutil.which(name, path=path) for path in (None, str(tools_dir())) for name in names)
        return next((f for f in found if f), None)

    return Binaries(first("prometheus"), first("prometheus-alertmanager", "alertmanager"), first("promtool"))


def version(program: str) -> str:
    """Return the version a program says it is, "unknown" when it does not."""
    try:
        done = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    words = (done.stdout + done.stderr).split()
    return words[words.index("version") + 1] if "version" in words else "unknown"


def runnable(alertmanager: str, folder: Path) -> tuple[str, Path | None]:
    """Return Alertmanager as it can run here, and the folder that it must run in (None: any).

    Debian's package that was unpacked and not installed cannot find its templates. In a copy of the program, made in
    `folder`, the path is replaced by one of the same length that is relative to the templates that came with it.
    """
    unpacked = Path(alertmanager).resolve().parents[1] / TEMPLATES.relative_to("/usr")
    if TEMPLATES.is_dir() or not unpacked.is_dir():
        return alertmanager, None
    compiled_in = str(TEMPLATES).encode()
    copy = folder / "alertmanager-relative"
    copy.write_bytes(Path(alertmanager).read_bytes().replace(compiled_in, b".".ljust(len(compiled_in), b"/")))
    copy.chmod(0o700)
    return str(copy), unpacked


# ---- files ---------------------------------------------------------------------------------------------


def expected(counts: Mapping[tuple[str, str], int]) -> str:
    """Return PromQL that says how many replicas each (service, model) has.

    It says so once that many have been ready together: replicas that start for the first time are not missing.
    """
    one = 'label_replace(label_replace(vector({n}), "service", "{service}", "", ""), "model", "{model}", "", "")'
    exact = " or ".join(one.format(n=n, service=service, model=model) for (service, model), n in counts.items())
    return f"({exact}) <= on (service, model) max_over_time(vllm:replicas_ready[1h])"


def _overstated(config: LabConfig) -> str:
    """Return PromQL that expects `alerts_expect` primaries, whether or not there ever were so many."""
    exact = f'label_replace(vector({config.alerts_expect}), "service", "{SERVICE}", "", "")'
    return f'label_replace({exact}, "model", "{config.model}", "", "")'


def rules(config: LabConfig) -> str:
    """Return the shipped rules as the lab uses them: shorter times, the exact number of replicas, nothing else."""
    yaml = YAML()
    yaml.width = 4096
    data = yaml.load(RULES.read_text())
    counts = {(SERVICE, config.model): config.replicas, (SERVICE, config.fallback_model): 1}
    labels = dict(label.split("=", 1) for label in config.alert_labels)
    for group in data["groups"]:
        group["rules"] = [rule for rule in group["rules"] if rule.get("alert") not in config.alerts_left_out]
        for rule in group["rules"]:
            if rule.get("record") == "vllm:replicas_expected":
                rule["expr"] = expected(counts) if config.alerts_expect is None else _overstated(config)
            for window, short in WINDOWS.items():
                rule["expr"] = rule["expr"].replace(window, short)
            if "for" in rule:
                rule["for"] = f"{config.alert_for_s:g}s"
                rule["labels"].update(labels)
    out = io.StringIO()
    yaml.dump(data, out)
    return out.getvalue()


def minimum() -> str:
    """Return the shipped tickets as the lab uses them: shorter windows, but as patient as they are elsewhere."""
    yaml = YAML()
    yaml.width = 4096
    data = yaml.load(MINIMUM.read_text())
    for group in data["groups"]:
        group["rules"] = [rule for rule in group["rules"] if rule["alert"] not in NOT_HERE]
        for rule in group["rules"]:
            for window, short in WINDOWS.items():
                rule["expr"] = rule["expr"].replace(window, short)
    out = io.StringIO()
    yaml.dump(data, out)
    return out.getvalue()


def _targets(config: LabConfig, net: Network) -> list[Json]:
    """Return the engines as scrape targets: past the router and past the proxy."""
    return [
        {
            "targets": [f"{net.host(name)}:{config.ports.engine(index)}"],
            "labels": {
                "replica": name,
                "role": "primary" if index < config.replicas else "fallback",
                "model": config.model if index < config.replicas else config.fallback_model,
                "service": SERVICE,
            },
        }
        for index, name in enumerate(config.names)
    ]


def prometheus_config(config: LabConfig, net: Network = NO_NETWORK) -> Json:
    """Return prometheus.yml as data."""
    p = config.ports

    def one(port: int, host: str = LOOPBACK) -> list[Json]:
        return [{"targets": [f"{host}:{port}"], "labels": {"service": SERVICE}}]

    router = one(p.router_metrics, net.host("router"))
    jobs = {"vllm": _targets(config, net), "edge": one(p.edge), "router": router, "dcgm": one(p.dcgm)}
    return {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
        "rule_files": [RULES.name, MINIMUM.name],
        "alerting": {"alertmanagers": [{"static_configs": [{"targets": [f"127.0.0.1:{p.alertmanager}"]}]}]},
        "scrape_configs": [{"job_name": job, "static_configs": targets} for job, targets in jobs.items()],
    }


def alertmanager_config(config: LabConfig, token_file: Path) -> Json:
    """Return alertmanager.yml as data: everything goes to the lab's own webhook, at once."""
    webhook = {
        "url": f"http://127.0.0.1:{config.ports.control}/webhook",
        "send_resolved": True,
        "http_config": {"authorization": {"credentials_file": str(token_file)}},
    }
    return {
        "route": {
            "receiver": "lab",
            "group_by": ["alertname", "service", "model", "instance"],
            "group_wait": "0s",
            "group_interval": "1s",
            "repeat_interval": "1h",
        },
        "receivers": [{"name": "lab", "webhook_configs": [webhook]}],
    }


def write(folder: Path, config: LabConfig, token_file: Path, net: Network = NO_NETWORK) -> None:
    """Write the files of both programs into `folder`."""
    folder.mkdir(exist_ok=True)
    (folder / RULES.name).write_text(rules(config))
    (folder / MINIMUM.name).write_text(minimum())
    _dump(folder / "prometheus.yml", prometheus_config(config, net))
    _dump(folder / "alertmanager.yml", alertmanager_config(config, token_file))


def _dump(path: Path, data: Any) -> None:
    with path.open("w") as out:
        YAML(typ="safe").dump(data, out)


# ---- command lines -------------------------------------------------------------------------------------


def prometheus_argv(program: str, folder: Path, config: LabConfig) -> list[str]:
    """Return Prometheus's command line. Debian's default console paths lie outside the lab, so they are emptied."""
    return [
        program,
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'prometheus'}",
        "--storage.tsdb.retention.time=1d",
        f"--web.listen-address=127.0.0.1:{config.ports.prometheus}",
        "--web.console.templates=",
        "--web.console.libraries=",
        "--log.level=warn",
    ]


def alertmanager_argv(program: str, folder: Path, config: LabConfig) -> list[str]:
    """Return Alertmanager's command line, alone: no cluster port."""
    return [
        program,
        f"--config.file={folder / 'alertmanager.yml'}",
        f"--storage.path={folder / 'alertmanager'}",
        f"--web.listen-address=127.0.0.1:{config.ports.alertmanager}",
        "--cluster.listen-address=",
        "--log.level=warn",
    ]
