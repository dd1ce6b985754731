"""The command `drill`: parse, call one function, print, exit code. Heavy imports wait until they are needed."""

from __future__ import annotations

import sys
import tempfile
import traceback
from typing import Annotated, Any

import typer

from drills import __version__, cli_actions, cli_lab, cli_schedule, errors, output, signals
from drills.cli_options import (
    RUNS,
    Confirm,
    Defect,
    Engine,
    JsonLines,
    Junit,
    OnCall,
    PortBase,
    Reports,
    Seed,
    Startup,
    Target,
    Targets,
    say,
    seconds,
    warn,
)

EXIT_CODES = """Exit codes: 0 pass · 1 fail · 2 inconclusive · 3 refused before anything was touched · 4 stopped by a
guard or a signal, put back · 5 NOT restored (outranks all) · 64 bad command line or file · 70 our bug.
With several drills the worst wins: 5, 70, 4, 3, 1, 2, 0."""

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    help="Fault drills for LLM inference: break a vLLM deployment on purpose, under load, and answer with evidence.",
    epilog=EXIT_CODES,
)
app.add_typer(cli_actions.app, name="actions")
app.add_typer(cli_lab.app, name="lab")
app.add_typer(cli_schedule.app, name="schedule")
app.add_typer(cli_schedule.reports_app, name="reports")


@app.command()
def run(
    names: Annotated[list[str], typer.Argument(help="Experiments, by name or file, in order; monthly: the suite.")],
    target: Target = None,
    targets: Targets = None,
    seed: Seed = None,
    defect: Defect = None,
    reports: Reports = RUNS,
    port_base: PortBase = None,
    startup: Startup = None,
    engine: Engine = None,
    plain: Annotated[bool, typer.Option("--plain", help="Plain lines, also on a terminal.")] = False,
    confirm: Confirm = "",
    oncall: OnCall = "",
    junit: Junit = None,
    as_json: JsonLines = False,
) -> int:
    """Run drills: load, fault, revert, verdict, postmortem."""
    from drills import suite
    from drills.machines import Machines
    from drills.options import Options

    options = Options(
        target, targets, seed, defect, reports, port_base, seconds(startup), plain, engine, confirm, oncall
    )
    with Machines(junit, as_json, suite.expanded(names)) as machines:
        return suite.run(names, options, say, machines.told)


@app.command()
def monthly(
    names: Annotated[
        list[str] | None, typer.Argument(help="Experiments in place of the suite, by name or file, in order.")
    ] = None,
    target: Target = None,
    targets: Targets = None,
    reports: Reports = RUNS,
    confirm: Confirm = "",
    oncall: OnCall = "",
    junit: Junit = None,
    as_json: JsonLines = False,
) -> int:
    """Run the month's drills, unattended, and keep its review.

    First it puts back what runs that are gone left on the target; then come upstream-delay, packet-loss, pod-kill and
    gpu-reset.
    """
    from drills import suite
    from drills.machines import Machines
    from drills.options import Options

    options = Options(target, targets, reports=reports, plain=True, confirm=confirm, oncall=oncall)
    with Machines(junit, as_json, suite.expanded(names or [suite.MONTHLY])) as machines:
        return suite.monthly(names or [], options, say, machines.told)


@app.command()
def plan(
    name: Annotated[str, typer.Argument(help="Experiment, by name or file; monthly: the suite.")],
    target: Target = None,
    targets: Targets = None,
    seed: Seed = None,
    defect: Defect = None,
    as_json: Annotated[bool, typer.Option("--json", help="The resolved plan as JSON; of a suite one a line.")] = False,
) -> int:
    """Say what a run would do. Touches nothing, not even the network."""
    import json

    from drills import session, suite
    from drills.options import Options

    options = Options(target, targets, seed, defect)
    spec = session.target_spec(options)
    names = suite.expanded([name])
    for one in names:
        made = session.make_plan(session.experiment(one), spec, options, run="plan", seed=seed or 0)
        if as_json:
            for line in json.dumps(made.to_json(), indent=2 if names == [name] else None, sort_keys=True).splitlines():
                say(line)
        for line in () if as_json else made.steps:
            say(f"plan: {line}")
    return 0


@app.command("list")
def list_(as_json: Annotated[bool, typer.Option("--json", help="As one JSON object.")] = False) -> int:
    """List the experiments that can be run here."""
    import json

    from drills.experiment import list_experiments

    found = list_experiments()
    if as_json:
        listed = [{"name": one.name, "title": one.title, "problem": one.problem} for one in found]
        for line in json.dumps({"experiments": listed}, indent=2).splitlines():
            say(line)
    for one in found if not as_json else ():
        say(f"{one.name:24} {one.title if one.problem is None else 'cannot be used: ' + one.problem}")
    return 0


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="A run (id, folder or 'latest').")] = "latest",
    reports: Reports = RUNS,
    schema: Annotated[
        str | None, typer.Option("--schema", help="A JSON Schema instead: of verdict.json or postmortem.json.")
    ] = None,
) -> int:
    """Show how a run ended, or the schema of its files."""
    from drills import present, schemas

    if schema is not None:
        for line in schemas.shipped(schema).splitlines():
            say(line)
        return 0
    for line in present.run(name, reports):
        say(line)
    return 0


@app.command()
def status(
    target: Target = None,
    targets: Targets = None,
    reports: Reports = RUNS,
    as_json: Annotated[bool, typer.Option("--json", help="As one JSON object.")] = False,
) -> int:
    """Say what is up, who drills, and what is still to be put back."""
    import json

    from drills import upkeep

    found = upkeep.state(target, targets, reports)
    for line in json.dumps(found.to_json(), indent=2).splitlines() if as_json else found.lines():
        say(line)
    return 0


@app.command()
def doctor(
    target: Target = None,
    targets: Targets = None,
    experiments: Annotated[
        str,
        typer.Option("--experiments", help="Drills to look for, by name or file, comma-separated; monthly: the suite."),
    ] = "monthly",
    as_json: Annotated[bool, typer.Option("--json", help="As one JSON object.")] = False,
) -> int:
    """Say what the drills lack at a target, and what mends that.

    It only reads. Exit codes: 0 all is well; 2 the drills would be carried out, and some checks stay undecided; 3 a
    drill would be refused; 64 bad command line or file, or no kubeconfig.
    """
    import json

    from drills import doctor as doctors
    from drills.options import Options

    names = [name.strip() for name in experiments.split(",") if name.strip()]
    if not names:
        raise errors.UsageError("--experiments: names no drill")
    found = doctors.diagnose(names, Options(target, targets))
    for line in json.dumps(found.to_json(), indent=2).splitlines() if as_json else found.lines():
        say(line)
    return found.exit_code


@app.command()
def recover(
    run_id: Annotated[str | None, typer.Argument(metavar="[RUN]", help="One run (default: all).")] = None,
    target: Target = None,
    targets: Targets = None,
    reports: Reports = RUNS,
) -> int:
    """Put back what a run that was cut short left behind. May be repeated.

    Exit codes: 0 put back, or nothing to put back; 3 a run is alive, or the target cannot be reached; 5 NOT put back,
    with the commands to type; 64 bad command line or file, or no kubeconfig.
    """
    from drills import upkeep

    return upkeep.recover(run_id, target, targets, reports, say)


@app.command()
def stop(
    run_id: Annotated[str, typer.Argument(metavar="RUN", help="Id of the run.")],
    target: Target = None,
    targets: Targets = None,
) -> int:
    """Ask a run to stop and to put everything back.

    Also from another machine, where the target is a cluster.
    """
    from drills import upkeep

    say(upkeep.stop(run_id, target, targets))
    return 0


@app.command()
def judge(
    name: Annotated[str, typer.Argument(metavar="RUN", help="Id, folder or 'latest'.")] = "latest",
    reports: Reports = RUNS,
    junit: Junit = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="verdict.json, and nothing else, on standard output.")
    ] = False,
) -> int:
    """Judge a stored run again: offline, from its files alone.

    Exit code: that of the verdict; 5 when it was not put back, with what is to be done about that.
    """
    from drills import upkeep
    from drills.machines import Machines

    folder = upkeep.complete(name, reports)
    with Machines(junit, False, [name]) as machines:
        code = upkeep.judged(folder, warn if as_json else say)
        machines.ended(name, code, folder)
    for line in (folder / "verdict.json").read_text().splitlines() if as_json else ():
        say(line)
    return code


@app.command()
def compare(
    first: Annotated[str, typer.Argument(metavar="RUN", help="Id, folder or 'latest'.")],
    second: Annotated[str, typer.Argument(metavar="RUN", help="The run to hold beside it.")],
    reports: Reports = RUNS,
    as_json: Annotated[bool, typer.Option("--json", help="As one JSON object.")] = False,
) -> int:
    """Say what differs between two runs, and whether chance explains it."""
    import json

    from drills import compare as comparing
    from drills import runfolder

    a, b = (runfolder.find_run(name, reports / "runs") for name in (first, second))
    found = comparing.compare(a, b)
    for line in json.dumps(found.to_json(), indent=2, sort_keys=True).splitlines() if as_json else found.lines():
        say(line)
    return 0


@app.command()
def report(
    name: Annotated[str, typer.Argument(metavar="RUN", help="Id, folder or 'latest'.")] = "latest",
    reports: Reports = RUNS,
    month: Annotated[str | None, typer.Option("--month", help="The review of a month instead: 2026-11.")] = None,
    quarter: Annotated[str | None, typer.Option("--quarter", help="The review of a quarter: 2026Q4.")] = None,
    target: Annotated[str | None, typer.Option("--target", help="In a review: this target alone.")] = None,
    tz: Annotated[
        str | None, typer.Option("--tz", help="A run's timeline in this time zone, too: Europe/Berlin.")
    ] = None,
    lang: Annotated[str, typer.Option("--lang", help="The text in this language, too: zh.")] = "en",
) -> int:
    """Write a run's postmortem again, or a review of many."""
    from drills import report as reporting
    from drills import reviews, upkeep

    if month is not None or quarter is not None:
        reviews.write(reports, month, quarter, target, say, lang)
        return 0
    folder = upkeep.complete(name, reports)
    if not (folder / "postmortem.md").is_file():  # its first one: nothing has been said of its action items yet
        from drills.actions import follow

        for line in follow.followed(folder):
            say(line)
    say(str(reporting.write(folder, tz=tz, lang=lang)))
    return 0


@app.callback(invoke_without_command=True)
def top(version: Annotated[bool, typer.Option("--version", help="Show the version.")] = False) -> int | None:
    """Parse what comes before the command."""
    if version:
        say(f"drill {__version__}")
        raise typer.Exit(0)
    return None


def main() -> None:
    """Run the command line; every outcome has its exit code, and no traceback reaches the user."""
    output.protect()
    try:
        with signals.interrupting("before anything was touched"):
            code: Any = app(standalone_mode=False)
    except typer.Exit as done:
        code = done.exit_code
    except typer.exceptions.TyperException as error:
        code = _misused(error.format_message())
    except typer.Abort:
        code = _complain("stopped before anything was touched", errors.EXIT_STOPPED)
    except errors.DrillError as error:
        code = _complain(str(error), error.exit_code)
    except KeyboardInterrupt:
        code = _complain("stopped before anything was touched", errors.EXIT_STOPPED)
    except OSError as error:
        code = _complain(f"{error.filename or 'the system'}: {error.strerror or error}", errors.EXIT_REFUSED)
    except Exception as bug:
        code = _complain(_bug(bug), errors.EXIT_BUG)
    sys.exit(code if isinstance(code, int) else 0)


def _bug(bug: Exception) -> str:
    """Keep the traceback in a file and return one line about it."""
    with tempfile.NamedTemporaryFile("w", prefix="drill-bug-", suffix=".txt", delete=False) as out:
        traceback.print_exception(bug, file=out)
    return f"our bug: {type(bug).__name__}: {bug}; what was on is reverted or `drill status` says so; report {out.name}"


def _misused(text: str) -> int:
    if not text.startswith("Usage:"):
        return _complain(f"{text} (see drill --help)", errors.EXIT_USAGE)
    for line in text.splitlines():  # a command is missing: the help says which there are
        output.say(line, to=sys.stderr)
    return errors.EXIT_USAGE


def _complain(text: str, code: int) -> int:
    output.say("drill: " + " ".join(text.split()), to=sys.stderr)
    return code


if __name__ == "__main__":
    main()
