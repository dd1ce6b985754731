"""What the command line of a run says; every kind of target takes from it what is its own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from drills.errors import UsageError

#: The largest seed: what every reader of a plan.json takes for a whole number.
SEED_MAX = 2**63 - 1


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
    confirm: str = ""  # the target's own name, where it is production
    oncall: str = ""  # who is on call there, and knows

    def __post_init__(self) -> None:
        """Refuse a seed that is none."""
        if self.seed is not None and not 0 <= self.seed <= SEED_MAX:
            raise UsageError(f"--seed {self.seed}: a whole number from 0 to {SEED_MAX} is expected")

    def for_the_lab(self) -> list[str]:
        """Return the options that are given and mean something for the lab only."""
        given = {
            "--defect": self.defect,
            "--port-base": self.port_base,
            "--startup": self.startup_s,
            "--engine": self.engine,
        }
        return [name for name, value in given.items() if value is not None]
