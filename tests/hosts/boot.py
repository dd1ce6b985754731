"""Boots a test host: `python -m tests.hosts.boot NAME PIDFILE` starts systemd as process 1 of its own namespaces.

It returns once systemd has begun, with its pid in PIDFILE (as this machine counts), or fails with one line. Mounts,
links, rules and processes go with the last process of the host; the disk is in a file system of `ctl` and stays.
NAME may also be `ctl`, which is a network and that file system, and no machine.
"""

from __future__ import annotations

import os
import socket
import sys
import uuid
from collections.abc import Callable
from pathlib import Path

from tests.hosts import disk, layout, links, state
from tests.hosts.layout import TREE, Machine
from tests.machines import cgroups
from tests.machines.kernel import NEWCGROUP, NEWIPC, NEWNET, NEWNS, NEWPID, NEWUTS, call, do

#: In /dev: name → (major, minor) of Linux.
DEVICES = {"null": (1, 3), "zero": (1, 5), "full": (1, 7), "random": (1, 8), "urandom": (1, 9), "tty": (5, 0)}
#: File systems of the host's own, empty at each boot.
FRESH = {"run": "mode=755", "tmp": "mode=1777", "var/tmp": "mode=1777"}
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def main() -> int:
    """Enter the cgroup and namespaces of that machine, or of ctl, and let a child live there."""
    name, pid_file = sys.argv[1:]
    try:
        pid = hold() if name == layout.CONTROL else boot(layout.machine(name))
    except (OSError, ValueError) as error:
        print(f"test hosts: {name} did not boot: {error}", file=sys.stderr)
        return 1
    Path(pid_file).write_text(f"{pid}\n")
    return 0


def boot(machine: Machine) -> int:
    """Start systemd of that machine; returns its pid. Raises OSError."""
    cgroups.enter([state.cgroup(machine.name)])
    control = state.first_pid(layout.CONTROL)
    networks = {layout.CONTROL: os.open(f"/proc/{control}/ns/net", os.O_RDONLY)}
    if not machine.is_router:
        networks[layout.ROUTER] = os.open(f"/proc/{state.first_pid(layout.ROUTER)}/ns/net", os.O_RDONLY)
    mounts = os.open(f"/proc/{control}/ns/mnt", os.O_RDONLY)
    call("setns", mounts, NEWNS)  # where the disks are
    os.close(mounts)
    place = state.disks() / machine.name
    if not place.exists():
        disk.provision(place / "upper", machine, state.keys(), state.library())
        for name in ("work", "root"):
            (place / name).mkdir()
    call("unshare", NEWUTS | NEWIPC | NEWNET | NEWCGROUP)
    links.lay(machine, networks)
    call("unshare", NEWPID)
    return _fork(lambda: _become_systemd(machine, place))


def hold() -> int:
    """Make ctl: the driver's network, and the file system of the disks; returns the pid of what holds both."""
    cgroups.enter([state.cgroup(layout.CONTROL)])
    call("unshare", NEWNS | NEWNET)
    do("mount", "--make-rprivate", "/")
    do("mount", "-t", "tmpfs", "-o", "mode=700", "tmpfs", str(state.disks()))
    links.make_control()
    return _fork(_become_sleep)


def _become_sleep() -> None:
    os.setsid()
    os.execvp("sleep", ["sleep", "infinity"])


def _fork(become: Callable[[], None]) -> int:
    """Fork a child that becomes another program; what it says before it has is why it could not. Raises OSError."""
    told, tell = os.pipe()  # closed by its exec
    pid = os.fork()
    if pid == 0:
        try:
            become()
        except BaseException as error:
            os.write(tell, f"{type(error).__name__}: {error}".encode())
        os._exit(1)
    os.close(tell)
    with os.fdopen(told, "rb") as reader:
        said = reader.read().decode(errors="replace")
    if said:
        os.waitpid(pid, 0)
        raise OSError(said)
    return pid


def _become_systemd(machine: Machine, place: Path) -> None:
    socket.sethostname(machine.name)
    root = place / "root"
    call("unshare", NEWNS)
    do("mount", "--make-rprivate", "/")
    do("mount", "-t", "overlay", "-o", f"lowerdir=/,upperdir={place}/upper,workdir={place}/work", "overlay", str(root))
    for name, options in FRESH.items():
        do("mount", "-t", "tmpfs", "-o", options, "tmpfs", str(root / name))
    for needed in {TREE, Path(sys.prefix), Path(sys.base_prefix)}:
        _show(needed, root)
    log = state.run() / "log" / f"{machine.name}.systemd.log"
    log.write_text("")
    _mount_dev(root, log)
    _mount_kernel(root)
    units = place / "upper/etc/systemd/system"  # not merged with what the machine has there
    do("mount", "--bind", str(units), str(root / "etc/systemd/system"))
    os.chdir(root)
    call("pivot_root", b".", b".")
    do("umount", "--lazy", ".")
    os.chdir("/")
    (Path("/run") / "lock").mkdir(mode=0o755)
    os.setsid()
    argv = [str(layout.SYSTEMD), "--system", "--log-target=kmsg", "--show-status=no"]
    os.execve(argv[0], argv, {"PATH": PATH, "container": "drills", "LANG": "C.UTF-8"})


def _show(folder: Path, root: Path) -> None:
    """Show a folder of the machine, which may be on a file system or in a place that the root does not have."""
    if folder.is_relative_to("/usr") or (folder != TREE and folder.is_relative_to(TREE)):
        return
    inside = root / folder.relative_to("/")
    inside.mkdir(parents=True, exist_ok=True)
    do("mount", "--bind", str(folder), str(inside))
    do("mount", "-o", "remount,bind,ro", str(inside))


def _mount_dev(root: Path, log: Path) -> None:
    dev = root / "dev"
    do("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", str(dev))
    for name, (major, minor) in DEVICES.items():
        os.mknod(dev / name, 0o020666, os.makedev(major, minor))
        (dev / name).chmod(0o666)
    for name, target in {"fd": "/proc/self/fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2"}.items():
        (dev / name).symlink_to(target)
    for name, kind, options in (("shm", "tmpfs", "mode=1777"), ("pts", "devpts", "newinstance,ptmxmode=0666,mode=620")):
        (dev / name).mkdir()
        do("mount", "-t", kind, "-o", options, kind, str(dev / name))
    (dev / "ptmx").symlink_to("pts/ptmx")
    (dev / "kmsg").touch()
    do("mount", "--bind", str(log), str(dev / "kmsg"))  # in place of the kernel's, which is this machine's


def _mount_kernel(root: Path) -> None:
    """Mount /proc and /sys: what is the whole kernel's can be read only, what is the network's also written."""
    proc, sys_ = root / "proc", root / "sys"
    do("mount", "-t", "proc", "proc", str(proc))
    do("mount", "--bind", str(proc / "sys"), str(proc / "sys"))
    do("mount", "-o", "remount,bind,ro", str(proc / "sys"))
    do("mount", "--bind", str(proc / "sys/net"), str(proc / "sys/net"))
    do("mount", "-o", "remount,bind,rw", str(proc / "sys/net"))
    boot_id = root / "run/.boot-id"
    boot_id.write_text(f"{uuid.uuid4()}\n")  # each boot has its own, and here only one kernel boots
    do("mount", "--bind", str(boot_id), str(proc / "sys/kernel/random/boot_id"))
    do("mount", "-t", "sysfs", "-o", "ro", "sysfs", str(sys_))
    do("mount", "-t", "cgroup2", "cgroup2", str(sys_ / "fs/cgroup"))


if __name__ == "__main__":
    sys.exit(main())
