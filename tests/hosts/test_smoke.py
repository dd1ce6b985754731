"""The test hosts are what they say: machines with systemd, sshd and GPUs, which can be cut off and lost."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.hosts import layout, life
from tests.hosts.fleet import Done, Fleet, Host

STEP_TIMEOUT_S = 60.0
RULE = ("INPUT", "-p", "tcp", "--dport", "9", "-j", "DROP")
ASK_NVML = """
import pynvml
pynvml.nvmlInit()
print(*(pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(i)) for i in range(pynvml.nvmlDeviceGetCount())))
"""


def ssh(fleet: Fleet, user: str, address: str, command: str, *options: str) -> Done:
    known = fleet.write_known_hosts(fleet.key.parent / "known_hosts")
    config = fleet.key.parent / "ssh_config"  # a file: the jump is a process of its own that must heed it too
    settings = {
        "UserKnownHostsFile": known,
        "IdentityFile": fleet.key,
        "StrictHostKeyChecking": "yes",
        "BatchMode": "yes",
        "ConnectTimeout": 3,
    }
    config.write_text("".join(f"{name} {value}\n" for name, value in settings.items()))
    argv = fleet.control_argv(["ssh", "-F", str(config), *options, f"{user}@{address}", command])
    return subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False)


def until(what: str, holds: Callable[[], bool]) -> None:
    life.wait(what, holds, STEP_TIMEOUT_S)


def shown(host: Host, key: str) -> str:
    return host.run(["systemctl", "show", "--value", f"--property={key}", layout.UNIT]).stdout.strip()


def rules(host: Host | None) -> str:
    """Return the rules of a host, or of this machine: no times and no counters, which change by themselves."""
    kinds = ("iptables-nft-save", "iptables-legacy-save")
    if host is not None:
        said = [host.run([kind]).stdout for kind in kinds]
    else:
        ran = [subprocess.run([k], capture_output=True, text=True, timeout=20, check=True) for k in kinds]
        said = [one.stdout for one in ran]
    return "".join(re.sub(r"^#.*\n|\[\d+:\d+\]", "", text, flags=re.MULTILINE) for text in said)


@pytest.mark.parametrize("name", layout.HOSTS)
def test_each_host_runs_systemd_and_its_unit(fleet: Fleet, name: str) -> None:
    host = fleet.host(name)
    assert host.run(["ps", "-o", "comm=", "1"]).stdout.strip() == "systemd"
    assert host.run(["systemctl", "is-enabled", layout.UNIT]).stdout.strip() == "enabled"
    assert host.run(["systemctl", "is-active", layout.UNIT]).stdout.strip() == "active"
    assert host.run(["systemctl", "is-system-running"]).stdout.strip() == "running"


@pytest.mark.parametrize("user", layout.USERS)
def test_the_driver_logs_in_by_its_key_and_knows_the_host(fleet: Fleet, user: str) -> None:
    said = ssh(fleet, user, fleet.host("h1").address, "hostname; whoami; sudo -n whoami")
    assert said.stdout.split() == ["h1", user, "root"], said.stderr


def test_each_host_has_a_key_of_its_own(fleet: Fleet) -> None:
    assert len({fleet.host_key(name) for name in fleet.names}) == len(fleet.names)
    wrong = ssh(fleet, "root", fleet.host("h1").address, "true", f"-oHostKeyAlias={fleet.host('h2').address}")
    assert wrong.returncode == 255
    assert "Host key verification failed" in wrong.stderr


def test_behind_the_routers_machine_a_host_is_reached_by_its_other_address(fleet: Fleet) -> None:
    assert ssh(fleet, "root", fleet.host("h1").machine.service, "true").returncode == 255
    jump = f"-oProxyJump=root@{fleet.host(layout.ROUTER).address}"
    said = ssh(fleet, "root", fleet.host("h1").machine.service, "hostname", jump)
    assert said.stdout.strip() == "h1", said.stderr


def test_both_libraries_tell_of_the_hosts_own_gpus(fleet: Fleet) -> None:
    by_host = {host.name: host.gpus for host in fleet.hosts}
    assert len({uuid for uuids in by_host.values() for uuid in uuids}) == layout.GPUS * len(fleet.names)
    for host in fleet.hosts:
        listed = ssh(fleet, "root", host.address, "nvidia-smi --query-gpu=uuid --format=csv,noheader")
        assert listed.stdout.split() == host.gpus, listed.stderr
        if (host.root / "usr/lib/libnvidia-ml.so.1").exists():  # there is a C compiler
            assert host.run([sys.executable, "-c", ASK_NVML]).stdout.split() == host.gpus


def test_a_gpu_that_is_held_is_not_reset_and_the_gate_keeps_the_unit_from_taking_it_again(fleet: Fleet) -> None:
    host = fleet.host("h1")
    reset = ["nvidia-smi", "--gpu-reset", "-i", host.gpus[0]]
    refused = host.run(reset, check=False)
    assert refused.returncode == 255
    assert "In use by another client" in refused.stdout
    host.run(["systemctl", "stop", layout.TELEMETRY])
    assert host.run(reset, check=False).returncode == 255  # the engine holds it, too
    gate = layout.GATE.replace("%n", layout.UNIT)
    held = subprocess.Popen([*life.inside("h1"), "flock", "--exclusive", gate, "sleep", "60"])
    try:
        until("the gate is held", lambda: host.run(["flock", "-n", gate, "true"], check=False).returncode == 1)
        restarts = int(shown(host, "NRestarts"))
        host.run(["pkill", "--signal", "KILL", "--full", "VLLM::EngineCore"])
        until("the unit waits at the gate", lambda: shown(host, "SubState") == "start-pre")
        assert int(shown(host, "NRestarts")) > restarts
        assert host.run(reset, check=False).stdout.endswith("All done.\n")
    finally:
        host.run(["pkill", "--signal", "KILL", "--full", "^sleep 60"], check=False)
        held.wait(20)
        host.run(["systemctl", "start", layout.TELEMETRY])
    host.wait_ready()
    assert shown(host, "SubState") == "running"
    assert host.run(reset, check=False).returncode == 255


def test_a_cut_link_cuts_the_driver_and_nobody_else(fleet: Fleet) -> None:
    host, router = fleet.host("h2"), fleet.host(layout.ROUTER)
    ask = [
        "curl",
        "--silent",
        "--fail",
        "--max-time",
        "5",
        f"http://{host.machine.service}:{layout.ENGINE_PORT}/health",
    ]
    host.cut_driver()
    try:
        assert ssh(fleet, "root", host.address, "true").returncode == 255
        assert not host.engine_ready()
        assert router.run(ask).returncode == 0
        assert fleet.host("h3").engine_ready()
    finally:
        host.mend_driver()
    assert host.engine_ready()
    assert ssh(fleet, "root", host.address, "true").returncode == 0


def test_rules_of_a_host_are_its_own(fleet: Fleet) -> None:
    host, others, here = fleet.host("h3"), rules(fleet.host("h2")), rules(None)
    for kind in ("nft", "legacy"):
        host.run([f"iptables-{kind}", "-A", *RULE])
        try:
            assert "--dport 9" in rules(host)
            assert (rules(fleet.host("h2")), rules(None)) == (others, here)
        finally:
            host.run([f"iptables-{kind}", "-D", *RULE])


def test_a_timer_fires_when_it_is_asked_to(fleet: Fleet) -> None:
    host = fleet.host("h2")
    timer = ["systemd-run", "--unit=test-timer", "--on-active=2s", "--timer-property=AccuracySec=100ms"]
    host.run([*timer, "touch", "/run/test-timer"])
    assert not (host.root / "run/test-timer").exists()
    until("the timer fires", (host.root / "run/test-timer").exists)
    (host.root / "run/test-timer").unlink()


@pytest.mark.parametrize("user", layout.USERS)
def test_on_one_host_what_a_session_started_ends_with_it(fleet: Fleet, user: str) -> None:
    host = fleet.host(layout.STRICT)
    command = "setsid sleep 611 >/dev/null 2>&1 & sudo -n systemd-run --collect --unit=test-run sleep 612"
    assert ssh(fleet, user, host.address, command).returncode == 0
    until("the session's process is gone", lambda: not host.run(["pgrep", "-fx", "sleep 611"], check=False).stdout)
    host.run(["systemctl", "is-active", "test-run.service"])  # it is no part of the session
    host.run(["systemctl", "stop", "test-run.service"])


def test_what_is_the_whole_kernels_cannot_be_changed_in_a_host(fleet: Fleet) -> None:
    host = fleet.host("h2")
    value = Path("/proc/sys/kernel/panic").read_text()
    assert host.run(["sh", "-c", "echo 7 > /proc/sys/kernel/panic"], check=False).returncode != 0
    assert Path("/proc/sys/kernel/panic").read_text() == value
    host.run(["sh", "-c", "echo 0 > /proc/sys/net/ipv4/ip_forward"])


def test_a_lost_host_comes_back_as_itself_from_its_disk(fleet: Fleet) -> None:
    host = fleet.host("h3")
    gpus, boot = host.gpus, host.run(["cat", "/proc/sys/kernel/random/boot_id"]).stdout
    host.run(["sh", "-c", "echo kept > /var/lib/kept; echo lost > /run/lost"])
    host.run(["iptables", "-A", *RULE])
    host.tear_down()
    with pytest.raises(OSError, match="h3 is not up"):
        _ = host.pid1
    assert not host.engine_ready()
    host.rebuild()
    said = ssh(fleet, "root", host.address, "hostname; cat /var/lib/kept; cat /run/lost")  # by the same host key
    assert said.stdout.split() == ["h3", "kept"], said.stderr
    assert "--dport 9" not in rules(host)
    assert host.gpus == gpus
    assert host.run(["cat", "/proc/sys/kernel/random/boot_id"]).stdout != boot
    fleet.wait_settled()


def test_drill_runs_where_the_hosts_are_and_knows_them(fleet: Fleet, tmp_path: Path) -> None:
    file = fleet.targets_file(tmp_path)
    argv = fleet.drill_argv(["plan", "noop", "--targets", str(file)])
    said = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert "gpu-hosts" in said.stdout + said.stderr
    assert fleet.target()["hosts"][0]["gpus"] == [fleet.host("h1").gpus[0]]
