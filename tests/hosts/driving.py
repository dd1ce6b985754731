"""Drives `drill` at the test hosts as a user does: short experiments, whole runs, and what is asked beside them."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final

from ruamel.yaml import YAML

from tests.hosts.fleet import TARGET, Fleet
from tests.lab.drilling import Driller, Ran

TIMEOUT_S: Final = 400.0
#: As short as an SLA of 3 s for whole answers allows.
SHORT: Final = """\
drill: 1
name: short
title: A drill as short as it can be
hypothesis: Whatever happens to it, everything is put back.
playbook: pod-kill
load:
  arrivals: {kind: poisson, rate: 4/s}
phases: {warmup: 1s, baseline: 6s, fault: FAULT_S, recovery: auto}
faults:
  - FAULT
checks:
CHECKS
"""
#: The machine of the tests may be busy; what is patient here is only the way there.
PATIENT: Final = {"connect": "30s", "banner": "30s", "auth": "60s", "command": "60s"}


def experiment(folder: Path, fault: str, checks: str, fault_s: int = 15) -> Path:
    """Write a short experiment."""
    text = SHORT.replace("FAULT_S", f"{fault_s}s").replace("FAULT", fault).replace("CHECKS", checks)
    (path := folder / "short.yaml").write_text(text)
    return path


def place(fleet: Fleet, folder: Path, instead: tuple[str, str] = ("", "")) -> list[str]:
    """Return the words that name the target, its SLA fit for short drills. `instead`: a text, and its replacement."""
    path = folder / "drill.yaml"
    if not path.exists():  # later a host may be down, and cannot be asked what it has
        fleet.targets_file(folder)
    text = path.read_text()
    if "timeouts:" not in text:
        patient = ", ".join(f"{key}: {value}" for key, value in PATIENT.items())
        text = text.replace("      unit:", f"      timeouts: {{{patient}}}\n      unit:")
        text = text.replace("e2e:\n        p99: 6s", "e2e:\n        p99: 3s")
    path.write_text(text.replace(*instead, 1) if instead[0] else text)
    return ["--target", TARGET, "--targets", str(path)]


def declare(folder: Path, **values: object) -> None:
    """Change what the drill.yaml in that folder says of each host."""
    document = YAML().load(file := folder / "drill.yaml")
    for host in document["targets"][TARGET]["hosts"]:
        host.update(values)
    with file.open("w") as out:
        YAML().dump(document, out)


def words(fleet: Fleet, folder: Path, *given: str, instead: tuple[str, str] = ("", "")) -> list[str]:
    """Return the words of a command of `drill` at the hosts; its reports are in the folder."""
    reports = ["--reports", str(folder / "reports")] if given[0] in ("run", "status", "recover") else []
    plain = ["--plain"] if given[0] == "run" else []
    return fleet.drill_argv([*given, *place(fleet, folder, instead), *reports, *plain])


def drill(fleet: Fleet, folder: Path, *given: str, instead: tuple[str, str] = ("", "")) -> Ran:
    """Run a command of `drill` to its end."""
    argv = words(fleet, folder, *given, instead=instead)
    done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    return Ran(done.returncode, done.stdout, done.stderr, Driller(folder / "lab", folder / "reports", 0).latest())


def drilled(fleet: Fleet, folder: Path, fault: str, checks: str, fault_s: int = 15) -> Ran:
    """Run a short drill to its end."""
    return drill(fleet, folder, "run", str(experiment(folder, fault, checks, fault_s)))


def start(
    fleet: Fleet, folder: Path, fault: str, checks: str = "  - accounted", fault_s: int = 15, seed: int = 0
) -> subprocess.Popen[str]:
    """Start a short drill in a process group of its own."""
    path = experiment(folder, fault, checks, fault_s)
    argv = words(fleet, folder, "run", str(path), "--seed", str(seed))
    return subprocess.Popen(
        argv, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
