"""How an emulator starts, and how it fails to: its own command line, and a start-up time that can be chosen."""

from __future__ import annotations

import signal
import socket
import time
from pathlib import Path

import psutil
import pytest

from tests.contract.engine_harness import KINDS, Engine, free_port, running, starting, until

pytestmark = pytest.mark.emulator


@pytest.fixture(params=sorted(KINDS))
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def lines(engine: Engine) -> list[str]:
    return engine.log.read_text().splitlines()


def test_the_port_is_refused_until_the_start_up_time_has_passed(kind: str, tmp_path: Path) -> None:
    with starting(kind, tmp_path, startup_s="2.5") as engine:
        began = time.monotonic()
        core = engine.core()
        assert engine.health() is None  # while the core is there already
        assert core.is_running()
        until(lambda: engine.health() is not None, "the port opens")
        assert time.monotonic() - began > 2.2
        assert engine.health() == 200


def test_sigterm_during_start_up_leaves_nothing_behind(kind: str, tmp_path: Path) -> None:
    with starting(kind, tmp_path, startup_s="60") as engine:
        core = engine.core()
        engine.signal(signal.SIGTERM)
        engine.wait_exit()
        until(lambda: not psutil.pid_exists(core.pid), "the core is gone")
        assert engine.health() is None


def test_a_gpu_that_cannot_be_opened_is_one_line_and_a_failure(kind: str, tmp_path: Path) -> None:
    device = tmp_path / "nvidia9"
    with starting(kind, tmp_path, gpu_device=str(device)) as engine:
        assert engine.wait_exit() == 1
        assert engine.health() is None
        (line,) = lines(engine)
        assert f"cannot open GPU device {device}: No such file or directory" in line


def test_a_core_killed_during_start_up_is_one_line_and_a_failure(kind: str, tmp_path: Path) -> None:
    with starting(kind, tmp_path, startup_s="60") as engine:
        engine.core().kill()
        assert engine.wait_exit() == 1
        (line,) = lines(engine)
        assert "the core ended during start-up" in line


def test_a_taken_port_is_one_line_and_a_failure(kind: str, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with starting(kind, tmp_path, port=str(port)) as engine:
            assert engine.wait_exit() == 1
            (line,) = lines(engine)
            assert f"127.0.0.1:{port}: Address already in use" in line


@pytest.mark.parametrize(
    ("option", "value", "says"),
    [
        ("kv_blocks", "10", "--max-model-len"),
        ("max_num_seqs", "0", "must be at least 1"),
        ("startup_s", "-1", "not negative"),
        ("step_base_ms", "0", "above 0"),
    ],
)
def test_a_bad_option_is_refused_by_name(kind: str, tmp_path: Path, option: str, value: str, says: str) -> None:
    with starting(kind, tmp_path, **{option: value}) as engine:
        assert engine.wait_exit() == 2
        assert says in lines(engine)[-1]


def test_the_log_names_address_and_processes(kind: str, tmp_path: Path) -> None:
    with running(kind, tmp_path, name="replica-7", port=str(free_port()), gpu_uuid="GPU-1234") as engine:
        (line,) = lines(engine)
        for word in (
            "replica-7",
            f"127.0.0.1:{engine.port}",
            str(engine.process.pid),
            str(engine.core().pid),
            "GPU-1234",
        ):
            assert word in line
