"""The driver's side of the load, without a load."""

from __future__ import annotations

import subprocess
import sys


def test_the_driver_never_imports_locust() -> None:
    code = "import drills.load.process, sys; print(sorted({'locust', 'gevent', 'requests'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout == "[]\n"
