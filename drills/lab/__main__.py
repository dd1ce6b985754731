"""`python -m drills.lab up|down|status`: the lab by itself."""

from __future__ import annotations

import argparse
import json
import sys

from drills.errors import DrillError
from drills.lab import defects, manage
from drills.lab.config import LabConfig


def main(argv: list[str] | None = None) -> int:
    """Run one command; errors are one line, and their exit code the process's."""
    parser = argparse.ArgumentParser(prog="python -m drills.lab", description=__doc__)
    parser.add_argument("command", choices=("up", "down", "status"))
    parser.add_argument("--port-base", type=int, default=LabConfig.port_base, help="first port (default: %(default)s)")
    parser.add_argument("--startup-s", type=float, default=LabConfig.startup_s, help="start-up time of a replica")
    parser.add_argument("--defect", choices=sorted(defects.DEFECTS), help="plant a defect")
    args = parser.parse_args(argv)
    try:
        if args.command == "up":
            settings = LabConfig(port_base=args.port_base, startup_s=args.startup_s)
            manage.up(defects.plant(args.defect, settings))
        elif args.command == "down":
            print("lab: down" if manage.down() else "lab: none was up")
        else:
            print(json.dumps(manage.status(), indent=2))
    except DrillError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
