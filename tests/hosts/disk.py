"""What lies on the disk of a test host beside what the machine itself has: its upper layer."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

from drills.lab.gpu import smi
from tests.hosts import layout, monitored, units
from tests.hosts.layout import Machine

OPS_ID, SSHD = 4711, "ssh.service"
#: What the distribution starts at boot is about hardware, disks and logins at a console: all of it is masked.
VENDOR = Path("/lib/systemd/system")
GENERATORS = Path("/lib/systemd/system-generators")
#: What a host needs of it where sessions are told apart.
LOGINS = frozenset({"dbus.service", "dbus.socket", "systemd-logind.service"})
SSHD_CONFIG = """Port {port}
HostKey /etc/ssh/ssh_host_ed25519_key
AuthorizedKeysFile /etc/ssh/authorized_keys/%u
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM {pam}
UseDNS no
PrintMotd no
PrintLastLog no
Subsystem sftp internal-sftp
"""


def provision(upper: Path, machine: Machine, keys: Path, library: Path | None) -> None:
    """Fill the upper layer of an empty disk; `keys` holds the host's key and the driver's."""
    for name, (text, mode) in _files(machine).items():
        _write(upper / name, text, mode)
    _ssh_keys(upper, machine, keys)
    monitoring = monitored.provision(upper) if machine.is_router else {}
    kept = LOGINS if machine.name == layout.STRICT else frozenset()
    _units(upper / "etc/systemd/system", units.units(machine) | monitoring, kept)
    home = upper / "home" / "ops"
    home.mkdir(parents=True)
    os.chown(home, OPS_ID, OPS_ID)
    for generator in GENERATORS.iterdir():
        _null(upper / "etc/systemd/system-generators" / generator.name)
    if not machine.is_router:
        smi.write_nvidia_smi(upper / "usr/bin", layout.GPU_STATE)
        if library is not None:
            (upper / "usr/lib").mkdir(parents=True)
            shutil.copy2(library, upper / "usr/lib" / library.name)


def _files(machine: Machine) -> dict[str, tuple[str, int]]:
    me, strict = Path("/etc/passwd").read_text(), machine.name == layout.STRICT
    accounts = "".join(f"{user}:*:19000:0:99999:7:::\n" for user in layout.USERS)
    return {
        "etc/hostname": (f"{machine.name}\n", 0o644),
        "etc/hosts": (f"127.0.0.1 localhost\n{machine.manage} {machine.name}\n", 0o644),
        "etc/machine-id": (hashlib.sha256(machine.name.encode()).hexdigest()[:32] + "\n", 0o444),
        "etc/fstab": ("", 0o644),
        "etc/passwd": (f"{me}ops:x:{OPS_ID}:{OPS_ID}:operations:/home/ops:/bin/bash\n", 0o644),
        "etc/group": (f"{Path('/etc/group').read_text()}ops:x:{OPS_ID}:\n", 0o644),
        # "*": no password fits, and the account is not locked, which sshd would refuse.
        "etc/shadow": (accounts, 0o640),
        "etc/sudoers.d/ops": ("ops ALL=(ALL) NOPASSWD: ALL\n", 0o440),
        "etc/ssh/sshd_config": (SSHD_CONFIG.format(port=layout.SSH_PORT, pam="yes" if strict else "no"), 0o600),
        "etc/systemd/logind.conf": ("[Login]\nKillUserProcesses=yes\nKillExcludeUsers=nobody\n", 0o644),
        "etc/default/ssh": ("SSHD_OPTS=\n", 0o644),
        "root/.bashrc": ("", 0o644),  # that of this machine may do anything at each command, and take its time
    }


def _ssh_keys(upper: Path, machine: Machine, keys: Path) -> None:
    for name in (machine.name, f"{machine.name}.pub"):
        text = (keys / name).read_text()
        _write(upper / "etc/ssh" / name.replace(machine.name, "ssh_host_ed25519_key"), text, 0o600)
    for user in layout.USERS:
        _write(upper / "etc/ssh/authorized_keys" / user, (keys / "driver.pub").read_text(), 0o644)


def _units(folder: Path, found: dict[str, str], kept: frozenset[str]) -> None:
    wants = folder / "multi-user.target.wants"
    wants.mkdir(parents=True)
    for name, text in found.items():
        _write(folder / name, text, 0o644)
        if "/" not in name:
            (wants / name).symlink_to(f"/etc/systemd/system/{name}")
    (wants / SSHD).symlink_to(VENDOR / SSHD)
    (folder / "default.target").symlink_to(VENDOR / "multi-user.target")
    pulled = {unit.name for unit in VENDOR.glob("*.target.wants/*")} | {"modprobe@.service"}
    for name in pulled - kept:
        _null(folder / name)


def _write(path: Path, text: str, mode: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)


def _null(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.symlink_to("/dev/null")
