"""Debian packages unpacked without being installed: a private apt state, so the machine's own stays as it is."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.cluster.cache import ClusterError, cache

TIMEOUT_S = 600.0


def update() -> None:
    """Fetch the lists of packages."""
    _apt("update")


def unpack(packages: Sequence[str], dest: Path, *, closure: bool) -> None:
    """Put these packages under `dest`; with `closure` all they depend on too: a root that no installer touched."""
    debs = _state() / "debs"
    shutil.rmtree(debs, ignore_errors=True)
    (debs / "partial").mkdir(parents=True)
    if closure:
        nothing = _state() / "no-status"  # nothing is installed: all of it is wanted
        nothing.touch()
        options = ["-o", f"Dir::State::status={nothing}", "-o", f"Dir::Cache::Archives={debs}"]
        _apt(*options, "install", "-y", "--no-install-recommends", "--download-only", *packages)
    else:
        _apt("download", *packages, cwd=debs)
    for deb in sorted(debs.glob("*.deb")):
        _extract(deb, dest)
    shutil.rmtree(debs)


def _state() -> Path:
    return cache() / "apt"


def _apt(*args: str, cwd: Path | None = None) -> None:
    (_state() / "lists" / "partial").mkdir(parents=True, exist_ok=True)
    options = [f"Dir::State::Lists={_state() / 'lists'}", f"Dir::Cache={_state()}", "Debug::NoLocking=1"]
    options += ["APT::Sandbox::User=", "Acquire::Retries=2"]
    command = ["apt-get", "-q", *(word for option in options for word in ("-o", option)), *args]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, cwd=cwd, check=False)
    except FileNotFoundError:
        raise ClusterError(
            "test cluster: no apt-get, and the node's programs are Debian packages: use Debian"
        ) from None
    except subprocess.TimeoutExpired:
        raise ClusterError(
            f"test cluster: apt-get took more than {TIMEOUT_S:.0f} s: is the mirror reachable?"
        ) from None
    if ran.returncode:
        said = (ran.stderr.strip() or ran.stdout.strip()).splitlines()
        raise ClusterError(f"test cluster: apt-get failed: {said[-1] if said else ran.returncode}: apt's sources?")


def _extract(deb: Path, dest: Path) -> None:
    with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", str(deb)], stdout=subprocess.PIPE) as tree:
        # A package that still says /bin must land in usr/bin where bin is a link.
        command = ["tar", "-x", "--keep-directory-symlink", "-C", str(dest)]
        unpacked = subprocess.run(command, stdin=tree.stdout, timeout=TIMEOUT_S, check=False)
    if tree.returncode or unpacked.returncode:
        raise ClusterError(f"test cluster: cannot unpack {deb.name} to {dest}: is the disk full?")
