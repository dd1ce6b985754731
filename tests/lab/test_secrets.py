"""Secrets reach neither files, process lists nor error text: a canary is planted, and everything is searched for it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from drills.lab.client import Control, Lab
from drills.load.process import LoadProcess
from drills.probes.prometheus import Prometheus
from tests.contract.load_runs import write_plan
from tests.lab import labs, traces
from tests.lab.drilling import Driller, events
from tests.unit.scripted import Server, answer, sends

pytestmark = pytest.mark.lab
CANARY = "sk-c4n4ryTh4tSingsInNoFile"

STAGING = """
targets:
  staging:
    endpoint: {{url: {url}, model: m, {api_key}}}
    prometheus: {{url: http://prometheus:9090, {bearer}}}
    sla: {{ttft: {{p99: 1s}}, e2e: {{p99: 12s}}, max_gap: {{p99: 2s}}, errors: 1%}}
    kubernetes: {{namespace: llm, selector: "app=vllm"}}
  lab: {{kind: lab, sla: {{e2e: {{p99: 1s}}}}}}
"""
LINES = {"url": 4, "api_key": 4, "bearer": 5}
GOOD = {
    "url": "http://llm.example/v1",
    "api_key": "api_key: {env: LLM_API_KEY}",
    "bearer": "bearer: {env: PROM_TOKEN}",
}


def where(folder: Path, *secrets: str) -> list[str]:
    """Return the files below a folder that hold one of the secrets."""
    found = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return [str(path) for path in found if any(secret.encode() in path.read_bytes() for secret in secrets)]


def told(*secrets: str) -> list[str]:
    """Return the command lines that hold one of the secrets."""
    return [line for line in traces.command_lines() if any(secret in line for secret in secrets)]


@pytest.mark.parametrize(
    "written",
    [
        {"api_key": f"api_key: {CANARY}"},
        {"api_key": f'api_key: "{CANARY}"'},
        {"api_key": f"api_key: {{value: {CANARY}}}"},
        {"api_key": f"api_key: {{env: {CANARY}}}"},
        {"api_key": f"api_key: [{CANARY}]"},
        {"api_key": f"api-key: {CANARY}"},
        {"api_key": f"api_key: {CANARY}, api_key: {CANARY}"},
        {"api_key": f"api_key: {CANARY}: : {{"},
        {"bearer": f"bearer: {CANARY}"},
        {"url": f"http://user:{CANARY}@llm.example/v1"},
        {"url": f"http://llm.example/v1?key={CANARY}"},
    ],
    ids=lambda written: next(iter(written.values())).replace(CANARY, "SECRET"),
)
def test_a_literal_secret_is_refused_without_a_word_of_it(written: dict[str, str], lab: Lab, tmp_path: Path) -> None:
    file = tmp_path / "drill.yaml"
    file.write_text(STAGING.format(**GOOD | written))
    ran = Driller(lab.dir, tmp_path, 1)("plan", "noop", "--targets", str(file), "--target", "lab")
    assert ran.code == 64, ran.out + ran.err
    [line] = ran.err.splitlines()
    assert line.startswith(f"drill: {file}:{LINES[next(iter(written))]}")
    assert CANARY not in ran.out + ran.err
    assert CANARY[3:] not in ran.out + ran.err


@pytest.fixture
def well(lab: Lab, control: Control) -> Iterator[None]:
    """The shared lab, on which nothing fires."""
    prometheus = Prometheus(lab.data["prometheus"])
    labs.eventually(lambda: labs.all_ready(control) and not prometheus.alerts(), 60)
    yield
    labs.eventually(lambda: traces.left_behind(lab) == [], 10)


def test_a_run_writes_down_no_secret_of_its_environment_and_not_the_lab_s_token(
    well: None, lab: Lab, tmp_path: Path
) -> None:
    """The lab takes no key of users; what its driver does know is the token of its supervisor."""
    token = (lab.dir / "token").read_text().strip()
    targets = tmp_path / "targets.yaml"
    targets.write_text(STAGING.format(**GOOD))
    drill = Driller(lab.dir, tmp_path / "reports", lab.data["port_base"])
    drill.env |= {"LLM_API_KEY": CANARY, "PROM_TOKEN": CANARY}
    process = drill.start("cut-gpu-reset", "--targets", str(targets), "--target", "lab", "--seed", "3")
    folder = drill.until("inject.hit", process, None)
    seen: set[str] = set()
    while not events(folder, "proof.on"):
        seen |= set(told(CANARY, token))
        assert process.poll() is None
        time.sleep(0.1)
    os.kill(process.pid, signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 4, out
    assert (folder / "postmortem.md").is_file()
    assert (folder / "requests.ndjson").stat().st_size > 0
    assert seen == set()
    assert where(tmp_path / "reports", CANARY, token) == []
    assert where(traces.state_dir(lab), CANARY, token) == []
    assert CANARY not in out
    assert token not in out


def test_the_load_uses_a_key_and_tells_nobody(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text(f"{CANARY}\n")
    folder = tmp_path / "run"
    folder.mkdir()
    with Server(sends(answer())) as server:
        plan = write_plan(folder, server.url, api_key_file=str(key), max_duration_s=2.0)
        load = LoadProcess()
        load.start(plan, folder / "load.log")
        load.wait(1.0)
        seen = told(CANARY)
        environment = Path(f"/proc/{load.pid}/environ").read_bytes()
        load.wait(10.0)
        load.stop(0.0)
    assert server.requests
    assert all(f"Authorization: Bearer {CANARY}".encode() in request for request in server.requests)
    assert (folder / "requests.ndjson").stat().st_size > 0
    assert seen == []
    assert CANARY.encode() not in environment
    assert where(folder, CANARY) == []
