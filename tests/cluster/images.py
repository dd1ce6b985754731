"""The images of the test cluster, made without a registry: `python -m tests.cluster.images [FILE]` writes them.

An image is a stack of layers, each made once and kept in the cache until what it is made of changes:

    drills.test/drills:dev       base (Debian, Python) · packages (Python's) · project (this tree)
    drills.test/monitoring:dev   base · monitoring (Prometheus, Alertmanager)
    drills.test/gpu-node:dev     base · packages · gpu-node (the device plugin of the tests)
    drills.test/pause:1          pause
FILE is an OCI archive for another cluster (`kind load image-archive FILE`). The tests' own node is given only the
layers that it lacks (`python -m tests.cluster.node load`), so a change of the project is there in seconds.
"""

from __future__ import annotations

import hashlib
import inspect
import io
import json
import platform
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from tests.cluster import build, layout, rootfs
from tests.cluster.cache import TREE, ClusterError, begin, cache, digest, finish, locked, made

DRILLS, MONITORING, PAUSE = "drills.test/drills:dev", "drills.test/monitoring:dev", layout.PAUSE_IMAGE
GPU_NODE = "drills.test/gpu-node:dev"
PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar"
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
CREATED = "2026-01-01T00:00:00Z"  # the same files give the same image
REMOVE_TIMEOUT_S = 120.0


@dataclass(frozen=True)
class Layer:
    """One layer in the cache."""

    file: Path
    sha256: str

    @property
    def size(self) -> int:
        """Its size in bytes."""
        return self.file.stat().st_size


@dataclass(frozen=True)
class Image:
    """A name, what is in it, and what it runs."""

    name: str
    layers: tuple[Layer, ...]
    command: tuple[str, ...]

    @property
    def id(self) -> str:
        """What the container runtime calls it beside its name."""
        return f"sha256:{_sha256(_json(_config(self)))}"


def images() -> list[Image]:
    """Return all images, making the layers that are missing (ClusterError where one cannot be made)."""
    base = _layer("base", rootfs.make_base, [_json([rootfs.BASE, rootfs.named_packages(), rootfs.ACCOUNTS])])
    packages = _layer("packages", rootfs.make_packages, [_json(rootfs.dependencies()), TREE / "constraints.txt"])
    project = _layer("project", rootfs.make_project, _project_parts())
    monitoring = _layer("monitoring", rootfs.make_monitoring, [_listing(rootfs.TOOLS)])
    gpu_node = _layer("gpu-node", rootfs.make_gpu_node, [*rootfs.sources(rootfs.GPU_NODE), rootfs.GRPC.encode()])
    pause = _layer("pause", rootfs.make_pause, [build.programs() / "pause"])
    return [
        Image(PAUSE, (pause,), ("/pause",)),
        Image(DRILLS, (base, packages, project), ("drill", "--help")),
        Image(MONITORING, (base, monitoring), ("prometheus", "--help")),
        Image(GPU_NODE, (base, packages, gpu_node), ("python3", "/opt/gpu-node/plugin.py")),
    ]


def write(wanted: Iterable[Image], out: IO[bytes], lacks: Callable[[str], bool] = lambda _: True) -> None:
    """Write an OCI archive with those of the images' blobs that are lacking."""
    with tarfile.open(fileobj=out, mode="w|") as tar:
        _add(tar, "oci-layout", b'{"imageLayoutVersion":"1.0.0"}')
        manifests, written = [], set()
        for image in wanted:
            config = _json(_config(image))
            manifest = _json(_manifest(image, config))
            manifests.append(_described(MANIFEST, manifest) | {"annotations": {"io.containerd.image.name": image.name}})
            for layer in image.layers:
                if layer.sha256 not in written and lacks(layer.sha256):
                    written.add(layer.sha256)
                    _add_file(tar, f"blobs/sha256/{layer.sha256}", layer)
            for blob in (config, manifest):
                _add(tar, f"blobs/sha256/{_sha256(blob)}", blob)
        _add(tar, "index.json", _json({"schemaVersion": 2, "manifests": manifests}))


def _layer(name: str, make: Callable[[Path], None], parts: list[bytes | Path]) -> Layer:
    """Return the layer, made anew where its recipe or what it is made of has changed."""
    folder, stamp = cache() / "images" / name, digest([inspect.getsource(make).encode(), *parts])
    if not made(folder, stamp):
        print(f"test cluster: making the layer {name!r} of the images", file=sys.stderr, flush=True)
        begin(folder)
        root = folder / "root"
        root.mkdir()
        make(root)
        with (folder / "layer.tar").open("wb") as file, tarfile.open(fileobj=file, mode="w") as tar:
            for entry in sorted(root.iterdir()):
                tar.add(entry, arcname=entry.name, filter=_owned_by_root)
        subprocess.run(["rm", "-rf", str(root)], check=True, timeout=REMOVE_TIMEOUT_S)
        (folder / "sha256").write_text(_file_sha256(folder / "layer.tar"))
        finish(folder, stamp)
    return Layer(folder / "layer.tar", (folder / "sha256").read_text())


def _project_parts() -> list[bytes | Path]:
    """Return names and contents of the project's files."""
    files = [file for name in ("drills", "experiments", "playbooks") for file in rootfs.sources(TREE / name)]
    return [part for file in files for part in (str(file.relative_to(TREE)).encode(), file)]


def _listing(folder: Path) -> bytes:
    found = sorted(folder.glob("*")) if folder.is_dir() else []
    return _json([[file.name, file.stat().st_size, file.stat().st_mtime] for file in found])


def _owned_by_root(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    # Whole seconds, as they are: compiled Python names the time of its source.
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = "root"
    entry.mtime = int(entry.mtime)
    return entry


def _config(image: Image) -> dict[str, Any]:
    return {
        "architecture": ARCHITECTURES.get(platform.machine(), platform.machine()),
        "os": "linux",
        "created": CREATED,
        "config": {"Env": [PATH], "Cmd": list(image.command), "WorkingDir": "/"},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{layer.sha256}" for layer in image.layers]},
        "history": [{"created": CREATED, "created_by": layer.file.parent.name} for layer in image.layers],
    }


def _manifest(image: Image, config: bytes) -> dict[str, Any]:
    layers = [{"mediaType": LAYER, "digest": f"sha256:{layer.sha256}", "size": layer.size} for layer in image.layers]
    return {"schemaVersion": 2, "mediaType": MANIFEST, "config": _described(CONFIG, config), "layers": layers}


def _described(media_type: str, blob: bytes) -> dict[str, Any]:
    return {"mediaType": media_type, "digest": f"sha256:{_sha256(blob)}", "size": len(blob)}


def _json(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True).encode()


def _sha256(blob: bytes) -> str:
    return hashlib.sha256(blob).hexdigest()


def _file_sha256(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _add(tar: tarfile.TarFile, name: str, blob: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(blob)
    tar.addfile(entry, io.BytesIO(blob))


def _add_file(tar: tarfile.TarFile, name: str, layer: Layer) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = layer.size
    with layer.file.open("rb") as opened:
        tar.addfile(entry, opened)


def main() -> int:
    """Make the images, and write them where a file is named; 0, or 1 with one line."""
    try:
        with locked():
            found = images()
            for name in sys.argv[1:2]:
                with Path(name).open("wb") as out:
                    write(found, out)
    except (ClusterError, OSError) as e:
        print(e, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
