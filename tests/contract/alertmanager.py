"""A real Alertmanager of a test's own, which notifies nobody."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from drills.lab import monitoring
from drills.probes.http import ProbeError
from drills.probes.prometheus import Alertmanager
from tests.contract.peers import free_port

UP_TIMEOUT_S = 20.0


@contextmanager
def running(folder: Path) -> Iterator[Alertmanager]:
    """Run one until the block ends."""
    program = monitoring.binaries().alertmanager
    if program is None:
        pytest.skip(f"alertmanager not found: {monitoring.INSTALL}")
    config = folder / "alertmanager.yml"
    config.write_text(json.dumps({"route": {"receiver": "nobody"}, "receivers": [{"name": "nobody"}]}))
    port = free_port()
    program, cwd = monitoring.runnable(program, folder)
    argv = [program, f"--config.file={config}", f"--storage.path={folder / 'data'}", "--log.level=error"]
    argv += [f"--web.listen-address=127.0.0.1:{port}", "--cluster.listen-address="]
    process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=cwd)
    manager = Alertmanager(f"http://127.0.0.1:{port}")
    try:
        deadline = time.monotonic() + UP_TIMEOUT_S
        while not answers(manager):
            assert process.poll() is None
            assert time.monotonic() < deadline, "alertmanager did not come up"
            time.sleep(0.05)
        yield manager
    finally:
        process.kill()
        process.wait(10)


def answers(manager: Alertmanager) -> bool:
    """Whether it can be asked."""
    try:
        manager.silences()
    except ProbeError:
        return False
    return True
