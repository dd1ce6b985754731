"""Holds a network namespace of the lab open while what lives in it comes and goes, as a pod's pause process does.

`python -m drills.lab.sandbox NAME`: it was started in the namespace, and it ends with the lab.
"""

from __future__ import annotations

import signal
import sys

from setproctitle import setproctitle

if __name__ == "__main__":
    setproctitle(f"lab-sandbox {sys.argv[1]}")
    while True:
        signal.pause()
