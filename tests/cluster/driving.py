"""Drives `drill` at a service of the tests as a user does: what is declared, its words, a run that is cut short."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.cluster.emulator import SELECTOR, Emulator, with_token
from tests.lab.drilling import DRILL, Driller, Ran

EXPERIMENTS = Path(__file__).parent / "experiments"
HOWS = ("delete", "delete-now", "evict")


# ---- what is declared ------------------------------------------------------------------------------------


def declare(folder: Path, service: Emulator, *, url: str | None = None, more: str = "", **changes: str) -> None:
    """Write the targets file."""
    where = {"namespace": service.namespace.name, "selector": f'"{SELECTOR}"', **changes}
    sections = ", ".join(f"{key}: {value}" for key, value in where.items())
    (folder / "drill.yaml").write_text(f"""\
targets:
  prod:
    endpoint: {{url: {url or service.url}, model: lab-chat}}
    sla: {{ttft: {{p99: 2s}}, e2e: {{p99: 12s}}, max_gap: {{p99: 4s}}, errors: 5%}}
    kubernetes: {{{sections}, port: 8000}}
{more}""")


def pod_kill(how: str) -> str:
    """Return the short experiment in which a pod dies."""
    return (EXPERIMENTS / "pod-kill.yaml").read_text().replace("HOW", how)


def node_fault(fault: str, checks: str) -> str:
    """Return the short experiment with that fault and those checks."""
    return (EXPERIMENTS / "node-fault.yaml").read_text().replace("FAULT", fault).replace("CHECKS", checks)


# ---- who drills ------------------------------------------------------------------------------------------


def driller(folder: Path, kubeconfig: Path, timeout_s: float = 300.0) -> Driller:
    """Return `drill` at that cluster; its reports, targets file and experiments are in the folder."""
    made = Driller(folder / "lab", folder / "reports", 0, timeout_s=timeout_s)
    made.env["KUBECONFIG"] = str(kubeconfig)
    return made


def pod_killer(folder: Path, kubeconfig: Path, service: Emulator) -> Driller:
    """Return `drill` with the service declared, and an experiment for each way in which a pod dies."""
    declare(folder, service)
    for how in HOWS:
        (folder / f"{how}.yaml").write_text(pod_kill(how))
    return driller(folder, kubeconfig)


def signed_in(folder: Path, kubeconfig: Path, token: str) -> Path:
    """Write a kubeconfig that signs in with that token instead of as the administrator."""
    path = folder / "kubeconfig"
    path.write_text(json.dumps(with_token(kubeconfig, token)))
    return path


def use(drill: Driller, kubeconfig: Path, token: str) -> None:
    """Let the drill sign in with that token instead of as the administrator."""
    drill.env["KUBECONFIG"] = str(signed_in(drill.reports.parent, kubeconfig, token))


# ---- its words -------------------------------------------------------------------------------------------


def place(drill: Driller) -> list[str]:
    """Return the words that name target and reports."""
    targets = str(drill.reports.parent / "drill.yaml")
    return ["--targets", targets, "--target", "prod", "--reports", str(drill.reports)]


def words(drill: Driller, experiment: str | Path) -> list[str]:
    """Return the words that run an experiment: a file of the drill's folder, or of any other."""
    return ["run", str(drill.reports.parent / experiment), *place(drill), "--plain"]


def written(drill: Driller, experiment: str) -> Path:
    """Write the text of an experiment into the drill's folder."""
    path = drill.reports.parent / "experiment.yaml"
    path.write_text(experiment)
    return path


def refused(ran: Ran, code: int) -> str:
    """Return the one sentence of a refusal."""
    assert ran.code == code, ran.out + ran.err
    said = [line for line in (ran.out + ran.err).splitlines() if line.startswith(("drill: ", "refused: "))]
    assert len(said) == 1, ran.out + ran.err
    assert "Traceback" not in ran.out + ran.err
    return said[0]


# ---- a run that is cut short -----------------------------------------------------------------------------


@contextlib.contextmanager
def begun(drill: Driller, words: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    """Have a drill run in a process group of its own; it does not outlive the block."""
    with subprocess.Popen(
        [*DRILL, *words],
        env=drill.env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def kill_group(process: subprocess.Popen[str]) -> None:
    """Kill a drill with all of its process group, so that nobody of it can put anything back."""
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=20)
