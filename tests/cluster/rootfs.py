"""The files of the images' layers: a Debian root with Python, the Python packages, the project, the monitoring.

They stand in for `python:3.11-slim` and for what `examples/kubernetes/Containerfile` adds to it.
"""

from __future__ import annotations

import os
import py_compile
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

from tests.cluster import build, debian
from tests.cluster.cache import HERE, TREE, ClusterError

#: Beside the packages that the Containerfile names: what its base image brings.
BASE = ("python3", "dash", "coreutils", "libstdc++6", "usr-is-merged", "netbase", "tar", "sed", "grep")
NAMED = TREE / "examples" / "kubernetes" / "packages.txt"
PYTHON = (3, 11)
#: Where Debian's Python looks for packages that did not come from Debian.
SITE = Path("usr/local/lib/python3.11/dist-packages")
MONITORING = ("prometheus", "promtool", "prometheus-alertmanager", "amtool")
TEMPLATES = Path("/usr/share/prometheus/alertmanager")  # compiled into Debian's Alertmanager
TOOLS = TREE / ".cache" / "tools" / "usr" / "bin"
ACCOUNTS = {
    "etc/passwd": "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
    "etc/group": "root:x:0:\nnogroup:x:65534:\n",
    "etc/nsswitch.conf": "hosts: files dns\n",
}
NEEDLESS = (
    "usr/share/doc",
    "usr/share/man",
    "usr/share/info",
    "usr/share/locale",
    "usr/share/perl",
    "usr/share/bash-completion",
)
GPU_NODE = HERE / "device_plugin"
GRPC = "grpcio==1.76.0"
PIP_TIMEOUT_S, COMMAND_TIMEOUT_S = 1200.0, 300.0


def named_packages() -> list[str]:
    """Return the packages that the Containerfile installs."""
    return NAMED.read_text().split()


def dependencies() -> list[str]:
    """Return the Python packages that the project asks for."""
    project = tomllib.loads((TREE / "pyproject.toml").read_text())["project"]
    return [str(name) for name in project["dependencies"]]


def make_base(root: Path) -> None:
    """Put a Debian root with Python and the tools there, as if its packages had been installed."""
    for name in ("bin", "sbin", "lib", "lib64"):
        (root / "usr" / name).mkdir(parents=True)
        (root / name).symlink_to(f"usr/{name}")
    for name in ("dev", "etc", "proc", "root", "run", "sys", "tmp", "var/tmp", "var/log", "var/lib"):
        (root / name).mkdir(parents=True)
    for name in ("tmp", "var/tmp"):
        (root / name).chmod(0o1777)
    debian.update()
    debian.unpack([*BASE, *named_packages()], root, closure=True)
    for name, text in ACCOUNTS.items():
        (root / name).write_text(text)
    _choose_alternatives(root)
    for name in NEEDLESS:
        shutil.rmtree(root / name, ignore_errors=True)
    _run("ldconfig", "-r", str(root))
    # Debian compiles when it installs; without that each process would, in each container.
    _run("chroot", str(root), "python3", "-m", "compileall", "-q", "/usr/lib/python3.11")


def _choose_alternatives(root: Path) -> None:
    for family in ("iptables", "ip6tables"):
        for verb in ("", "-save", "-restore"):
            (root / "usr/sbin" / f"{family}{verb}").symlink_to(f"{family}-nft{verb}")
    if not (root / "usr/bin/sh").exists():
        (root / "usr/bin/sh").symlink_to("dash")


def make_packages(root: Path) -> None:
    """Put the Python packages there that the project needs, in the versions it is tested with."""
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-input", "--disable-pip-version-check"]
    command += ["--target", str(root / SITE), "--python-version", ".".join(map(str, PYTHON)), "--only-binary=:all:"]
    command += ["-c", str(TREE / "constraints.txt"), *dependencies()]
    _run(*command, timeout_s=PIP_TIMEOUT_S)
    programs = root / "usr/local/bin"
    programs.mkdir(parents=True)
    for script in (root / SITE / "bin").glob("*"):
        body = script.read_bytes()
        first, _, rest = body.partition(b"\n")
        python = first.startswith(b"#!") and b"python" in first
        (programs / script.name).write_bytes(b"#!/usr/bin/python3\n" + rest if python else body)
        (programs / script.name).chmod(0o755)
    shutil.rmtree(root / SITE / "bin")


def make_project(root: Path) -> None:
    """Put the project there, as the wheel would: with experiments and playbooks inside the package."""
    package = root / SITE / "drills"
    shutil.copytree(TREE / "drills", package, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("experiments", "playbooks"):
        shutil.copytree(TREE / name, package / "data" / name)
    if sys.version_info[:2] == PYTHON:
        for source in package.rglob("*.py"):
            inside = f"/{source.relative_to(root)}"
            mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
            py_compile.compile(str(source), dfile=inside, doraise=True, invalidation_mode=mode)
    launcher = root / "usr/local/bin/drill"
    launcher.parent.mkdir(parents=True)
    launcher.write_text("#!/usr/bin/python3\nimport sys\nfrom drills.cli import main\nsys.exit(main())\n")
    launcher.chmod(0o755)


def make_monitoring(root: Path) -> None:
    """Put Prometheus and Alertmanager there (ClusterError where `make setup` could not fetch them)."""
    programs = root / "usr/bin"
    programs.mkdir(parents=True)
    for name in MONITORING:
        found = TOOLS / name if (TOOLS / name).exists() else Path(shutil.which(name) or TOOLS / name)
        if not found.exists():
            raise ClusterError(f"test cluster: no {name}: run tools/fetch-monitoring.sh")
        shutil.copy2(found, programs / name)
    (programs / "alertmanager").symlink_to("prometheus-alertmanager")  # what everybody but Debian calls it
    shared = TEMPLATES if TEMPLATES.is_dir() else TOOLS.parent / TEMPLATES.relative_to("/usr")
    if not (shared / "default.tmpl").exists():
        raise ClusterError("test cluster: no templates of Alertmanager: run tools/fetch-monitoring.sh")
    shutil.copytree(shared, root / TEMPLATES.relative_to("/"))


def make_gpu_node(root: Path) -> None:
    """Put the tests' device plugin there, and what it speaks to the kubelet with."""
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-input", "--disable-pip-version-check", "--no-deps"]
    command += ["--target", str(root / SITE), "--python-version", ".".join(map(str, PYTHON)), "--only-binary=:all:"]
    _run(*command, GRPC, timeout_s=PIP_TIMEOUT_S)
    programs = root / "opt" / "gpu-node"
    programs.mkdir(parents=True)
    for source in sources(GPU_NODE):
        shutil.copy2(source, programs / source.name)


def make_pause(root: Path) -> None:
    """Put the program there that holds a pod's namespaces."""
    shutil.copy2(build.programs() / "pause", root / "pause")


def sources(folder: Path) -> list[Path]:
    """Return the files below a folder that a layer is made of, in order."""
    return sorted(p for p in folder.rglob("*") if p.is_file() and "__pycache__" not in p.parts)


def _run(*command: str, timeout_s: float = COMMAND_TIMEOUT_S) -> None:
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}
    ran = subprocess.run(
        command, cwd=HERE, env=environment, capture_output=True, text=True, timeout=timeout_s, check=False
    )
    if ran.returncode:
        said = ran.stderr.strip().splitlines() or ran.stdout.strip().splitlines()
        raise ClusterError(f"test cluster: {Path(command[0]).name} failed: {said[-1] if said else ran.returncode}")
