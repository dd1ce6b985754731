"""The single-node Kubernetes of the tests: `python -m tests.cluster.node build | up | load | down | status`.

`up` twice is `up` once; `down` also clears what an `up` or a node that was killed left. Both need root.
"""

from __future__ import annotations

import contextlib
import fcntl
import ipaddress
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.cluster import build, cgroups, images, layout, pki
from tests.cluster.cache import TREE, ClusterError, cache, digest, lock, locked

START_TIMEOUT_S, IMPORT_TIMEOUT_S = 120.0, 300.0
LINK_GONE_TIMEOUT_S, COMMAND_TIMEOUT_S = 10.0, 30.0
POLL_S = 0.1
COMMANDS = ("ip", "iptables", "mount", "nsenter")
#: The node mounts its own there, so what it runs from cannot be below.
HIDDEN = ("/run", "/var/lib", "/var/log", "/proc", "/sys")


def run_folder() -> Path:
    """Return the folder of the running node; there is none while none runs."""
    return cache() / "run"


def kubeconfig() -> Path:
    """Return the kubeconfig of the node's administrator."""
    return run_folder() / "conf" / "admin.conf"


def is_up() -> bool:
    """Whether the node runs and its API server says that it is ready."""
    return bool(members()) and kubectl("get", "--raw", "/readyz") == "ok"


def members() -> set[int]:
    """Return the pids of everything that belongs to the node."""
    return cgroups.members(_cgroups())


def pids(name: str) -> list[int]:
    """Return the pids of a component's processes, such as the kubelet's: none while it is stopped."""
    argv = next(list(c.argv) for c in layout.components(run_folder()) if c.name == name)
    return [pid for pid in sorted(members()) if _argv(pid) == argv]


def stop(name: str, sig: int = signal.SIGKILL) -> None:
    """End a component; it stays ended until `start`."""
    _hold(name).parent.mkdir(exist_ok=True)
    _hold(name).touch()
    for pid in pids(name):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, sig)
    _wait(f"{name} ends", lambda: not pids(name), COMMAND_TIMEOUT_S)


def start(name: str) -> None:
    """Let a stopped component run again."""
    _hold(name).unlink(missing_ok=True)
    _wait(f"{name} starts", lambda: bool(pids(name)), COMMAND_TIMEOUT_S)


def kubectl(*args: str, timeout_s: float = COMMAND_TIMEOUT_S) -> str | None:
    """Return what kubectl prints about the node, None when it fails."""
    command = [str(build.programs() / "kubectl"), f"--kubeconfig={kubeconfig()}", "--request-timeout=5s"]
    command += [f"--cache-dir={run_folder() / 'kubectl'}", *args]
    with contextlib.suppress(subprocess.TimeoutExpired, FileNotFoundError):
        ran = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
        return ran.stdout.strip() if ran.returncode == 0 else None
    return None


def ctr_command(*args: str) -> list[str]:
    """Return the command line of containerd's own client for the node's images and containers."""
    inside = Path("/proc") / (run_folder() / "pid").read_text().strip() / "root"
    program = build.packages() / "usr/bin/ctr"
    return [str(program), f"--address={inside}{layout.SOCKET}", "--namespace=k8s.io", *args]


def ctr(*args: str, timeout_s: float = COMMAND_TIMEOUT_S) -> str:
    """Run containerd's own client (ClusterError when it fails)."""
    try:
        ran = subprocess.run(ctr_command(*args), capture_output=True, text=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired:
        raise ClusterError(
            f"test cluster: ctr {args[0]} took more than {timeout_s:.0f} s: see {cache() / 'log'}"
        ) from None
    if ran.returncode:
        said = ran.stderr.strip().splitlines()
        raise ClusterError(f"test cluster: ctr {args[0]} failed: {said[-1] if said else ran.returncode}")
    return ran.stdout


def load_images() -> None:
    """Bring into the running node what it lacks of the images."""
    wanted = images.images()
    there = set(ctr("content", "ls", "--quiet").split())
    command = ctr_command("images", "import", "--no-unpack=false", "-")
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as client:
        assert client.stdin is not None
        assert client.stdout is not None
        try:
            images.write(wanted, client.stdin, lambda blob: f"sha256:{blob}" not in there)
            client.stdin.close()
            said = client.stdout.read().decode(errors="replace").strip()
        except BrokenPipeError:
            said = client.stdout.read().decode(errors="replace").strip()
            client.kill()
        if client.wait(IMPORT_TIMEOUT_S):
            raise ClusterError(f"test cluster: the images were not imported: {said.splitlines()[-1] if said else '?'}")


def up() -> bool:
    """Bring the node up; False when it was up already (ClusterError where it cannot be)."""
    if reason := missing():
        raise ClusterError(reason)
    with locked():
        _build()
        if is_up():
            load_images()
            return False
        _clear()
        _refuse_taken_addresses()
        try:
            _wait_until_ready(_begin())
        except BaseException:
            _clear()
            raise
    return True


def borrow() -> None:
    """Bring the node up for tests: who is the last to `give_back` takes it down, unless `up` was asked for as well."""
    if up():
        _borrowed().touch()


@contextlib.contextmanager
def in_use() -> Iterator[None]:
    """Keep the node from being taken down by others that give it back."""
    cache().mkdir(parents=True, exist_ok=True)
    with (cache() / "users").open("w") as users:
        lock(users, fcntl.LOCK_SH)
        yield
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _borrowed().exists():
                down()


@contextlib.contextmanager
def alone() -> Iterator[bool]:
    """Keep others from borrowing the node meanwhile; False where somebody has it."""
    cache().mkdir(parents=True, exist_ok=True)
    with (cache() / "users").open("w") as users:
        try:
            fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield not is_up()


def down() -> None:
    """End the node, or what is left of one; nothing of it stays on the machine (ClusterError when something does)."""
    if os.geteuid() != 0:
        raise ClusterError("test cluster: needs root")
    with locked():
        _clear()


def _build() -> None:
    build.build()
    images.images()


def _borrowed() -> Path:
    return run_folder() / "borrowed"


def _begin() -> subprocess.Popen[bytes]:
    run = run_folder()
    _write_conf(run)
    (run / "log").mkdir()
    paths = cgroups.planned(f"drills-{digest([str(run).encode()])[:8]}", cgroups.hierarchies())
    if cgroups.version_2_only(cgroups.hierarchies()):
        paths += [path / cgroups.DAEMONS for path in paths]
    # Written before they are made: `down` must find what a killed `up` left.
    (run / "cgroups.new").write_text(json.dumps([str(path) for path in paths]))
    (run / "cgroups.new").rename(run / "cgroups.json")
    cgroups.make(paths)
    netns = os.open("/proc/self/ns/net", os.O_RDONLY)
    try:
        with (run / "log" / "node.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "tests.cluster.inside", str(run), str(netns)],
                cwd=TREE,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[netns],
                start_new_session=True,
            )
    finally:
        os.close(netns)


def _write_conf(run: Path) -> None:
    run.mkdir(mode=0o700)
    conf = run / "conf"
    authority = pki.Authority(conf)
    authority.issue("apiserver", "kube-apiserver", hosts=layout.API_HOSTS)
    authority.issue("kubelet", f"system:node:{layout.NODE}", ["system:nodes"], [layout.NODE_IP, layout.NODE])
    authority.issue("kubelet-client", "kube-apiserver-kubelet-client", ["system:masters"])
    pki.write_service_account_key(conf)
    pki.write_users(conf, layout.SERVER, layout.USERS)
    for name, text in layout.config_files(run).items():
        (conf / name).parent.mkdir(exist_ok=True)
        (conf / name).write_text(text)


def _wait_until_ready(outside: subprocess.Popen[bytes]) -> None:
    def wait(what: str, holds: Callable[[], bool]) -> None:
        _wait(what, holds, START_TIMEOUT_S, lambda: outside.poll() is not None)

    ready = "jsonpath={.status.conditions[?(@.type=='Ready')].status}"
    wait("the node begins", (run_folder() / "pid").exists)
    wait("containerd answers", _containerd_answers)
    load_images()
    _tidy_images()
    stop(layout.IMAGE_STORE)
    wait("the API server is ready", lambda: kubectl("get", "--raw", "/readyz") == "ok")
    wait("the node is Ready", lambda: kubectl("get", "node", layout.NODE, "-o", ready) == "True")
    wait("the default ServiceAccount is there", lambda: bool(kubectl("get", "serviceaccount", "default")))


def _tidy_images() -> None:
    """Forget what an earlier node ran, and images that have lost their name to a newer one."""
    if left := ctr("containers", "ls", "--quiet").split():
        ctr("containers", "rm", *left)
    nameless = {name for name in ctr("images", "ls", "--quiet").split() if name.startswith("sha256:")}
    if old := sorted(nameless - {image.id for image in images.images()}):
        ctr("images", "rm", *old)


def _containerd_answers() -> bool:
    with contextlib.suppress(ClusterError):
        return bool(ctr("version", timeout_s=5.0))
    return False


def _wait(what: str, holds: Callable[[], bool], timeout_s: float, dead: Callable[[], bool] = lambda: False) -> None:
    deadline = time.monotonic() + timeout_s
    while not holds():
        if time.monotonic() > deadline or dead():
            raise ClusterError(f"test cluster: waited in vain until {what}: {_last_word()}see {cache() / 'log'}")
        time.sleep(POLL_S)


def _last_word() -> str:
    """Return what the node's first process said last."""
    file = run_folder() / "log" / "node.log"
    said = file.read_text(errors="replace").strip() if file.exists() else ""
    return f"{said.splitlines()[-1]}: " if said else ""


def _clear() -> None:
    """End what there is of a node and remove its files, keeping its logs."""
    run = run_folder()
    cgroups.end(_cgroups())
    _wait_for_link_to_go()
    if (run / "log").is_dir():
        shutil.rmtree(cache() / "log", ignore_errors=True)
        (run / "log").rename(cache() / "log")
    if run.exists():
        shutil.rmtree(run)


def _wait_for_link_to_go() -> None:
    """The kernel takes a namespace's links down a moment after its last process."""
    link = Path("/sys/class/net") / layout.HOST_LINK
    deadline = time.monotonic() + LINK_GONE_TIMEOUT_S
    while link.exists():
        if time.monotonic() > deadline:
            subprocess.run(["ip", "link", "delete", layout.HOST_LINK], timeout=COMMAND_TIMEOUT_S, check=False)
            return
        time.sleep(POLL_S)


def _cgroups() -> list[Path]:
    file = run_folder() / "cgroups.json"
    return [Path(path) for path in json.loads(file.read_text())] if file.exists() else []


def _hold(name: str) -> Path:
    return run_folder() / "hold" / name


def _argv(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")[:-1]
    except OSError:
        return []


def missing() -> str | None:
    """Return what keeps this machine from having the node, in one line; None when nothing does."""
    if os.geteuid() != 0:
        return "test cluster: needs root; or give KUBECONFIG to use a cluster that is there"
    if lacking := [command for command in COMMANDS if shutil.which(command) is None]:
        return f"test cluster: missing {', '.join(lacking)}: install iproute2, iptables and util-linux"
    if hidden := [folder for folder in HIDDEN if cache().is_relative_to(folder)]:
        return f"test cluster: {cache()} is under {hidden[0]}: set DRILL_CLUSTER_CACHE to another place"
    return build.missing()


def _refuse_taken_addresses() -> None:
    """Refuse where the machine already knows the way to an address that the node would have."""
    ours = [ipaddress.ip_network(f"{layout.HOST_IP}/{layout.LINK_BITS}", strict=False)]
    ours += [ipaddress.ip_network(network) for network in (layout.PODS, layout.SERVICES)]
    shown = subprocess.run(["ip", "-j", "-4", "route"], capture_output=True, text=True, timeout=10, check=True).stdout
    for route in json.loads(shown or "[]"):
        if route["dst"] == "default":
            continue
        if any(ipaddress.ip_network(route["dst"]).overlaps(network) for network in ours):
            raise ClusterError(f"test cluster: the machine has a route to {route['dst']} ({route['dev']}): remove it")


def _locked_do(work: Callable[[], None]) -> Callable[[], None]:
    def do() -> None:
        with locked():
            work()

    return do


def _up() -> None:
    began = time.monotonic()
    said = f"up in {time.monotonic() - began:.1f} s" if up() else "is up already"
    _borrowed().unlink(missing_ok=True)  # it is wanted beyond the tests
    print(f"test cluster: Kubernetes {build.version()} {said}", file=sys.stderr)
    print(f"export KUBECONFIG={kubeconfig()}")


def _down() -> None:
    began = time.monotonic()
    down()
    print(f"test cluster: down in {time.monotonic() - began:.1f} s", file=sys.stderr)


def _status() -> None:
    for component in layout.components(run_folder()):
        print(f"{component.name:25} {' '.join(map(str, pids(component.name))) or '-'}")


def main() -> int:
    """Do what the word says; 0, or 1 with one line."""
    verbs = {
        "build": _locked_do(_build),
        "up": _up,
        "borrow": borrow,
        "load": _locked_do(load_images),
        "down": _down,
        "status": _status,
    }
    verb = verbs.get(sys.argv[1]) if len(sys.argv) == 2 else None
    if verb is None:
        print(f"usage: python -m tests.cluster.node {' | '.join(verbs)}", file=sys.stderr)
        return 64
    try:
        verb()
    except ClusterError as e:
        print(e, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
