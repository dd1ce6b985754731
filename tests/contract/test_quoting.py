"""Words that go through a shell come out as they were: ten thousand random commands, against real shells."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from collections.abc import Sequence

import pytest

from drills.access.quoting import command_line
from drills.errors import Refused

COMMANDS = 10_000
#: What shells make something of, and what they must not: whole words, and pieces of words.
PIECES = (
    " ", "  ", "\t", "\n", "\r", "'", '"', "'\"'\"'", "\\", "\\\\", "\\'", "$", "$(id)", "${HOME}", "$HOME", "`id`",
    ";", "&", "|", "&&", "||", "<", ">", "(", ")", "{", "}", "{a,b}", "[", "]", "*", "?", "!", "!!", "#", "~", "~root",
    "=", "A=b", "%", "%s", "-", "--", "-n", "if", "then", "time", "[[", ":", "^", "ü", "日本語", "🙂", "\u202e", "\xa0",
    "\x01", "\x7f", "\x1b[31m", "e\u0301", "\udcff", "\udc80x", "a", "word", "0", "/etc/passwd", "..", "\\n",
    "$'\\n'", "\\\n", "END",
)  # fmt: skip
SHELLS = [shell for shell in ("sh", "dash", "bash", "busybox", "zsh", "ksh", "mksh") if shutil.which(shell)]


def words(random_: random.Random) -> list[str]:
    """Return the words of one command; some are empty, and some commands have none."""
    return ["".join(random_.choices(PIECES, k=random_.randrange(6))) for _ in range(random_.randrange(8))]


def told(commands: Sequence[Sequence[str]]) -> bytes:
    """Return what is to come out: each command's number of words, then the words, each ended by a NUL."""
    return b"".join(os.fsencode("\0".join([str(len(one)), *one]) + "\0") for one in commands)


def script(commands: Sequence[Sequence[str]]) -> bytes:
    """Return a line for each command. Each says its own words, by the shell's own printf: no process for each."""
    lines = [command_line(["printf", "%s\\0", str(len(one)), *one]) for one in commands]
    return os.fsencode("\n".join(lines) + "\n")


@pytest.mark.parametrize("shell", SHELLS)
def test_ten_thousand_commands_are_read_as_they_were_meant(shell: str) -> None:
    seed = int(os.environ.get("SEED") or random.randrange(2**32))
    random_ = random.Random(seed)
    commands = [words(random_) for _ in range(COMMANDS)]
    argv = [shell, "sh"] if shell == "busybox" else [shell]
    done = subprocess.run(argv, input=script(commands), capture_output=True, timeout=120, check=False)
    if done.stdout != told(commands) or done.stderr or done.returncode:
        wrong = next((one for one in commands if not survives(argv, one)), None)
        pytest.fail(f"SEED={seed}: {wrong!r}: {done.stderr[:200]!r}")


def survives(argv: Sequence[str], one: Sequence[str]) -> bool:
    done = subprocess.run(argv, input=script([one]), capture_output=True, timeout=20, check=False)
    return done.stdout == told([one])


def test_the_first_word_is_a_command_whatever_it_looks_like() -> None:
    """Unquoted these would be an assignment, a reserved word, a way home and a comment."""
    for word in ("A=b", "if", "~", "#", "then", "!", "{"):
        done = subprocess.run(
            ["sh", "-c", command_line([word])], capture_output=True, text=True, check=False, timeout=10
        )
        assert done.returncode == 127, word
        assert "not found" in done.stderr


def test_a_nul_is_refused() -> None:
    with pytest.raises(Refused, match=r"^a word of the command 'printf' holds a NUL, which no command can be given$"):
        command_line(["printf", "a\0b"])
