"""Make the JSON Schemas in drills/data again, from the code. Run it from the repository: `python tools/schemas.py`."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from drills import schemas  # noqa: E402 - found by the line above


def main() -> None:
    """Write each schema."""
    for name in schemas.NAMES:
        (ROOT / "drills" / "data" / f"{name}.schema.json").write_bytes(schemas.made(name))


if __name__ == "__main__":
    main()
