"""The node from the inside: `python -m tests.cluster.inside RUN NETNS_FD` becomes its first process.

It gives itself namespaces (mounts, network, processes, cgroups, names), so that nothing the node does reaches the
machine: rules, links, mounts and processes go with the last of its processes, however that ends. What a node sets for
the whole kernel is set in files of its own. Then it starts the components and starts each again that ends.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import ssl
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.cluster import build, cgroups, layout
from tests.cluster.layout import Component
from tests.machines import kernel
from tests.machines.kernel import do

NAMESPACES = kernel.NEWNS | kernel.NEWCGROUP | kernel.NEWUTS | kernel.NEWIPC | kernel.NEWPID | kernel.NEWNET
#: What the kubelet would set for the whole kernel: it finds these values, in files of the node's own.
KERNEL = {
    "kernel/keys/root_maxbytes": "25000000",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
}
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
RESTART_S = 0.5
POLL_S = 0.1


def main() -> int:
    """Split into the node's first process, and one outside that waits for it."""
    run, netns = Path(sys.argv[1]), int(sys.argv[2])
    found = cgroups.hierarchies()
    paths = [Path(path) for path in json.loads((run / "cgroups.json").read_text())]
    cgroups.enter(paths)  # before anything else: from now on `cluster-down` finds it
    kernel.call("unshare", NAMESPACES)
    if cgroups.version_2_only(found):
        cgroups.enter([path / cgroups.DAEMONS for path in paths])
    pid = os.fork()
    if pid == 0:
        os._exit(_first_process(run, netns, found))
    (run / "pid").write_text(f"{pid}\n")
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _first_process(run: Path, netns: int, found: list[cgroups.Hierarchy]) -> int:
    try:
        socket.sethostname(layout.NODE)
        mount_own(run, found)
        link_up(netns)
        os.close(netns)
        Components(run).keep()
    except BaseException as e:
        print(f"node: {type(e).__name__}: {e}", file=sys.stderr, flush=True)
    return 1


def mount_own(run: Path, found: list[cgroups.Hierarchy]) -> None:
    """Mount what the node must not share with the machine."""
    do("mount", "--make-rprivate", "/")
    do("mount", "--make-rshared", "/")  # among the node's own: volumes may be propagated to pods
    do("mount", "-t", "proc", "proc", "/proc")
    do("mount", "-t", "sysfs", "sysfs", "/sys")
    if not cgroups.version_2_only(found):
        do("mount", "-t", "tmpfs", "tmpfs", "/sys/fs/cgroup")
    for hierarchy in found:
        hierarchy.mount.mkdir(parents=True, exist_ok=True)
        options = ("-o", hierarchy.options) if hierarchy.kind == "cgroup" else ()
        do("mount", "-t", hierarchy.kind, *options, hierarchy.kind, str(hierarchy.mount))
    if cgroups.version_2_only(found):
        (found[0].mount / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in cgroups.NEEDED))
    do("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", "/run")
    layers = f"lowerdir=/var/lib,upperdir={_made(run / 'var-lib')},workdir={_made(run / 'var-lib-work')}"
    do("mount", "-t", "overlay", "-o", layers, "overlay", "/var/lib")
    _bind(_made(run / "kubelet"), _made(Path("/var/lib/kubelet")))
    _bind(run / "log", Path("/var/log"))
    for name, value in KERNEL.items():
        own = _made(run / "kernel") / name.replace("/", ".")
        own.write_text(f"{value}\n")
        _bind(own, Path("/proc/sys") / name)


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _bind(source: Path, place: Path) -> None:
    do("mount", "--bind", str(source), str(place))


def link_up(netns: int) -> None:
    """Lay the link to the machine, whose end and routes vanish with this namespace."""
    machine = f"/proc/self/fd/{netns}"

    def outside(*command: str) -> None:
        do("nsenter", f"--net={machine}", "ip", *command, fds=(netns,))

    do("ip", "link", "set", "lo", "up")
    do("ip", "link", "add", "eth0", "type", "veth", "peer", "name", layout.HOST_LINK)
    do("ip", "link", "set", layout.HOST_LINK, "netns", machine, fds=(netns,))
    do("ip", "address", "add", f"{layout.NODE_IP}/{layout.LINK_BITS}", "dev", "eth0")
    do("ip", "link", "set", "eth0", "up")
    outside("address", "add", f"{layout.HOST_IP}/{layout.LINK_BITS}", "dev", layout.HOST_LINK)
    outside("link", "set", layout.HOST_LINK, "up")
    for network in (layout.PODS, layout.SERVICES):
        outside("route", "add", network, "via", layout.NODE_IP)
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")


class Components:
    """The node's programs: started in order, and again when they end, unless a file `hold/NAME` says not to."""

    def __init__(self, run: Path) -> None:
        self.run = run
        self.pids: dict[str, int] = {}
        self.ended: dict[str, float] = {}
        self.answers: dict[str, Callable[[], bool]] = {
            "etcd": lambda: _connects(("127.0.0.1", 2379)),
            "images": lambda: self._held(layout.IMAGE_STORE) and layout.IMAGE_STORE not in self.pids,
            "containerd": lambda: "containerd" in self.pids and _connects(layout.SOCKET),
            "kube-apiserver": self._api_ready,
        }

    def keep(self) -> None:
        """Keep them running for ever; adopt and bury what the node's processes leave behind."""
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
        waiting = layout.components(self.run)
        running: list[Component] = []
        while True:
            for component in [c for c in waiting if all(self.answers[name]() for name in c.after)]:
                waiting.remove(component)
                running.append(component)
            for component in running:
                if self._wanted(component.name):
                    self.pids[component.name] = self._start(component)
            signal.sigtimedwait({signal.SIGCHLD}, POLL_S)
            self._bury()

    def _wanted(self, name: str) -> bool:
        rested = time.monotonic() - self.ended.get(name, 0.0) > RESTART_S
        return name not in self.pids and rested and not self._held(name)

    def _held(self, name: str) -> bool:
        return (self.run / "hold" / name).exists()

    def _start(self, component: Component) -> int:
        environment = {
            "PATH": f"{PATH}:{build.packages()}/usr/sbin:{build.packages()}/usr/bin",
            "HOME": "/root",
            "TMPDIR": str(_made(self.run / "tmp")),
        }
        log = os.open(self.run / "log" / f"{component.name}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        nothing = os.open(os.devnull, os.O_RDONLY)
        files = [(os.POSIX_SPAWN_DUP2, nothing, 0), (os.POSIX_SPAWN_DUP2, log, 1), (os.POSIX_SPAWN_DUP2, log, 2)]
        try:
            return os.posix_spawn(
                component.argv[0], component.argv, environment, file_actions=files, setsid=True, setsigmask=[]
            )
        finally:
            os.close(log)
            os.close(nothing)

    def _bury(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            for name in [name for name, known in self.pids.items() if known == pid]:
                del self.pids[name]
                self.ended[name] = time.monotonic()
                print(f"node: {name} ended ({os.waitstatus_to_exitcode(status)})", file=sys.stderr, flush=True)

    def _api_ready(self) -> bool:
        conf = self.run / "conf"
        token = (conf / "tokens.csv").read_text().split(",", 1)[0]
        trust = ssl.create_default_context(cafile=str(conf / "ca.crt"))
        connection = http.client.HTTPSConnection(layout.NODE_IP, 6443, timeout=1.0, context=trust)
        try:
            connection.request("GET", "/readyz", headers={"Authorization": f"Bearer {token}"})
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()


def _connects(address: tuple[str, int] | str) -> bool:
    family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
    with socket.socket(family) as probe:
        probe.settimeout(1.0)
        return probe.connect_ex(address) == 0


if __name__ == "__main__":
    sys.exit(main())
