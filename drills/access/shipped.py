"""What of this package runs on a host: a closed set of modules, shipped in one go and left there.

Under `<state_dir>/lib/<hash>/`, with a launcher that runs a Python which knows them. They need the standard library
only, and no newer Python than `OLDEST`.
"""

from __future__ import annotations

import importlib.util
import io
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

import drills
from drills.access import unpack
from drills.errors import Refused

OLDEST: Final = (3, 9)
MODULES: Final = (
    "drills",
    "drills.access",
    "drills.access.farlines",
    "drills.access.fence",
    "drills.access.gpu_clocks",
    "drills.access.gpu_restore",
    "drills.access.gpu_units",
    "drills.access.gpunodes",
    "drills.access.holders",
    "drills.access.iptables",
    "drills.access.lateness",
    "drills.access.local",
    "drills.access.nodemarks",
    "drills.access.ontarget",
    "drills.access.procs",
    "drills.access.remote",
    "drills.access.unittimer",
    "drills.access.unpack",
    "drills.access.unrules",
    "drills.errors",
    "drills.files",
    "drills.fronts",
    "drills.fronts.oldlinks",
    "drills.fronts.onhost",
    "drills.fronts.places",
    "drills.fronts.words",
    "drills.ledger",
    "drills.plain",
    "drills.proxy",
    "drills.proxy_beat",
    "drills.proxy_control",
    "drills.proxy_faults",
    "drills.proxy_files",
    "drills.proxy_link",
    "drills.wire",
)
#: Not ours: nvidia-ml-py, one file, by which `drills/probes/gpu.py` asks NVML where a host has none of its own.
BORROWED: Final = ("pynvml",)
PACKAGE: Final = Path(drills.__file__).parent

#: How the shell says that no Python will do.
NO_PYTHON: Final = 90
TOO_OLD: Final = 91
_NEWER = " ".join(f"python3.{minor}" for minor in range(15, OLDEST[1] - 1, -1))
#: Finds a Python: $1 is a program for it, the rest its words.
_FIND = (
    f"rc={NO_PYTHON}; for p in python3 {_NEWER}; do command -v $p >/dev/null 2>&1 || continue; "
    f'if $p -c "import sys; sys.exit(sys.version_info < {OLDEST})" </dev/null; then exec $p -c "$@"; fi; '
    f"[ $rc = {TOO_OLD} ] || $p -V; rc={TOO_OLD}; done; exit $rc"
)
_LOAD = "import sys; exec(sys.stdin.buffer.read(int(sys.argv[1])))"


@dataclass(frozen=True)
class Bundle:
    """What is shipped."""

    hash: str
    packed: bytes

    def launcher(self, state_dir: str) -> str:
        """Return where the launcher lies on a host."""
        return f"{state_dir}/lib/{self.hash}/{unpack.LAUNCHER}"


@cache
def bundle() -> Bundle:
    """Return the modules as one tar, with the hash of what is in it."""
    files = {str(file_of(name).relative_to(PACKAGE.parent)): file_of(name).read_bytes() for name in MODULES}
    files |= {path.name: path.read_bytes() for path in map(borrowed, BORROWED)}
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name, content in sorted(files.items()):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return Bundle(unpack.digest(files), packed.getvalue())


def file_of(module: str) -> Path:
    """Return the file of one of our modules."""
    path = PACKAGE.parent.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def borrowed(module: str) -> Path:
    """Return the file of a module that is not ours, and is not loaded by that: no driver holds NVML."""
    found = importlib.util.find_spec(module)
    if found is None or found.origin is None:
        raise Refused(f"{module} is not installed here, and hosts need it; install the package again")
    return Path(found.origin)


def shipping(state_dir: str) -> tuple[Sequence[str], bytes]:
    """Return the command that ships them, and its input."""
    program = file_of(unpack.__name__).read_bytes()
    argv = ["sh", "-c", _FIND, "sh", _LOAD, str(len(program)), state_dir, bundle().hash]
    return argv, program + bundle().packed
