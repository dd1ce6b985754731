"""What holds for all tests: no inherited settings, and in CI a skip is a failure."""

from __future__ import annotations

import os
from collections.abc import Generator
from typing import Any

import pytest
from hypothesis import settings

# How long an example takes says how busy the machine is, and nothing about the code.
settings.register_profile("drills", deadline=None)
settings.load_profile("drills")

SCRUBBED = ("DRILL_LAB_DIR", "XDG_STATE_HOME", "KUBECONFIG", "http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY")


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in SCRUBBED:
        monkeypatch.delenv(name, raising=False)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("root") and os.geteuid() != 0:
        pytest.skip("needs root, for network namespaces, iptables or mounts")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: Any) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.skipped and os.environ.get("DRILL_SKIP_IS_FAILURE") == "1" and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"skipped, and a skip is a failure here: {reason}"
    return report
