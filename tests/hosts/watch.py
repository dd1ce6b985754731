"""Takes the test hosts down once nobody uses them and nobody asked to keep them: `python -m tests.hosts.watch LIFE`.

Whoever uses them holds a shared lock, which the kernel lets go of when its process ends, however that is.
"""

from __future__ import annotations

import os
import sys
import time

from tests.hosts import life

POLL_S = 0.5


def main() -> None:
    """Leave for the background; look again and again; end with this life of the hosts, as another has its own watch."""
    if os.fork():
        return
    os.setsid()
    while life.current() in (None, sys.argv[1]) and not life.down_unused():
        time.sleep(POLL_S)


if __name__ == "__main__":
    main()
