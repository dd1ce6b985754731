"""A signal before anything is at stake is a stop, whatever a library in whose middle it came makes of it."""

from __future__ import annotations

import os
import signal

import pytest

from drills import signals
from drills.errors import Stopped


def wrapping() -> None:
    """Do as a library that takes every exception for an error in what it was given."""
    try:
        os.kill(os.getpid(), signal.SIGTERM)
    except Stopped as error:
        raise ValueError(f"cannot build the model: {error}") from None


def test_an_error_that_a_library_makes_of_a_signal_is_the_stop() -> None:
    with pytest.raises(Stopped, match="SIGTERM: stopped in time"), signals.interrupting("in time"):
        wrapping()


def test_an_error_without_a_signal_stays_one() -> None:
    with pytest.raises(ValueError, match="bug"), signals.interrupting("in time"):
        raise ValueError("bug")
