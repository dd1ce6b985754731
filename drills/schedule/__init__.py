"""Drills once a month with nobody there: what a cluster or a host needs for it, rendered, never hand-copied."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from drills.options import Options


@dataclass(frozen=True)
class Where:
    """When and where the drills run: a cron expression in a time zone; in a cluster, or on a host with systemd."""

    schedule: str
    zone: str
    image: str | None = None
    namespace: str = "drills"
    systemd: bool = False


def render(
    names: Sequence[str],
    options: Options,
    where: Where,
    out: Path | None,
    say: Callable[[str], None],
    warn: Callable[[str], None],
) -> None:
    """Print the files, or write them into a folder. Raises UsageError, FileProblem or Refused; then nothing is written.

    `warn` is told what the drills will be refused for, though they can be rendered.
    """
    from drills import files
    from drills.schedule import manifests, units
    from drills.schedule.wanted import wanted, warnings

    what = wanted(names, options, schedule=where.schedule, zone=where.zone)
    if where.systemd:
        made = units.render(what)
    else:
        made = {f"{what.name}.yaml": manifests.render(what, image=where.image, namespace=where.namespace)}
    for warning in warnings(what):
        warn(warning)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
    for name, text in made.items():
        if out is not None:
            files.write(out / name, text.encode())
            say(str(out / name))
        else:
            for line in text.splitlines():
                say(line)
