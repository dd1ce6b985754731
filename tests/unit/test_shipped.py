"""What runs on a host: it is all there, needs nothing else and no newer Python than is promised."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from drills.access import holders, shipped, unpack
from drills.access.shipped import BORROWED, MODULES, OLDEST, borrowed, file_of
from drills.probes import gpu
from tests.unit.test_layers import MODULES as OURS
from tests.unit.test_layers import imported


def beside_the_point(module: str) -> set[str]:
    """Return what a module imports for a type checker only, or where it was copied to a host all by itself."""
    guarded: list[ast.AST] = []
    for node in ast.walk(ast.parse(file_of(module).read_text())):
        match node:
            case ast.If(test=ast.Name(id="TYPE_CHECKING")) | ast.ExceptHandler(type=ast.Name(id="ImportError")):
                guarded.append(node)
    found = set()
    for node in (one for guard in guarded for one in ast.walk(guard)):
        if isinstance(node, ast.ImportFrom):
            found |= {node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found


@pytest.mark.parametrize("module", MODULES)
def test_it_imports_what_is_shipped_and_the_standard_library(module: str) -> None:
    needed = set(imported(module)) - beside_the_point(module)
    for name in needed:
        top = name.partition(".")[0]
        assert name in MODULES if top == "drills" else top in sys.stdlib_module_names, name


@pytest.mark.parametrize("module", MODULES)
def test_the_packages_it_is_in_are_shipped_too(module: str) -> None:
    assert module in OURS
    assert module.rpartition(".")[0] in ("", *MODULES)


def too_new(*files: Path) -> str:
    """Return what of these files the oldest Python does not know, empty when it knows all."""
    argv = [sys.executable, "-c", "from vermin import main; main()", f"-t={'.'.join(map(str, OLDEST))}-"]
    argv += ["--no-tips", "--eval-annotations", "-vv", "--processes=1", *map(str, files)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
    assert not done.stderr
    assert "Minimum required versions" in done.stdout
    return done.stdout if done.returncode else ""


def test_it_needs_no_newer_python_than_is_promised(tmp_path: Path) -> None:
    sent_by_pipe = (Path(str(gpu.__file__)), Path(str(holders.__file__)))
    assert too_new(*map(file_of, MODULES), *map(borrowed, BORROWED), *sent_by_pipe) == ""
    newer = tmp_path / "newer.py"
    newer.write_text("from enum import StrEnum\n")
    assert "StrEnum" in too_new(newer)


@pytest.mark.parametrize("module", BORROWED)
def test_what_is_borrowed_is_one_file_and_needs_the_standard_library_alone(module: str) -> None:
    path = borrowed(module)
    assert path.name == f"{module}.py"
    for node in ast.walk(ast.parse(path.read_text())):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        assert {name.partition(".")[0] for name in names} <= set(sys.stdlib_module_names)


def test_nobody_loads_what_is_borrowed_to_ship_it() -> None:
    program = "import sys; from drills.access import shipped; shipped.bundle(); sys.exit('pynvml' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], timeout=60, check=False).returncode == 0


def test_the_hash_is_of_names_and_contents() -> None:
    files = {"a": b"1", "b": b"2"}
    assert unpack.digest(dict(reversed(files.items()))) == unpack.digest(files)
    others = [{"a": b"1"}, {"a": b"1", "b": b"3"}, {"a": b"1", "c": b"2"}, {"a": b"12", "b": b""}, {"ab": b"12"}]
    assert unpack.digest(files) not in [unpack.digest(other) for other in others]
    assert shipped.bundle().launcher("/x") == f"/x/lib/{shipped.bundle().hash}/python"


def test_whoever_drills_no_hosts_never_imports_paramiko() -> None:
    """It takes longer to import than all of the rest of a `drill status`."""
    program = "import sys, drills.cli, drills.opening, drills.target; sys.exit('paramiko' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], timeout=60, check=False).returncode == 0
    at_start = {"drills.cli", "drills.opening", "drills.target", "drills.session", "drills.run", "drills.upkeep"}
    todo, seen = list(at_start), set(at_start)
    while todo:
        for name in top_level(todo.pop()):
            assert not name.startswith("paramiko"), name
            if name in OURS and name not in seen:
                seen.add(name)
                todo.append(name)
    assert "drills.model" in seen


def top_level(module: str) -> list[str]:
    """Return what is imported as soon as a module is."""
    found: list[str] = []
    for node in ast.parse(OURS[module].read_text()).body:
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found += [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]
    return found
