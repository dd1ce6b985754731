"""What systemd starts again by itself: by `Restart=`, and by how the unit ended (systemd.service, table 2). Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

#: How a unit may end, and which policies start it again after that.
STATUS_0: Final = ("always", "on-success")
SIGNAL: Final = ("always", "on-failure", "on-abnormal", "on-abort")
TIMEOUT: Final = ("always", "on-failure", "on-abnormal")
#: What is done to a server, and how its unit ends by that: in words, and by which policies it comes back.
ENDS: Final[Mapping[str, tuple[tuple[str, tuple[str, ...]], ...]]] = {
    "kill": (("a server that is killed ends by a signal", SIGNAL),),
    "engine": (("a server whose engine dies ends with status 0", STATUS_0),),
    "crash": (  # of its engine, with its start held at a gate
        ("a server whose engine dies ends with status 0", STATUS_0),
        ("a start that waits at a gate may run out of time", TIMEOUT),
    ),
}


def stays_down(policy: str, deed: str) -> str:
    """Return how a server ends by that deed after which this policy leaves it down; empty where it is started again."""
    return next((words for words, again in ENDS[deed] if policy not in again), "")
