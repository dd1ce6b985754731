"""Stands for what watches GPUs on a node: `python3 watcher.py FOLDER TITLE` holds every GPU open until SIGTERM."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

from setproctitle import setproctitle


def main() -> None:
    """Hold them."""
    signals = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    setproctitle(sys.argv[2])
    state = json.loads((Path(sys.argv[1]) / "state.json").read_text())
    held = [os.open(gpu["device"], os.O_RDONLY) for gpu in state["gpus"]]
    print(f"holding {len(held)}", flush=True)
    signal.sigwait(signals)


if __name__ == "__main__":
    main()
