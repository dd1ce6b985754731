"""What others' exceptions say, in one line."""

from __future__ import annotations

import pytest

from drills.errors import first_line


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (EOFError(), "EOFError"),
        (ValueError("\n \n"), "ValueError"),
        (ConnectionResetError(104, "Connection reset by peer"), "Connection reset by peer"),
        (OSError("no such place"), "no such place"),
        (RuntimeError("\nfirst\nsecond"), "first"),
    ],
)
def test_one_that_says_nothing_is_called_by_its_name(error: Exception, said: str) -> None:
    assert first_line(error) == said
