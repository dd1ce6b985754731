"""`drill schedule` and `drill reports`: drills once a month, unattended, and what they wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from drills.cli_options import RUNS, Confirm, OnCall, Reports, Target, Targets, say, warn

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Drills once a month, unattended.")
reports_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="The reports of unattended drills.")


@app.command("render")
def schedule_render(
    names: Annotated[
        list[str] | None, typer.Argument(help="Experiments in place of the suite, by name or file, in order.")
    ] = None,
    target: Target = None,
    targets: Targets = None,
    schedule: Annotated[str, typer.Option("--schedule", help="When: five fields, as cron has them.")] = "0 10 1 * *",
    time_zone: Annotated[str, typer.Option("--time-zone", help="Where that time is meant.")] = "UTC",
    image: Annotated[str | None, typer.Option("--image", help="Image of the drills (default: the helper's).")] = None,
    namespace: Annotated[str, typer.Option("--namespace", help="Namespace of the CronJob.")] = "drills",
    systemd: Annotated[bool, typer.Option("--systemd", help="A timer and a service for a host instead.")] = False,
    out: Annotated[Path | None, typer.Option("--out", help="Folder to write the files to (default: print).")] = None,
    confirm: Confirm = "",
    oncall: OnCall = "",
) -> int:
    """Render what runs `drill monthly` each month.

    A CronJob with all it needs, to be applied; or with --systemd a timer and a service.
    """
    from drills import schedule as scheduling
    from drills.options import Options

    where = scheduling.Where(schedule, time_zone, image, namespace, systemd)
    options = Options(target, targets, confirm=confirm, oncall=oncall)
    scheduling.render(names or [], options, where, out, say, warn)
    return 0


@reports_app.command("fetch")
def reports_fetch(
    target: Target = None,
    targets: Targets = None,
    reports: Reports = RUNS,
    namespace: Annotated[str, typer.Option("--namespace", help="Namespace of the CronJob.")] = "drills",
) -> int:
    """Bring the reports of a target's CronJob home. What is here already stays as it is."""
    from drills.cluster import fetch
    from drills.options import Options

    fetch.fetch(Options(target, targets, reports=reports), namespace, say)
    return 0
