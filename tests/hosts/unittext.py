"""The text of a unit and of its command line."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence

from tests.hosts.layout import TREE


def _command(words: Sequence[str]) -> str:
    """Return words as a command line of a unit, which expands neither variables nor specifiers in them."""
    return shlex.join(words).replace("%", "%%").replace("$", "$$")


def python(module: str, *words: str) -> list[str]:
    """Return the words that run a module under this Python."""
    return [sys.executable, "-m", module, *words]


def service(
    what: str,
    start: Sequence[str],
    *,
    kind: str = "exec",
    after: str = "network.target",
    before: str = "",
    folder: str = "/",
) -> str:
    """Return the text of a unit that runs these words; what is no one-time job is started again, whatever its end."""
    again = "RemainAfterExit=yes" if kind == "oneshot" else "Restart=always\nRestartSec=1"
    return f"""[Unit]
Description={what}
After={after}
Before={before}
StartLimitIntervalSec=0

[Service]
Type={kind}
ExecStart={_command(start)}
{again}
WorkingDirectory={folder}
Environment=PYTHONPATH={TREE}
StandardOutput=append:/var/log/%p.log
StandardError=append:/var/log/%p.log

[Install]
WantedBy=multi-user.target
"""
