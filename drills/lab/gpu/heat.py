"""Make a stand-in GPU say another temperature: `python -m drills.lab.gpu.heat STATE GPU CELSIUS`.

STATE is the state file, GPU a UUID or an index. Nothing gets warm, and no clock event reason is set.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from drills.lab.gpu import state


def main(argv: Sequence[str] | None = None) -> int:
    """Set the temperature; status 1 with a sentence on stderr when there is no such GPU or state."""
    parser = argparse.ArgumentParser(prog="drills.lab.gpu.heat", description="make a stand-in GPU say a temperature")
    parser.add_argument("state", type=Path)
    parser.add_argument("gpu", help="UUID or index")
    parser.add_argument("celsius", type=int)
    asked = parser.parse_args(argv)
    try:
        with state.changed(asked.state) as found:
            gpus = [g for g in found["gpus"] if asked.gpu in (g["uuid"], str(g["index"]))]
            for gpu in gpus:
                gpu["temperature_c"] = asked.celsius
    except (OSError, ValueError) as error:
        print(f"{asked.state}: {error.__class__.__name__}: is that the state file of a lab?", file=sys.stderr)
        return 1
    if not gpus:
        print(f"{asked.state}: no GPU {asked.gpu}; name a UUID or an index of nvidia-smi -L", file=sys.stderr)
    return 0 if gpus else 1


if __name__ == "__main__":
    sys.exit(main())
