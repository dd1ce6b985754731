"""Which part of the package may import which: the design's one way, read from the source."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import drills
from drills.lab.defects import DEFECTS

PACKAGE = Path(drills.__file__).parent
#: Judging and reporting work from files alone.
JUDGES = ("drills.verdict", "drills.checks", "drills.report", "drills.evidence", "drills.records", "drills.stats")
WORLD = ("drills.run", "drills.faults", "drills.access", "drills.load", "drills.lab")


def names() -> dict[str, Path]:
    """Return all modules of the package with their files."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = names()


def imported(module: str) -> Iterator[str]:
    """Yield what a module imports, anywhere in it, as absolute names; of our own modules also the parents."""
    path = MODULES[module]
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                up = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*up, base] if base else up)
            for alias in node.names:
                whole = f"{base}.{alias.name}"
                yield whole if whole in MODULES else base


def reachable(module: str) -> dict[str, str]:
    """Return everything a module pulls in, with the module of ours that imports it."""
    seen: dict[str, str] = {}
    todo = [module]
    while todo:
        current = todo.pop()
        for name in imported(current):
            for whole in _with_parents(name):
                if whole not in seen:
                    seen[whole] = current
                    if whole in MODULES:
                        todo.append(whole)
    return seen


def _with_parents(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[: n + 1]) for n in range(len(parts))]


def inside(name: str, packages: tuple[str, ...]) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages)


@pytest.mark.parametrize("module", [name for name in MODULES if inside(name, JUDGES)])
def test_judging_never_touches_the_world(module: str) -> None:
    wrong = {name: by for name, by in reachable(module).items() if inside(name, WORLD)}
    assert not wrong


@pytest.mark.parametrize("module", [name for name in MODULES if inside(name, ("drills.run",))])
def test_running_never_judges(module: str) -> None:
    wrong = {name: by for name, by in reachable(module).items() if inside(name, ("drills.verdict", "drills.report"))}
    assert not wrong


#: The load process: what is started with `python -m`, and what only it imports.
LOAD_PROCESS = "drills.load.generator"


@pytest.mark.parametrize("module", [name for name in MODULES if not inside(name, ("drills.load",))])
def test_the_driver_never_imports_locust(module: str) -> None:
    wrong = {name: by for name, by in reachable(module).items() if inside(name, ("locust", "gevent", LOAD_PROCESS))}
    assert not wrong


def test_locust_is_where_the_rule_says() -> None:
    """The rule above would hold for a package without load, too."""
    assert LOAD_PROCESS in MODULES
    assert inside("locust", tuple(reachable(LOAD_PROCESS)))


#: The command line, and what it calls to carry out `drill run` as a whole.
COMMANDS = ("drills.cli", "drills.__main__", "drills.session")


def test_only_the_command_line_sees_all() -> None:
    both = [name for name in MODULES if {"drills.run", "drills.verdict"} <= set(imported(name))]
    assert [name for name in both if not inside(name, COMMANDS)] == []


def test_only_the_lab_knows_its_defects() -> None:
    """A check or a report that knows what is wrong would find it in the lab and nowhere else."""
    knows = {m: [d for d in DEFECTS if d in path.read_text()] for m, path in MODULES.items()}
    assert {m: found for m, found in knows.items() if found and not inside(m, ("drills.lab",))} == {}
    assert sorted(knows["drills.lab.defects"]) == sorted(DEFECTS)


#: Who may know the lab: itself, what opens targets, the lab's own commands, and whose defaults it is.
KNOW_THE_LAB = ("drills.lab", "drills.opening", "drills.upkeep")
LAB_DEFAULTS = ("drills.target", {"drills.lab.config"})


def test_a_run_assumes_neither_the_lab_nor_this_machine() -> None:
    known = {m: {name for name in imported(m) if inside(name, ("drills.lab",))} for m in MODULES}
    module, defaults = LAB_DEFAULTS
    assert known.pop(module) <= defaults
    assert {m: found for m, found in known.items() if found and not inside(m, KNOW_THE_LAB)} == {}


#: What gets at the target only through what the target offers; where the driver itself runs is another matter.
THROUGH_THE_TARGET = ("run", "active", "tenure", "recover", "session", "upkeep", "gate", "watch", "custody", "receipts")


@pytest.mark.parametrize("module", [f"drills.{name}" for name in THROUGH_THE_TARGET])
def test_what_carries_out_a_run_never_reaches_past_the_target(module: str) -> None:
    past = ("drills.access.local", "drills.access.filecustody", "drills.access.ontarget", "drills.access.kubernetes")
    assert [name for name in imported(module) if inside(name, past)] == []


def test_the_reading_of_imports_sees_all_forms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.py"
    path.write_text(
        "import a.b\nfrom . import run\nfrom .lab import up\nfrom drills import load\ndef f():\n  import c\n"
    )
    monkeypatch.setitem(MODULES, "drills.x", path)
    monkeypatch.setitem(MODULES, "drills.run", path)
    assert set(imported("drills.x")) == {"a.b", "drills.run", "drills.lab", "drills.load", "c"}
