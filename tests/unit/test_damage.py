"""Damaged, changed and missing files: one clear line or an inconclusive run, never a crash and never a pass."""

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from drills import evidence, present, verdict
from drills.errors import EXIT_USAGE, DrillError
from drills.model import Restored, Verdict
from drills.report import run as report
from tests.unit import runs
from tests.unit.runs import FAULT, HIT, START, Run

FILES = ("journal.jsonl", "requests.ndjson", "ledger.ndjson", "samples.ndjson", "plan.json", "verdict.json")
DEEP = b"[" * 100_000 + b"\n"


# ---- whatever is done to the files --------------------------------------------------------------------


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, bytes]]:
    """Return the files of a run that fails by far and of one that passes, thin enough to be judged in no time."""
    found = {}
    for name in ("fail", "pass"):
        run = runs.healthy(rate=6.0)
        run.plan["hash"] = evidence.plan_hash(run.plan)
        if name == "fail":
            run.fail(run.between(HIT, runs.END)[::2])
            run.recount()
        folder = run.write(tmp_path_factory.mktemp(name))
        verdict.write(folder)
        found[name] = {file: (folder / file).read_bytes() for file in FILES}
    return found


GARBAGE: list[Any] = [
    None, True, False, 0, -1, 3, 1.5, -1e9, 1e308, 10**30, "", "x", "\ud800", "\x1b[31m", "2026-13-45", [], [1], [None],
    [{}], {}, {"a": None}, {"name": 1}, float("nan"), float("inf"),
]  # fmt: skip


def places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the path of everything inside a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [at, *(place for key, inner in items for place in places(inner, (*at, key)))]


def changed(value: Any, rng: random.Random) -> Any:
    """Return the value with one thing in it replaced or taken away."""
    place = rng.choice(places(value))
    if not place:
        return rng.choice(GARBAGE)
    inner = value
    for key in place[:-1]:
        inner = inner[key]
    if rng.random() < 0.4:
        del inner[place[-1]]
    else:
        inner[place[-1]] = rng.choice(GARBAGE)
    return value


def damaged(name: str, content: bytes, rng: random.Random) -> bytes:
    """Return the file as something spoilt it."""
    way = rng.choice(("bytes", "cut", "hole", "value", "value", "value", "value", "line", "twice"))
    if way == "bytes":
        at = rng.randrange(len(content))
        return content[:at] + rng.randbytes(rng.randint(1, 40)) + content[at + rng.randint(0, 40) :]
    if way == "cut":
        return content[: rng.randrange(len(content))]
    if way == "hole":
        at = rng.randrange(len(content))
        return content[:at] + content[at + rng.randint(1, 4000) :]
    if name in ("plan.json", "verdict.json"):
        return json.dumps(changed(json.loads(content), rng)).encode()
    lines = content.splitlines(keepends=True)
    at = rng.randrange(len(lines))
    if way == "value":
        lines[at] = json.dumps(changed(json.loads(lines[at]), rng)).encode() + b"\n"
    elif way == "twice":
        lines.insert(at, lines[rng.randrange(len(lines))])
    else:
        lines[at] = rng.choice([b"null\n", b"[]\n", b"{}\n", b"5\n", b'"x"\n', b'{"values":"x"}\n', b"\n", b"\0\n", DEEP])
    return b"".join(lines)


def look(act: Callable[[], object]) -> str:
    """Return the one line of the error, empty without one; anything but a DrillError escapes."""
    try:
        act()
    except DrillError as error:
        assert error.exit_code == EXIT_USAGE, error
        assert str(error).strip()
        return str(error)
    return ""


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(kind=st.sampled_from(["fail", "pass"]), seed=st.integers(0, 2**32))
def test_no_damage_crashes_or_makes_a_pass(
    stored: dict[str, dict[str, bytes]], tmp_path_factory: pytest.TempPathFactory, kind: str, seed: int
) -> None:
    rng = random.Random(seed)
    home = tmp_path_factory.mktemp("home")
    folder = home / "reports" / "runs" / f"20261130T000000Z-pod-kill-{runs.RUN}"
    folder.mkdir(parents=True)
    for file, content in stored[kind].items():
        (folder / file).write_bytes(content)
    for name in rng.sample(FILES, rng.choice((1, 1, 2))):
        (folder / name).write_bytes(damaged(name, (folder / name).read_bytes(), rng))
    try:
        look(lambda: present.run(str(folder), home / "reports"))
        if seed % 4 == 0:  # figures take their time
            look(lambda: report.render(folder))
        error = look(lambda: verdict.write(folder))
        assert (folder / "verdict.json").is_file() == (not error)
        if not error and kind == "fail":
            assert json.loads((folder / "verdict.json").read_bytes())["verdict"] != "pass"
    finally:
        shutil.rmtree(home)
