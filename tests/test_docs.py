"""The documentation says what the program does: names, keys, defaults, formats, paths, all of them and no others."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import typing
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, TypeAdapter
from pydantic.fields import FieldInfo
from ruamel.yaml import YAML

import drills
from drills import errors, experiment, records, target, units, yamlfile
from drills.checks import CHECKS, validity
from drills.experiment import GUARDS, ExperimentFile
from drills.faults import FAULTS
from drills.lab.config import LabConfig
from drills.lab.defects import DEFECTS
from drills.load import record
from drills.model import CheckResult, Event, Left, Outcome, Restored, RunVerdict, Verdict
from drills.params import FROM_FILE
from drills.plan import make_plan
from drills.report import pictures, source
from drills.report import run as report
from drills.target import LabOptions
from drills.targetfile import Secret, TargetFile, TargetsFile

ROOT = Path(__file__).parents[1]
PACKAGE = Path(drills.__file__).parent
DOCS = sorted((ROOT / "docs").glob("*.md"))
PAGES = [*DOCS, *(ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md"))]
EXPERIMENTS, HOW, LAB, CLI = (ROOT / "docs" / f"{name}.md" for name in ("experiments", "how-it-works", "lab", "cli"))


# ---- reading Markdown ----------------------------------------------------------------------------------


def without_fences(text: str) -> str:
    return re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)


def fences(path: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", path.read_text(), re.DOTALL | re.MULTILINE)


def sections(path: Path) -> dict[str, str]:
    """Return the text below each heading, up to the next one of any level."""
    parts = re.split(r"^#+ (.+)$", without_fences(path.read_text()), flags=re.MULTILINE)
    return dict(zip((name.replace("`", "") for name in parts[1::2]), parts[2::2], strict=True))


def rows(text: str) -> list[list[str]]:
    """Return the cells of every table in the text, without the heads."""
    found = []
    for table in re.findall(r"(?:^\|.*\|\n)+", text, re.MULTILINE):
        lines = table.splitlines()
        assert re.fullmatch(r"[|\- ]+", lines[1]), lines[1]
        for line in [lines[0], *lines[2:]]:
            assert line.count("|") == lines[0].count("|"), line
        found += [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]
    return found


def column(text: str) -> list[str]:
    """Return the names in code spans of the first column."""
    return [name for first, *_ in rows(text) for name in re.findall(r"`([^`]+)`", first)]


def anchors(path: Path) -> set[str]:
    titles = re.findall(r"^#+ (.+)$", without_fences(path.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


# ---- pages ---------------------------------------------------------------------------------------------


def test_the_command_line_page_is_current() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "cli_docs.py"), "--check"],
        capture_output=True, text=True, timeout=60, check=False, env={"COLUMNS": "40", "PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", without_fences(page.read_text())):
        if link.startswith(("http://", "https://")):
            continue
        name, _, anchor = link.partition("#")
        to = (page.parent / name).resolve() if name else page
        assert to.exists(), link
        assert not anchor or anchor in anchors(to), link


FOLDERS = ("drills", "docs", "tests", "tools", "experiments", "playbooks", "examples", "benchmarks", ".ci")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_paths_that_are_named_are_there(page: Path) -> None:
    spans = re.findall(r"`([^`\n]+)`", without_fences(page.read_text()))
    named = [
        s
        for s in spans
        if s.startswith(tuple(f"{folder}/" for folder in FOLDERS)) and not re.search(r"[<>* A-Z]", s.partition("::")[0])
    ]
    for span in named:
        name, _, test = span.partition("::")
        assert (ROOT / name).exists(), span
        assert not test or re.search(rf"^(async )?def {test}\(", (ROOT / name).read_text(), re.MULTILINE), span


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_shell_blocks_can_be_read_by_a_shell(page: Path) -> None:
    for block in fences(page, "sh"):
        done = subprocess.run(["sh", "-n"], input=block, text=True, capture_output=True, check=False, timeout=10)
        assert done.returncode == 0, done.stderr


def options() -> dict[str, set[str]]:
    """Return the options of every command, by its words after `drill`."""
    parts = re.split(r"^## `drill ?(.*)`$", CLI.read_text(), flags=re.MULTILINE)
    return {
        name: set(re.findall(r"^  (--[a-z-]+)", text, re.MULTILINE))
        for name, text in zip(parts[1::2], parts[2::2], strict=True)
    }


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_that_are_named_exist_with_their_options(page: Path) -> None:
    known, text = options(), page.read_text()
    lines = [line for block in fences(page, "sh") for line in block.splitlines()]
    lines += re.findall(r"^    (drill .+)$", text, re.MULTILINE)
    lines += re.findall(r"`(drill [^`\n]+)`", without_fences(text)) if page != CLI else []
    for line in lines:
        if line.startswith("drill "):
            words = line.split("#")[0].split()[1:]
            name = (
                ""
                if words[0].startswith("--")
                else " ".join(words[: 2 if words[0] in ("actions", "lab", "schedule", "reports") else 1])
            )
            assert name in known, line
            assert {word.partition("=")[0] for word in words if word.startswith("--")} <= known[name], line


def test_every_make_target_is_documented() -> None:
    targets = re.findall(r"^([a-z-]+):.*##", (ROOT / "Makefile").read_text(), re.MULTILINE)
    named = column(sections(ROOT / "CONTRIBUTING.md")["Set-up"])
    assert [name.removeprefix("make ") for name in named] == targets


# ---- exit codes ----------------------------------------------------------------------------------------

CODES = {value for name, value in vars(errors).items() if name.startswith("EXIT_") and isinstance(value, int)}


def test_exit_codes_are_all_documented() -> None:
    assert set(errors.EXIT_ORDER) == CODES - {errors.EXIT_USAGE}
    text = sections(HOW)["Exit codes"]
    assert {int(first) for first, _ in rows(text)} == CODES
    order = ", ".join(map(str, errors.EXIT_ORDER))
    assert f"in the order {order}" in text
    help_text = " ".join(CLI.read_text().split())
    assert {int(code) for code in re.findall(r"(?:· |Exit codes: )(\d+)", help_text)} == CODES
    assert f"worst wins: {order}" in help_text


# ---- keys of files -------------------------------------------------------------------------------------


def models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel) and annotation is not Secret:
        yield annotation
    for part in typing.get_args(annotation):
        yield from models_in(part)


def keys(model: type[BaseModel], path: str) -> Iterator[tuple[str, FieldInfo]]:
    """Yield every key of a model and of the models in it, as a path."""
    for name, info in model.model_fields.items():
        here = f"{path}.{info.alias or name}"
        yield here, info
        for inner in models_in(info.annotation):
            yield from keys(inner, here)


def known_keys() -> dict[str, FieldInfo]:
    tables: Mapping[str, Mapping[str, type[BaseModel]]] = {
        "faults": {name: fault.Params for name, fault in FAULTS.items()},
        "guards": GUARDS,
        "checks": {name: check.Params for name, check in CHECKS.items()},
    }
    found = {**dict(keys(ExperimentFile, "experiment")), **dict(keys(TargetsFile, "drill.yaml"))}
    found |= dict(keys(TargetFile, "targets.NAME"))
    for place, table in tables.items():
        for name, model in table.items():
            found |= dict(keys(model, f"{place}.{name}"))
    return found


KEYS = known_keys()
DOCUMENTED = {
    f"{heading}.{row[0].strip('`')}": row
    for heading in re.findall(r"^### `(.+)`$", EXPERIMENTS.read_text(), re.MULTILINE)
    for row in rows(sections(EXPERIMENTS)[heading])
}
#: What an absent key of a lab means is not in the file's model.
LAB_DEFAULTS = {
    "targets.NAME.entry": LabOptions().entry,
    "targets.NAME.startup": LabOptions().startup_s,
    "targets.NAME.port_base": LabOptions().port_base,
}


def test_every_key_is_documented_and_no_other() -> None:
    assert set(DOCUMENTED) == set(KEYS)


@pytest.mark.parametrize("key", sorted(KEYS))
def test_the_documented_default_is_the_real_one(key: str) -> None:
    info, (_, value, cell, meaning) = KEYS[key], DOCUMENTED.get(key, ["", "", "", ""])
    assert value
    assert meaning
    default = LAB_DEFAULTS.get(key, info.get_default(call_default_factory=True))
    if info.is_required():
        assert cell == "required"
    elif default is None:
        assert cell == "none"
    elif isinstance(default, BaseModel):
        assert cell == "below"
    else:
        written = YAML(typ="safe").load(cell.strip("`"))
        read = TypeAdapter(info.rebuild_annotation()).validate_python(written, context=FROM_FILE)
        assert read == default


@pytest.mark.parametrize(("title", "table"), [("Faults", FAULTS), ("Guards", GUARDS), ("Checks", CHECKS)])
def test_the_tables_name_everything(title: str, table: Mapping[str, Any]) -> None:
    assert sorted(column(sections(EXPERIMENTS)[title])) == sorted(table)
    for name in table:
        assert f"{title.lower()}.{name}" in sections(EXPERIMENTS)


def test_faults_are_told_as_held_or_one_shot() -> None:
    for name, kind, *_ in rows(sections(EXPERIMENTS)["Faults"]):
        assert kind == ("held" if FAULTS[name.strip("`")].held else "one-shot"), name


def test_every_shipped_experiment_is_documented() -> None:
    shipped = [experiment.load_experiment(path) for path in sorted((ROOT / "experiments").glob("*.yaml"))]
    listed = rows(sections(EXPERIMENTS)["Shipped experiments"])
    assert [(name.strip("`"), title) for name, title, _ in listed] == [(e.name, e.title) for e in shipped]
    for one, (_, _, playbook) in zip(shipped, listed, strict=True):
        assert (f"({one.playbook}.md)" in playbook.replace("../playbooks/", "")) == (one.playbook is not None)


def test_examples_of_files_can_be_used(tmp_path: Path) -> None:
    for number, block in enumerate(fences(EXPERIMENTS, "yaml")):
        path = tmp_path / f"{number}.yaml"
        path.write_text(block)
        if "targets:" in block:
            assert {"lab", "staging"} <= set(target.load_targets(path).specs)
        else:
            make_plan(experiment.load_experiment(path), target.lab_target(), run="x", seed=0)


def test_examples_of_targets_hold_nothing_that_is_refused() -> None:
    commented = (ROOT / "drill.yaml").read_text().partition("  # staging:\n")
    staging = "".join(line[4:] + "\n" for line in commented[2].partition("  #\n")[0].splitlines())
    texts = ["targets:\n  staging:\n" + re.sub(r"(?m)^", "  ", staging)]
    texts += [text for page in DOCS for text in fences(page, "yaml") if "\ntargets:\n" in f"\n{text}"]
    assert len(texts) >= 3
    for text in texts:
        assert target.from_document(yamlfile.parse(Path("x.yaml"), text)).specs


def test_quantities_are_read_as_written() -> None:
    parsers = {
        "duration": units.parse_duration,
        "rate": units.parse_rate,
        "percentage": units.parse_share,
        "quantile": units.parse_quantile,
        "temperature": units.parse_temperature,
        "clock lock": units.parse_clocks,
    }
    for (what, good, bad), known in zip(rows(sections(EXPERIMENTS)["Quantities"]), parsers, strict=True):
        assert what == known
        for text in re.findall(r"`([^`]+)`", good):
            parsers[what](YAML(typ="safe").load(text))
        for text in re.findall(r"`([^`]+)`", bad):
            with pytest.raises(units.UnitError):
                parsers[what](YAML(typ="safe").load(text))


# ---- formats of a run ----------------------------------------------------------------------------------


def told() -> set[str]:
    """Return the names of all events that the package puts into a journal."""
    found = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not node.args or not isinstance(node.args[0], ast.Constant):
                continue
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if (
                name in ("tell", "note", "_proof")
                and len(node.args) > 1
                and not {"lab", "access"} & set(path.relative_to(PACKAGE).parts)
            ):
                found.add(str(node.args[0].value))
    return found


def test_every_event_is_documented_and_no_other() -> None:
    assert set(column(sections(HOW)["journal.jsonl"])) == told()


def example(title: str) -> Any:
    """Return the JSON example below a heading of the page."""
    text = HOW.read_text()
    [block, *_] = re.findall(r"^```json\n(.*?)^```$", text[text.index(f"### `{title}`") :], re.DOTALL | re.MULTILINE)
    return json.loads(block)


def test_the_examples_have_the_real_keys() -> None:
    def names(kind: Any) -> list[str]:
        return sorted(f.name for f in fields(kind))

    assert sorted(example("journal.jsonl")) == names(Event)
    arrival = example("requests.ndjson")
    assert sorted(arrival) == names(record.Record)
    assert sorted(arrival["attempts"][0]) == names(record.Attempt)
    assert json.loads(record.Record.of(arrival).line()) == arrival
    assert sorted(example("ledger.ndjson")) == sorted(records.LEDGER)
    verdict = example("verdict.json")
    assert sorted(verdict) == names(RunVerdict)
    assert sorted(verdict["checks"][0]) == names(CheckResult)


def test_every_file_of_a_run_is_documented() -> None:
    named = column(sections(HOW)["The run folder"])
    expected = {*source.FILES, report.POSTMORTEM, report.MACHINE, report.NOTES, "load.log", *pictures.FILES}
    assert set(named) == expected
    assert column(sections(HOW.parent / "reports.md")["Its figures"]) == list(pictures.FILES)
    for name in expected - {"notes.md"}:
        assert any(name in path.read_text() for path in PACKAGE.rglob("*.py")), name


def test_words_of_verdicts_and_requests_are_documented() -> None:
    parts = sections(HOW)
    measured = column(parts["What is measured"])
    assert measured[: len(Outcome)] == [str(outcome) for outcome in Outcome]
    assert measured[len(Outcome) :][:3] == ["baseline", "caught", "fault"]
    assert measured[len(Outcome) + 3 :] == list(validity._GATES)
    for name in record.ERRORS:
        assert f"`{name}`" in parts["What is measured"], name
    for word in [*Verdict, *Restored, *Left]:
        assert f"`{word}`" in HOW.read_text(), word


def test_every_probe_is_documented() -> None:
    jobs = "".join((PACKAGE / name).read_text() for name in ("watch.py", "active.py", "others.py", "stopif.py"))
    watched = set(re.findall(r'Job\("([a-z_]+)"', jobs))
    written = set(re.findall(r'sampler\.write\("([a-z]+)"', (PACKAGE / "run.py").read_text()))
    [line] = re.findall(r"^Probes: (.+?)\n\n", sections(HOW)["samples.ndjson"] + "\n\n", re.DOTALL | re.MULTILINE)
    assert set(re.findall(r"`([a-z_]+)`", line)) == watched | written


# ---- the lab -------------------------------------------------------------------------------------------


def test_every_port_is_documented() -> None:
    listed = {int(offset): what for offset, what in rows(sections(LAB)["Ports"])}
    config = LabConfig()
    assert listed == {port - config.port_base: what for port, what in config.all_ports().items()}


def test_every_defect_is_documented() -> None:
    assert column(sections(LAB)["Planted defects"]) == list(DEFECTS)


# ---- the safety rules ----------------------------------------------------------------------------------


def test_every_safety_rule_names_a_test() -> None:
    """That the tests exist is checked with the other paths."""
    table = rows(sections(HOW)["What keeps it safe"])
    assert len(table) > 10
    for rule, tests in table:
        assert re.fullmatch(r"(`tests/[a-z_/]+\.py::test_\w+` ?)+", tests), rule
