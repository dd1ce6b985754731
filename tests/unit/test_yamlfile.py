"""Whatever lies in a file, the answer is data with line numbers or one FileProblem."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from drills import yamlfile
from drills.errors import EXIT_USAGE, FileProblem

PATH = Path("f.yaml")


def problem(text: str) -> FileProblem:
    with pytest.raises(FileProblem) as caught:
        yamlfile.parse(PATH, text)
    assert caught.value.exit_code == EXIT_USAGE
    assert str(caught.value).isprintable()
    return caught.value


def test_values_are_plain_and_every_key_has_its_line() -> None:
    document = yamlfile.parse(PATH, "a: 1\nb:\n  - x: 30s\n    y: true\n  - 1.5\nc: 2026-12-24\nd:\n")
    assert document.data == {"a": 1, "b": [{"x": "30s", "y": True}, 1.5], "c": "2026-12-24", "d": None}
    assert type(document.data["b"][1]) is float
    assert [document.line(k) for k in [("a",), ("b",), ("b", 0, "x"), ("b", 0, "y"), ("b", 1), ("c",), ("d",)]] == [
        1,
        2,
        3,
        4,
        5,
        6,
        7,
    ]


def test_a_key_that_is_not_there_has_the_line_of_the_one_above() -> None:
    document = yamlfile.parse(PATH, "a: 1\nb:\n  c: 2\n")
    assert document.line(("b", "missing", "deeper")) == 2
    assert document.line(("nowhere",)) == 1


def test_a_key_path_reads_as_people_write_it() -> None:
    assert yamlfile.dotted(("checks", 0, "failover", "within")) == "checks[0].failover.within"
    assert yamlfile.dotted(("a", "line\nbreak")) == "a.'line\\nbreak'"


def test_yaml_1_2_keeps_yes_and_no_as_text() -> None:
    assert yamlfile.parse(PATH, "a: no\nb: on\n").data == {"a": "no", "b": "on"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: 2\na: 3\n", "f.yaml:3: a: is there twice; remove one"),
        ("x:\n  a: 1\n  a: 3\n", "f.yaml:3: a: is there twice; remove one"),
        ("a: [1,\n", "f.yaml:2: is not YAML: expected the node content, but found '<stream end>'"),
        ("a: 1\n\tb: 2\n", "f.yaml:2: a tab stands where YAML takes spaces only; replace it"),
        ("a:\n  - b\n \t- c\n", "f.yaml:3: a tab stands where"),
        ("a:\n  b:\tc: d\n", "f.yaml:2: a tab stands where"),
        ("a: 'b\tc'\nd: [\n", "f.yaml:3: is not YAML: "),
        ("a: 'x\n", "f.yaml:2: is not YAML: "),
        ("a: b: c\n", "f.yaml:1: is not YAML: mapping values are not allowed here"),
        ("a: 1\n---\nb: 2\n", "f.yaml:2: is not YAML: but found another document"),
        ("a: 1\nb: *some\n", "f.yaml:2: is not YAML: found undefined alias …"),
        ("a: 1\nb: 2026-13-45\n", "f.yaml:2: is not YAML: this value cannot be read"),
        ("a: \x07\n", "f.yaml:1: character #x0007 is not allowed in YAML"),
        ("a: 1\n2: x\n", "f.yaml:2: holds the key '2', which is not text; put it in quotes"),
        ("b:\n  1: x\n", "f.yaml:2: b: holds the key '1', which is not text; put it in quotes"),
        ("a: !thing x\n", "f.yaml:1: a: carries a tag (!…); write a plain value"),
        ("a: !!set {x}\n", "f.yaml:1: a: is neither map, list, text nor number; write a plain value"),
        ('a: "\\ud800"\n', "f.yaml:1: a: holds half a character (a lone surrogate)"),
        (f"a: 0x{'f' * 40}\n", "f.yaml:1: a: is too large a number"),
        ("- a\n", "f.yaml:1: holds a list where a map (`key: value` lines) is expected"),
        ("hello\n", "f.yaml:1: holds text where a map (`key: value` lines) is expected"),
        ("# only a comment\n", "f.yaml:1: is empty"),
        ("a: " + "[" * 5000, "f.yaml: is nested too deep"),
        ("a: " + "[" * 60 + "]" * 60, "f.yaml:1: is too large or nested too deep once its aliases are followed"),
    ],
)
def test_refuses(text: str, message: str) -> None:
    assert str(problem(text)).startswith(message)


def test_a_bomb_of_aliases_is_refused() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 9)]
    assert "is too large or nested too deep" in str(problem("\n".join(lines)))


@pytest.mark.parametrize(
    "text", ["a: *sk-canary\n", "a: 1\na: sk-canary\n", "a: !sk!canary x\n", "a: [sk-canary\n", "a: sk-canary: b\n"]
)
def test_what_cannot_be_parsed_is_not_repeated(text: str) -> None:
    assert "canary" not in str(problem(text))


# ---- files ------------------------------------------------------------------------------------------


def read_problem(path: Path) -> str:
    with pytest.raises(FileProblem) as caught:
        yamlfile.read(path)
    return str(caught.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    assert read_problem(path) == f"{path}: is not there; check the name and the folder"


def test_a_folder(tmp_path: Path) -> None:
    assert read_problem(tmp_path) == f"{tmp_path}: is a folder; name a YAML file in it"


def test_an_empty_file(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text("\n \n")
    assert read_problem(path) == f"{path}:1: is empty"


def test_a_file_that_is_not_utf8_names_the_line(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_bytes(b"a: 1\nb: caf\xe9\n")
    assert read_problem(path) == f"{path}:2: byte 0xe9 is not UTF-8; save the file as UTF-8"


def test_a_byte_order_mark_is_no_problem(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_bytes(b"\xef\xbb\xbfa: 1\n")
    assert yamlfile.read(path).data == {"a": 1}


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    assert read_problem(path) == f"{path}: is not a regular file"


def test_a_huge_file_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    with path.open("wb") as file:
        file.truncate(yamlfile.SIZE_MAX + 1)
    assert "is larger than 1024 KiB" in read_problem(path)


@pytest.mark.parametrize("name", ["a\0b", "x" * 5000])
def test_a_name_that_is_none(name: str) -> None:
    assert read_problem(Path(name))


YAMLISH = st.text(alphabet="ab01 \n\t:-[]{}#&*!|>'\"%@`?,.<~\x00é", max_size=60)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=150)
@given(content=st.one_of(st.binary(max_size=80), YAMLISH.map(str.encode), st.text(max_size=60).map(str.encode)))
@example(content=b"? ")
@example(content=b"a: !!python/object:os.system x")
@example(content=b"a: &a [*a]")
@example(content=b"<<: 1")
@example(content=b"%YAML 9.9\n---\na: 1")
@example(content=b"a: !!float x")
@example(content=b"a: !!binary \xc3\xa9")
@example(content=b"a: 0x_")
@example(content=b"a: 1e400")
def test_any_bytes_are_a_document_or_a_problem(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "any.yaml"
    path.write_bytes(content)
    found: object = None
    try:
        found = yamlfile.read(path).data
    except FileProblem as exc:
        found = str(exc)
    assert isinstance(found, dict) or (isinstance(found, str) and found.isprintable())
