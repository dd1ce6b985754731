"""The node's programs: Kubernetes from pinned Go modules, the rest from Debian packages; made once, kept in the cache.

`python -m tests.cluster.node build` makes what is missing; on two cores that takes about fifteen minutes.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from tests.cluster import debian
from tests.cluster.cache import HERE, ClusterError, begin, cache, digest, finish, made

GO_TIMEOUT_S = 3600.0
GO = re.compile(r"go1\.26(\.|$)")
FETCHED = "go1.26.0"
NO_GO = "test cluster: needs Go 1.26, or a Go from 1.21 on and a module proxy that has it: put `go` on the PATH"
PACKAGES = ("containerd", "containernetworking-plugins", "etcd-server", "runc")
#: Where a program says which version it is; built as a module it would say v0.0.0.
VERSION_VARIABLES = ("k8s.io/component-base/version.gitVersion", "k8s.io/client-go/pkg/version.gitVersion")


def programs() -> Path:
    """Return the folder of the Kubernetes programs."""
    return cache() / "kubernetes"


def packages() -> Path:
    """Return the folder of the unpacked Debian packages."""
    return cache() / "debian"


def version() -> str:
    """Return the Kubernetes version that go.mod pins, such as v1.36.3."""
    found = re.search(r"^\s*(?:require )?k8s\.io/kubernetes (v\S+)", (HERE / "go.mod").read_text(), re.MULTILINE)
    assert found, "go.mod pins k8s.io/kubernetes"
    return found[1]


def build() -> None:
    """Make what is missing of the programs (ClusterError where it cannot be made)."""
    cache().mkdir(parents=True, exist_ok=True)
    _build_programs()
    _unpack_packages()


def missing() -> str | None:
    """Return what keeps this machine from making what is not made yet, in one line; None when nothing does."""
    if made(programs(), _programs_stamp()):
        return None
    try:
        _go_environment()
    except ClusterError as e:
        return str(e)
    return None


def _programs_stamp() -> str:
    return digest([HERE / "go.mod", HERE / "go.sum", HERE / "pause" / "main.go", *map(str.encode, VERSION_VARIABLES)])


def _build_programs() -> None:
    stamp = _programs_stamp()
    if made(programs(), stamp):
        return
    environment = _go_environment()
    print(f"test cluster: building Kubernetes {version()}: minutes, once", flush=True)
    begin(programs())
    flags = " ".join(["-s", "-w", *(f"-X {name}={version()}" for name in VERSION_VARIABLES)])
    command = [
        "go",
        "build",
        "-mod=readonly",
        "-trimpath",
        f"-ldflags={flags}",
        "-o",
        f"{programs()}/",
        "tool",
        "./pause",
    ]
    try:
        ran = subprocess.run(command, cwd=HERE, env=environment, timeout=GO_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise ClusterError(f"test cluster: go build took more than {GO_TIMEOUT_S:.0f} s: run it again") from None
    if ran.returncode:
        raise ClusterError("test cluster: go build failed, see above: is the Go module proxy reachable?")
    finish(programs(), stamp)


def _go_environment() -> dict[str, str]:
    """Return the environment for a Go 1.26, with its caches beside the programs (ClusterError without one).

    With Go 1.27 the API server publishes no schema, and says that it is ready.
    """
    if shutil.which("go") is None:
        raise ClusterError(NO_GO)
    environment = {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-modcacherw"}
    environment |= {"GOCACHE": str(cache() / "go-build"), "GOMODCACHE": str(cache() / "go-mod")}
    said = ""
    for toolchain in ("local", FETCHED):  # another Go fetches the right one as a module
        environment["GOTOOLCHAIN"] = toolchain
        ask = ["go", "env", "GOVERSION"]
        asked = subprocess.run(ask, cwd=HERE, env=environment, capture_output=True, text=True, timeout=300, check=False)
        if asked.returncode == 0 and GO.match(asked.stdout.strip()):
            return environment
        said = (asked.stderr or asked.stdout).strip().splitlines()[-1]
    raise ClusterError(f"{NO_GO}; the one there says: {said}")


def _unpack_packages() -> None:
    stamp = digest([" ".join(PACKAGES).encode()])
    if made(packages(), stamp):
        return
    print("test cluster: unpacking containerd, runc, etcd and the CNI plugins from Debian packages", flush=True)
    begin(packages())
    debian.update()
    debian.unpack(PACKAGES, packages(), closure=False)
    finish(packages(), stamp)
