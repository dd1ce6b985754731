"""`drill lab`: the embedded deployment, on its own."""

from __future__ import annotations

from typing import Annotated

import typer

from drills.cli_options import Defect, Engine, PortBase, Startup, say, seconds

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="The embedded deployment, on its own.")


@app.command("up")
def lab_up(defect: Defect = None, port_base: PortBase = None, startup: Startup = None, engine: Engine = None) -> int:
    """Start the lab and leave it up."""
    from drills import upkeep
    from drills.options import Options

    options = Options(defect=defect, port_base=port_base, startup_s=seconds(startup), engine=engine)
    upkeep.lab_up(options, say)
    return 0


@app.command("down")
def lab_down(force: Annotated[bool, typer.Option("--force", help="Also while a run drills it.")] = False) -> int:
    """Take the lab down."""
    from drills import upkeep

    say(upkeep.lab_down(force=force))
    return 0


@app.command("status")
def lab_status(
    as_sh: Annotated[bool, typer.Option("--sh", help="As variables of a shell, for the playbooks.")] = False,
) -> int:
    """Show the lab's replicas and addresses."""
    from drills import upkeep

    for line in upkeep.lab_variables() if as_sh else upkeep.lab_status():
        say(line)
    return 0
