"""The test hosts are what they say: machines with systemd, sshd and a GPU each, which can be cut off and lost."""

from __future__ import annotations

import subprocess

import pytest

from tests.hosts import layout
from tests.hosts.fleet import Fleet

pytestmark = pytest.mark.root


def ssh(fleet: Fleet, name: str, user: str, command: str) -> subprocess.CompletedProcess[str]:
    known = fleet.write_known_hosts(fleet.key.parent / "known_hosts")
    options = [f"-oUserKnownHostsFile={known}", "-oStrictHostKeyChecking=yes", "-oBatchMode=yes", "-oConnectTimeout=3"]
    argv = ["ssh", *options, "-i", str(fleet.key), f"{user}@{fleet.host(name).address}", command]
    return subprocess.run(fleet.control_argv(argv), capture_output=True, text=True, timeout=30, check=False)


@pytest.mark.parametrize("name", layout.HOSTS)
def test_each_host_runs_systemd_and_its_unit(fleet: Fleet, name: str) -> None:
    host = fleet.host(name)
    assert host.run(["ps", "-o", "comm=", "1"]).stdout.strip() == "systemd"
    assert host.run(["systemctl", "is-enabled", layout.UNIT]).stdout.strip() == "enabled"
    assert host.run(["systemctl", "is-active", layout.UNIT]).stdout.strip() == "active"
    assert host.run(["systemctl", "--failed", "--no-legend"]).stdout.strip() == ""


@pytest.mark.parametrize("user", layout.USERS)
def test_the_driver_logs_in_by_its_key_and_knows_the_host(fleet: Fleet, user: str) -> None:
    said = ssh(fleet, "h1", user, "hostname; whoami; sudo -n whoami")
    assert said.stdout.split() == ["h1", user, "root"], said.stderr
