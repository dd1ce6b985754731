"""What the command line of a run says; every kind of target takes from it what is its own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Options:
    """What the command line says. `defect`, `port_base`, `startup_s` and `engine` are for the lab."""

    target: str | None = None
    targets_file: Path | None = None
    seed: int | None = None
    defect: str | None = None
    reports: Path = Path("reports")
    port_base: int | None = None
    startup_s: float | None = None
    plain: bool = False
    engine: str | None = None

    def for_the_lab(self) -> list[str]:
        """Return the options that are given and mean something for the lab only."""
        given = {
            "--defect": self.defect,
            "--port-base": self.port_base,
            "--startup": self.startup_s,
            "--engine": self.engine,
        }
        return [name for name, value in given.items() if value is not None]
