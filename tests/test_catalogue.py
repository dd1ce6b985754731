"""Faults, experiments and playbooks belong together, and all of it travels in the wheel."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from drills import experiment
from drills.experiment import Experiment
from drills.faults import FAULTS
from drills.plan import make_plan
from drills.target import lab_target
from tests.lab.test_fault_contract import ROWS

ROOT = Path(__file__).parents[1]
SHIPPED = sorted((ROOT / "experiments").glob("*.yaml"))
PLAYBOOKS = {path.stem for path in (ROOT / "playbooks").glob("*.md")}
CONTROLS = {name for name, fault in FAULTS.items() if not fault.effect}


@pytest.fixture(scope="module")
def experiments() -> list[Experiment]:
    return [experiment.load_experiment(path) for path in SHIPPED]


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_a_shipped_experiment_plans_for_the_lab(path: Path) -> None:
    found = experiment.load_experiment(path)
    assert found.name == path.stem
    plan = make_plan(found, lab_target(), run="x", seed=0)
    assert plan.steps
    assert not plan.notes or any("allow_small_n" in line for line in path.read_text().splitlines()), plan.notes


def test_every_experiment_that_harms_names_a_playbook_that_is_there(experiments: list[Experiment]) -> None:
    for one in experiments:
        control = {fault.name for fault in one.faults} <= CONTROLS
        assert (one.playbook is None) if control else (one.playbook in PLAYBOOKS), one.name


def test_every_playbook_is_named_by_an_experiment(experiments: list[Experiment]) -> None:
    assert {one.playbook for one in experiments if one.playbook} == PLAYBOOKS


def test_every_fault_has_an_experiment_and_a_row_in_the_contract(experiments: list[Experiment]) -> None:
    assert {fault.name for one in experiments for fault in one.faults} == set(FAULTS)
    assert {row.fault for row in ROWS} == set(FAULTS)


# ---- planning ------------------------------------------------------------------------------------------

#: Everything that would change something, or leave this process. A bind to port 0 is how libraries ask for IPv6.
GUARDED = """
import os, sys
HARM = '''
    socket.connect socket.sendto socket.getaddrinfo subprocess.Popen tempfile.mkstemp tempfile.mkdtemp shutil.rmtree
    os.system os.fork os.exec os.posix_spawn os.kill os.killpg os.mkdir os.remove os.rename os.rmdir os.truncate
    os.chmod os.link os.symlink
'''.split()
WRITE = os.O_WRONLY | os.O_RDWR | os.O_CREAT
def hook(event, args):
    writes = event == "open" and (set(str(args[1] or "")) & set("wax+") or (args[2] or 0) & WRITE)
    listens = event == "socket.bind" and args[1][1] != 0
    if event in HARM or writes or listens:
        print(f"HARM: {event} {args}", file=sys.stderr, flush=True)
        os._exit(99)
sys.addaudithook(hook)
"""
PLAN = f"{GUARDED}\nfrom drills.cli import main\nsys.argv = ['drill', *sys.argv[1:]]\nmain()\n"


def guarded(program: str, *words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "HOME": str(cwd)}
    argv = [sys.executable, "-c", program, *words]
    return subprocess.run(argv, cwd=cwd, env=env, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("name", [path.stem for path in SHIPPED])
def test_planning_touches_nothing(name: str, tmp_path: Path) -> None:
    done = guarded(PLAN, "plan", name, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert all(line.startswith("plan: ") for line in done.stdout.splitlines())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "deed",
    [
        "open('x', 'w')",
        "os.mkdir('x')",
        "import subprocess; subprocess.run(['true'])",
        "import socket; socket.create_connection(('127.0.0.1', 9))",
    ],
)
def test_touching_something_would_be_noticed(deed: str, tmp_path: Path) -> None:
    done = guarded(f"{GUARDED}\n{deed}", cwd=tmp_path)
    assert (done.returncode, "HARM" in done.stderr) == (99, True)


# ---- the wheel -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built without a network."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-q",
        "--no-deps",
        "--no-build-isolation",
        "--no-index",
        "-w",
        str(folder),
        str(ROOT),
    ]
    env = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    done = subprocess.run(build, env=env, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr
    [made] = folder.glob("drills-*.whl")
    return made


def test_everything_travels_in_the_wheel(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        inside = set(archive.namelist())
    for folder in ("experiments", "playbooks"):
        expected = {f"drills/data/{folder}/{path.name}" for path in (ROOT / folder).iterdir()}
        assert expected
        assert expected <= inside
    source = [path for path in (ROOT / "drills").rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    assert {str(path.relative_to(ROOT)) for path in source} <= inside
    assert "drills/data/alerts/vllm.rules.yml" in inside
    outside = {name.split("/")[0] for name in inside} - {"drills"}
    assert all(name.endswith(".dist-info") for name in outside), outside


def test_an_installed_drill_finds_what_it_brings(wheel: Path, tmp_path: Path) -> None:
    """From a folder with nothing in it, and with the checkout off the path."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "installed")
    (tmp_path / "empty").mkdir()
    env = {**os.environ, "PYTHONPATH": str(tmp_path / "installed")}

    def python(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, *words],
            cwd=tmp_path / "empty", env=env, capture_output=True, text=True, timeout=60, check=True,
        )  # fmt: skip
        return done.stdout

    assert python("-c", "import drills; print(drills.__file__)").startswith(str(tmp_path))
    listed = python("-m", "drills.cli", "list").splitlines()
    assert [line.split()[0] for line in listed] == sorted(path.stem for path in SHIPPED)
    assert "A replica loses its GPU" in python("-m", "drills.cli", "plan", "gpu-reset")
