"""The error of machines that the tests make."""

from __future__ import annotations


class MachineError(Exception):
    """What keeps machines of the tests from being built, started or ended: one line, with what to do."""
