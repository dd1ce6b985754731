"""Names of systemd's units. Pure."""

from __future__ import annotations

import re
from typing import Final

SERVICE: Final = ".service"
#: What the name of a unit may end in. A dot alone ends nothing: systemd takes `vllm@qwen2.5` for a service.
SUFFIXES: Final = (
    SERVICE, ".socket", ".device", ".mount", ".automount", ".swap", ".target", ".path", ".timer", ".slice", ".scope",
)  # fmt: skip
_NAME: Final = re.compile(r"[A-Za-z0-9:_.\\@][A-Za-z0-9:_.\\@-]*")


def whole(unit: str) -> str:
    """Return a unit's whole name: a service may be named without its suffix."""
    return unit if unit.endswith(SUFFIXES) else f"{unit}{SERVICE}"


def is_unit(name: str) -> bool:
    """Whether a unit may be named so, with or without its suffix; a pattern names none."""
    return bool(_NAME.fullmatch(name))


def is_service(name: str) -> bool:
    """Whether it is the name of a service, with or without its suffix."""
    return is_unit(name) and whole(name).endswith(SERVICE)
