"""What reaches a terminal: words of files, targets and command lines are shown, never obeyed."""

from __future__ import annotations

import contextlib
import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, TypeAdapter, ValidationError

from drills import cli, experiment, live, output, targetfile
from drills.checks import CHECKS
from drills.faults import FAULTS
from drills.model import Json
from drills.params import Line
from drills.validate import validate
from drills.yamlfile import Document

EVIL = "a\x1b[31m\nb\x9b2J\u202e\x07"


@given(st.text())
def test_whatever_is_said_is_one_line_that_can_be_shown(text: str) -> None:
    for said in (io.StringIO(), io.StringIO()):
        with contextlib.redirect_stdout(said):
            output.say(text)
            live.PlainView().say(text)
        assert all(line.isprintable() for line in said.getvalue().split("\n"))
        assert said.getvalue().count("\n") == 2


@given(st.text())
def test_what_can_be_shown_is_shown_as_it_is(text: str) -> None:
    shown = output.visible(text)
    assert output.visible(shown) == shown
    assert not text.isprintable() or shown == text


# ---- what people write -------------------------------------------------------------------------------


@given(st.text())
def test_a_line_can_be_shown_and_is_not_empty(text: str) -> None:
    try:
        assert TypeAdapter(Line).validate_python(text) == text
    except ValidationError:
        assert not text.isprintable() or not text.strip()
    else:
        assert text.isprintable()
        assert text.strip()


def models() -> Iterator[type[BaseModel]]:
    """Yield every model of what people write, with those inside of it."""
    tables: list[Any] = [*CHECKS.values(), *FAULTS.values()]
    todo = [experiment.ExperimentFile, targetfile.TargetsFile, *experiment.GUARDS.values(), *(t.Params for t in tables)]
    seen: set[type[BaseModel]] = set()
    while todo:
        model = todo.pop()
        if model not in seen:
            seen.add(model)
            yield model
            todo += [inner for field in model.model_fields.values() for inner in inside(field.annotation)]


def inside(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from inside(inner)


def free(annotation: Any) -> bool:
    """Whether any text at all may stand there: `str` without a validator of its own."""
    if annotation is str:
        return True
    args = get_args(annotation)
    return not hasattr(annotation, "__metadata__") and any(free(inner) for inner in args)


def test_no_parameter_takes_any_text_at_all() -> None:
    found = {
        f"{model.__name__}.{name}"
        for model in models()
        for name, field in model.model_fields.items()
        if free(field.annotation) and not field.metadata
    }
    as_a_whole = {
        "Secret.env",
        "Secret.file",
        "Params.how",
    }  # checked with what is beside them
    assert found - as_a_whole == set()


@pytest.mark.parametrize("text", [EVIL, "a\nb", "", "  ", "\x7f"])
@pytest.mark.parametrize("where", ["name", "labels"])
def test_a_name_of_an_alert_is_a_line(tmp_path: Path, text: str, where: str) -> None:
    params = {"name": "X", "within": "5s", where: text if where == "name" else {"a": text}}
    with pytest.raises(Exception, match=r"one line of text is expected|the text is empty"):
        validate(CHECKS["alert"].Params, params, Document(tmp_path / "x.yaml", params, {(): 1}))


# ---- commands ----------------------------------------------------------------------------------------


def drill(*words: str) -> tuple[int, str]:
    """Run a command in this process; returns its exit code and everything that it printed."""
    said = io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("argv", ["drill", *words]), ("stdout", said), ("stderr", said)):
            patch.setattr(sys, name, value)
        with pytest.raises(SystemExit) as ended:
            cli.main()
    return int(str(ended.value.code)), said.getvalue()


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["stop", EVIL], 64),
        (["recover", EVIL], 64),
        (["show", EVIL], 64),
        (["judge", EVIL], 64),
        (["plan", EVIL], 64),
        (["plan", f"{EVIL}.yaml"], 64),
        (["plan", f"./experiments/{EVIL}.yaml"], 64),
        (["run", EVIL, "--target", EVIL], 64),
        (["status", "--targets", EVIL], 64),
        ([EVIL], 64),
        (["plan", "noop", "--defect", EVIL], 64),
        (["plan", "noop", f"--{EVIL}"], 64),
        (["list"], 0),
        (["status"], 0),
    ],
)
def test_no_command_prints_what_steers_a_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], code: int
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DRILL_LAB_DIR", str(tmp_path / "lab"))
    receipt: Json = {"id": "x", "run": "x", "fault": EVIL, "target": "lab", "host": "", "victims": [{"name": EVIL}]}
    receipt |= {"prior": {}, "holds": [], "undo": [], "deadline_s": 1, "params": {}}
    (folder := tmp_path / "lab" / "drill" / "receipts").mkdir(parents=True)
    (folder / "x.json").write_text(json.dumps(receipt))
    (tmp_path / "experiments").mkdir()
    (tmp_path / "experiments" / f"{EVIL}.yaml").write_text(json.dumps({"drill": 1, "name": EVIL, "title": EVIL}))
    found, said = drill(*words)
    assert (found, "our bug" in said) == (code, False), said
    assert all(line.isprintable() for line in said.split("\n")), said
    assert "\\x1b[31m" in said
