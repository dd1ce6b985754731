"""`publish:` of a target: real commands, what is said of them, and what never is."""

from __future__ import annotations

import contextlib
import os
import select
import sys
from pathlib import Path

import pytest

from drills import publish, target
from drills.errors import EXIT_USAGE, FileProblem
from drills.targetfile import Publish

SECRET = "canary-7be1-token"


def how(*words: str, timeout_s: float = 20.0, env: dict[str, dict[str, str]] | None = None) -> Publish:
    return Publish.model_validate({"run": list(words), "timeout": timeout_s, "env": env or {}})


def script(code: str, *words: str, **more: object) -> Publish:
    return how(sys.executable, "-c", code, "{folder}", *words, **more)  # type: ignore[arg-type]


@pytest.fixture
def report(tmp_path: Path) -> Path:
    folder = tmp_path / "runs" / "20261101T020000Z-pod-kill-0a1b2c3d"
    folder.mkdir(parents=True)
    (folder / "postmortem.md").write_text("# It held\n")
    return folder


def test_the_command_is_given_the_folder_and_its_name(report: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    said = publish.publish(how("cp", "-r", "{folder}", f"{tmp_path}/out/copy-of-{{name}}"), report)
    assert said == f"published: {report.name}, by cp"
    assert (tmp_path / "out" / f"copy-of-{report.name}" / "postmortem.md").is_file()


def test_no_shell_reads_its_words(report: Path, tmp_path: Path) -> None:
    said = publish.publish(how("touch", f"{tmp_path}/$(id)", "{folder}"), report)
    assert said.startswith("published")
    assert (tmp_path / "$(id)").is_file()


def test_a_secret_is_given_to_the_command_and_to_nobody_else(report: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STORE", SECRET)
    code = "import os, sys; print('denied for', os.environ['TOKEN'], 'at https:/' + '/me:pw@store/x'); sys.exit(9)"
    said = publish.publish(script(code, env={"TOKEN": {"env": "STORE"}}), report)
    assert said.endswith("ended with 9: denied for *** at https://***@store/x")
    assert SECRET not in said


def test_a_secret_that_is_not_there_is_named(report: Path) -> None:
    said = publish.publish(script("pass", env={"TOKEN": {"env": "NO_SUCH_VARIABLE"}}), report)
    assert said == f"not published: {report.name}: secret: the environment variable NO_SUCH_VARIABLE is not set"


def test_that_it_fails_is_one_line_with_its_last_word(report: Path) -> None:
    said = publish.publish(script("print('a'); print('no such\\x1b[31m bucket'); print(); raise SystemExit(3)"), report)
    assert said.startswith(f"not published: {report.name}: ")
    assert said.isprintable()
    assert "ended with 3: no such" in said


def test_a_command_that_is_not_there_is_one_line(report: Path) -> None:
    said = publish.publish(how("/no/such/program", "{folder}"), report)
    assert said == f"not published: {report.name}: /no/such/program cannot be run: No such file or directory"


def test_it_has_a_deadline_and_ends_with_all_that_it_started(report: Path, tmp_path: Path) -> None:
    start = "import subprocess; p = subprocess.Popen(['sleep', '60'])"
    code = f"{start}; open('{tmp_path}/pid', 'w').write(str(p.pid)); p.wait()"
    said = publish.publish(script(code, timeout_s=1.0), report)
    assert said.endswith("did not end within 1 s and was ended")
    with contextlib.suppress(ProcessLookupError):
        started = os.pidfd_open(int((tmp_path / "pid").read_text()))
        assert select.select([started], [], [], 20)[0], "what it started lives on"
        os.close(started)


def test_a_signal_ends_it(report: Path) -> None:
    said = publish.publish(script("import time; time.sleep(60)", timeout_s=60.0), report, stopping=lambda: True)
    assert said.endswith("was ended, because a signal came")


# ---- in the file -----------------------------------------------------------------------------------------


def problem(tmp_path: Path, text: str) -> str:
    (tmp_path / "drill.yaml").write_text(f"targets:\n  lab:\n    kind: lab\n    publish: {text}\n")
    with pytest.raises(FileProblem) as caught:
        target.load_targets(tmp_path / "drill.yaml")
    assert caught.value.exit_code == EXIT_USAGE
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{run: [git, push]}", "says nowhere {folder}"),
        ("{run: []}", "publish.run"),
        ("{run: [cp, '{folder}'], timeout: 5}", "timeout"),
        ("{run: 'cp {folder} /out'}", "a list"),
        ("{run: [cp, '{folder}'], env: {'A=B': {env: X}}}", "A=B"),
        ("{run: [cp, '{folder}'], shell: true}", "unknown key"),
    ],
)
def test_what_is_wrong_in_the_file_is_one_sentence(tmp_path: Path, text: str, says: str) -> None:
    assert says in problem(tmp_path, text)


@pytest.mark.parametrize(
    "text",
    [
        f"{{run: [push, '{{folder}}', 'https://me:{SECRET}@store/x']}}",
        f"{{run: [cp, '{{folder}}'], env: {{TOKEN: {SECRET}}}}}",
        f"{{run: [cp, '{{folder}}'], env: {{TOKEN: {{env: X, file: {SECRET}}}}}}}",
    ],
)
def test_a_secret_in_the_file_is_refused_and_not_repeated(tmp_path: Path, text: str) -> None:
    assert SECRET not in problem(tmp_path, text)
