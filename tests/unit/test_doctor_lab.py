"""What the doctor says of a machine that a lab would be started on."""

from __future__ import annotations

from pathlib import Path

import pytest

from drills import doctor
from drills.doctor.finding import Finding, State
from drills.errors import Refused, UsageError
from drills.lab import manage, monitoring, network, processes, router
from drills.lab.gpu import shim
from drills.options import Options

NONE = monitoring.Binaries(None, None, None)


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that has everything, with no lab up."""
    monkeypatch.setenv("DRILL_LAB_DIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(network, "why_not", lambda: None)
    monkeypatch.setattr(processes, "taken", lambda _: False)
    monkeypatch.setattr(shim, "compiler", lambda: "/usr/bin/cc")
    monkeypatch.setattr(monitoring, "binaries", lambda: monitoring.Binaries("/p", "/a", "/t"))
    monkeypatch.setattr(monitoring, "version", lambda _: "2.42.0")
    monkeypatch.setattr(router, "executable", lambda: "/usr/bin/vllm-router")
    monkeypatch.setattr(router, "version", lambda: "0.1.17")
    monkeypatch.setattr("shutil.which", lambda name, path=None: f"/usr/sbin/{name}")


def look(*drills: str) -> dict[str, Finding]:
    found = doctor.diagnose(drills or ("monthly",), Options())
    return {f"{one.group} {one.name}": one for one in found.findings}


def test_a_machine_that_has_everything_is_well_and_nothing_is_started() -> None:
    found = look()
    assert {one.state for one in found.values()} == {State.OK}
    assert doctor.diagnose(("monthly",), Options()).exit_code == 0
    assert manage.find() is None
    assert list(Path.cwd().iterdir()) == []


def test_without_root_drills_of_the_link_are_refused_and_others_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "why_not", lambda: "it needs root")
    found = look()["lab network"]
    assert (found.state, found.refuses) == (State.MISSING, True)
    assert "it needs root, so packet-loss is refused" in found.text
    assert look("pod-kill")["lab network"].state is State.OK


def test_without_monitoring_alerts_stay_undecided(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(monitoring, "binaries", lambda: NONE)
    found = doctor.diagnose(("pod-kill",), Options())
    assert found.exit_code == 2
    [prometheus] = [one for one in found.findings if one.name == "prometheus"]
    assert "pod-kill would not decide its alert" in prometheus.text
    assert prometheus.fix[0].startswith("apt-get install prometheus")


def test_without_a_compiler_or_iptables_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shim, "compiler", lambda: None)
    monkeypatch.setattr("shutil.which", lambda name, path=None: None)
    found = look()
    assert (found["lab C compiler"].state, found["lab C compiler"].refuses) == (State.MISSING, False)
    assert found["lab iptables"].refuses
    assert found["lab iptables"].fix == ("apt-get install iptables",)


def test_a_router_that_is_not_installed_and_ports_that_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent() -> str:
        raise Refused("lab: vllm-router is not installed")

    monkeypatch.setattr(router, "executable", absent)
    monkeypatch.setattr(processes, "taken", lambda port: port == 18001)
    found = look()
    assert found["lab vllm-router"].refuses
    assert "1 of 19 are taken, such as 18001 (router)" in found["lab ports"].text


def test_a_drill_that_is_not_there_is_a_bad_command_line() -> None:
    with pytest.raises(UsageError, match="no-such-drill"):
        look("no-such-drill")
