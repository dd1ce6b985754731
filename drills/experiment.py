"""An experiment file → a frozen Experiment. Touches no network and starts nothing.

Every mistake in the file is one FileProblem: file:line, key path, what, the value, the nearest valid name.
"""

from __future__ import annotations

import importlib.resources
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import BaseModel, BeforeValidator, Field, ValidationInfo, model_validator

from drills import yamlfile
from drills.errors import FileProblem, UsageError, nearest
from drills.model import Json
from drills.params import Duration, DurationOrAuto, DurationOrZero, Line, Params, Rate, Share, Slug, from_file
from drills.units import shown
from drills.validate import named, validate
from drills.yamlfile import Document, Key

#: Kinds of target that `how` may tell apart.
KINDS: Final = ("lab", "kubernetes", "hosts")


class Arrivals(Params):
    """When requests begin. `users` is a closed loop: its load gives way when the service slows."""

    kind: Literal["poisson", "constant", "users"]
    rate: Rate | None = None
    users: Annotated[int, Field(ge=1, le=100_000)] | None = None
    think: DurationOrZero | None = None

    @model_validator(mode="after")
    def _complete(self) -> Self:
        closed = self.kind == "users"
        needed = "users" if closed else "rate"
        if getattr(self, needed) is None:
            raise ValueError(f"kind {self.kind} needs the key '{needed}'")
        for name in ("rate",) if closed else ("users", "think"):
            if getattr(self, name) is not None:
                raise ValueError(f"kind {self.kind} takes no '{name}'")
        return self


class Workload(Params):
    """What a request asks: chats of several turns, a shared prefix, answers of fixed length (in tokens)."""

    name: Literal["chat"] = "chat"
    turns: Annotated[int, Field(ge=1, le=100)] = 4
    prefix_tokens: Annotated[int, Field(ge=512, le=1_000_000)] = 512
    turn_tokens: Annotated[int, Field(ge=1, le=100_000)] = 64
    answer_tokens: Annotated[int, Field(ge=1, le=100_000)] = 32
    think: DurationOrZero = 5.0


def _workload(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


#: What a client does when it is not told otherwise, by name; every key may be given beside the name.
RETRY_PROFILES: Final[Mapping[str, Json]] = {
    "none": {"max": 0},
    "default": {},
    # The OpenAI SDK for Python: two retries, 0.5 s doubled up to 8 s less up to a quarter of it, and no budget.
    "sdk-like": {
        "max": 2,
        "backoff": "500ms",
        "backoff_max": "8s",
        "jitter": "sdk",
        "budget": None,
        "header": True,
    },
}


class Retries(Params):
    """How the client tries again; never after the first token. `budget`: retries as a share of requests."""

    profile: Literal["none", "default", "sdk-like"] | None = None
    max: Annotated[int, Field(ge=0, le=10)] = 2
    backoff: DurationOrZero = 0.25
    backoff_max: Duration = 8.0
    jitter: Literal["full", "none", "sdk"] = "full"
    budget: Share | None = 0.1
    header: bool = False

    @model_validator(mode="before")
    @classmethod
    def _laid_over_the_profile(cls, value: Any) -> Any:
        """Take the bare name of a profile, and give the keys that are not said the profile's values."""
        given = {"profile": value} if isinstance(value, str) else value
        if not isinstance(given, dict):
            return given
        name = given.get("profile")
        return {**(RETRY_PROFILES.get(name, {}) if isinstance(name, str) else {}), **given}


class Client(Params):
    """The client's patience. `idle_timeout`: without a byte for that long an open answer counts as hung."""

    timeout: Duration = 30.0
    idle_timeout: Duration = 10.0
    connect_timeout: Duration = 3.0
    keepalive: bool = False
    retries: Retries = Retries()

    @model_validator(mode="after")
    def _patient_in_order(self, info: ValidationInfo) -> Self:
        """Refuse what can never come about; only what is written is meant."""
        if from_file(info) and "idle_timeout" in self.model_fields_set and self.idle_timeout > self.timeout:
            raise ValueError(f"idle_timeout {self.idle_timeout:g}s is above timeout {self.timeout:g}s")
        return self


class Load(Params):
    """The load of a drill: the same in all phases."""

    arrivals: Arrivals
    workload: Annotated[Workload, BeforeValidator(_workload)] = Workload()
    client: Client = Client()


class Phases(Params):
    """How long each phase lasts, in seconds."""

    warmup: DurationOrZero = 10.0
    baseline: Duration
    fault: Duration
    recovery: DurationOrAuto = "auto"


class ErrorRatio(Params):
    """Stop when more than `max` of the requests that ended in the last `over` seconds were bad."""

    max: Share
    over: Duration = 10.0


class ReadyReplicas(Params):
    """Stop when fewer than `min` primaries are ready."""

    min: Annotated[int, Field(ge=0)]


GUARDS: Mapping[str, type[BaseModel]] = {"error_ratio": ErrorRatio, "ready_replicas": ReadyReplicas}


def _format(value: Any) -> Any:
    """Take the number 1 only: `true` and `1.0` are equal to it, and mean something else."""
    if type(value) is not int:
        raise ValueError("the file format is the number 1")
    return value


class ExperimentFile(Params):
    """One hypothesis and how it is tried."""

    drill: Annotated[Literal[1], BeforeValidator(_format)]
    name: Slug
    title: Annotated[Line, Field(max_length=200)]
    hypothesis: Annotated[Line, Field(max_length=1000)]
    playbook: Slug | None = None
    load: Load
    phases: Phases
    faults: Annotated[tuple[Any, ...], Field(min_length=1, max_length=50)]
    guards: Annotated[tuple[Any, ...], Field(max_length=50)] = ()
    checks: Annotated[tuple[Any, ...], Field(min_length=1, max_length=200)]


@dataclass(frozen=True)
class Item:
    """A fault, guard or check (`what`) of the file: its name, its parameters, and where it stands."""

    what: str
    name: str
    params: BaseModel
    key: Key = field(compare=False)

    def to_json(self) -> Json:
        """Return `{"check": name, "params": {...}}` with plain numbers (seconds, per second, shares)."""
        return {self.what: self.name, "params": self.params.model_dump(mode="json", by_alias=True)}


@dataclass(frozen=True)
class Experiment:
    """A hypothesis, the load, the phases, the faults, and the checks that decide."""

    name: str
    title: str
    hypothesis: str
    playbook: str | None
    load: Load
    phases: Phases
    faults: tuple[Item, ...]
    guards: tuple[Item, ...]
    checks: tuple[Item, ...]
    document: Document = field(compare=False, repr=False)

    def problem(self, key: Key, what: str) -> FileProblem:
        """Return the error that points at a key of this experiment's file."""
        return self.document.problem(key, what)

    def to_json(self) -> Json:
        """Return the experiment as plan.json holds it: plain numbers; `how` is still as it was written."""
        return {
            "drill": 1,
            "name": self.name,
            "title": self.title,
            "hypothesis": self.hypothesis,
            "playbook": self.playbook,
            "load": self.load.model_dump(mode="json", exclude_none=True),
            "phases": self.phases.model_dump(mode="json"),
            "faults": [item.to_json() for item in self.faults],
            "guards": [item.to_json() for item in self.guards],
            "checks": [item.to_json() for item in self.checks],
        }


@dataclass(frozen=True)
class Listed:
    """One line of `drill list`; `problem` says why the file cannot be used."""

    name: str
    title: str
    path: Path
    problem: str | None = None


def load_experiment(path: Path) -> Experiment:
    """Read and check one experiment file. Raises FileProblem."""
    return from_document(yamlfile.read(path))


def from_document(document: Document) -> Experiment:
    """Check an experiment that is already read. Raises FileProblem."""
    # The tables pull in what faults and checks need; only now is that due.
    from drills.checks import CHECKS
    from drills.faults import FAULTS

    top = validate(ExperimentFile, document.data, document)
    _check_playbook(document, top.playbook)
    return Experiment(
        name=top.name,
        title=top.title,
        hypothesis=top.hypothesis,
        playbook=top.playbook,
        load=top.load,
        phases=top.phases,
        faults=_items(document, "fault", {name: fault.Params for name, fault in FAULTS.items()}),
        guards=_items(document, "guard", GUARDS),
        checks=_items(document, "check", {name: check.Params for name, check in CHECKS.items()}),
        document=document,
    )


def _items(document: Document, what: str, table: Mapping[str, type[BaseModel]]) -> tuple[Item, ...]:
    items = []
    for i in range(len(document.data.get(f"{what}s", ()))):
        name, params, key = named(document, (f"{what}s", i), what, table)
        if what == "fault":
            _check_how(document, params, key)
        items.append(Item(what, name, validate(table[name], params, document, key), key))
    return tuple(items)


def _check_how(document: Document, params: Any, key: Key) -> None:
    """`how` may be a map from kinds of target; refuse other keys in it."""
    how = params.get("how") if isinstance(params, dict) else None
    if not isinstance(how, dict):
        return
    if not how:
        raise document.problem((*key, "how"), f"is empty; name a kind of target: {', '.join(KINDS)}")
    for kind in how:
        if kind not in KINDS:
            raise document.problem((*key, "how", kind), f"unknown kind of target {shown(kind)}{nearest(kind, KINDS)}")


def _check_playbook(document: Document, name: str | None) -> None:
    """Refuse the name of a playbook that is in neither folder: who is paged would look for it in vain."""
    known = {path.stem for folder in _folders("playbooks", None) for path in folder.glob("*.md")}
    if name is not None and name not in known:
        raise document.problem(("playbook",), f"unknown playbook {shown(name)}{nearest(name, known)}")


def experiment_folders(cwd: Path | None = None) -> tuple[Path, ...]:
    """Return where experiments are looked for, in order: ./experiments, then the package's own."""
    return _folders("experiments", cwd)


def _folders(name: str, cwd: Path | None) -> tuple[Path, ...]:
    own = Path(str(importlib.resources.files("drills"))) / "data" / name
    if not own.is_dir():  # a source checkout; in the wheel they are package data
        own = Path(__file__).resolve().parent.parent / name
    here = (cwd or Path()) / name  # relative in error texts, as the user would type it
    same = here.is_dir() and own.is_dir() and here.samefile(own)
    return tuple(folder for folder in ((here,) if same else (here, own)) if folder.is_dir())


def find_experiment(name: str, cwd: Path | None = None) -> Experiment:
    """Return the experiment of that name, or in that file. Raises FileProblem or UsageError (both 64)."""
    if "/" in name or name.endswith((".yaml", ".yml")):
        return load_experiment(Path(name))
    known: list[str] = []
    for folder in experiment_folders(cwd):
        listed = _in_folder(folder)
        known += [entry.name for entry in listed]
        if named := [entry for entry in listed if entry.name == name]:
            return _the_one(named)
    if not known:
        raise UsageError(f"experiment {name!r}: there is no experiments folder here and none in the package")
    raise UsageError(f"unknown experiment {name!r}{nearest(name, set(known))}")


def _the_one(named: Sequence[Listed]) -> Experiment:
    """Return the experiment of these files' name. Raises FileProblem when there are two: nobody could say which."""
    first, *more = [entry for entry in named if entry.problem is None] or named[:1]
    if more:
        what = f"'{first.name}' is also the name of {first.path}; rename one"
        raise yamlfile.read(more[0].path).problem(("name",), what)
    return load_experiment(first.path)


def list_experiments(cwd: Path | None = None) -> list[Listed]:
    """Return all experiments by name; one in ./experiments hides the package's own of that name.

    Each is read as a run would read it; `problem` says which of them a run would refuse.
    """
    found: dict[str, list[Listed]] = {}
    for folder in reversed(experiment_folders(cwd)):
        listed = _in_folder(folder)
        found |= {one.name: [entry for entry in listed if entry.name == one.name] for one in listed}
    return [_tried(entry, found[name]) for name in sorted(found) for entry in found[name]]


def _tried(entry: Listed, named: Sequence[Listed]) -> Listed:
    """Return the line with what is wrong with its file, if anything is."""
    others = [other.path for other in named if other is not entry and other.problem is None]
    if entry.problem is None and others:
        return replace(entry, problem=f"{entry.path}: same name as {others[0]}; rename one")
    try:
        return entry if entry.problem else replace(entry, title=load_experiment(entry.path).title)
    except FileProblem as problem:
        return replace(entry, problem=str(problem))


def _in_folder(folder: Path) -> list[Listed]:
    """List a folder's files by their names only: a broken neighbour must not keep another experiment from running."""
    paths = sorted(p for p in folder.iterdir() if p.suffix in (".yaml", ".yml") and not p.name.startswith("."))
    return [_listed(path) for path in paths]


def _listed(path: Path) -> Listed:
    try:
        document = yamlfile.read(path)
    except FileProblem as exc:
        return Listed(path.stem, "", path, str(exc))
    name = document.data.get("name")
    if not isinstance(name, str):
        return Listed(path.stem, "", path, str(document.problem((), "the key 'name' is missing or no text")))
    return Listed(name, "", path)


def schema() -> Json:
    """Return the JSON Schema of experiment files, parameters of faults, guards and checks included."""
    from drills.checks import CHECKS
    from drills.faults import FAULTS

    tables: Mapping[str, Mapping[str, type[BaseModel]]] = {
        "faults": {name: fault.Params for name, fault in FAULTS.items()},
        "guards": GUARDS,
        "checks": {name: check.Params for name, check in CHECKS.items()},
    }
    whole = ExperimentFile.model_json_schema()
    definitions: Json = whole.setdefault("$defs", {})
    for place, table in tables.items():
        whole["properties"][place]["items"] = {"anyOf": [_item_schema(n, m, definitions) for n, m in table.items()]}
    workload = whole["$defs"]["Load"]["properties"]["workload"]
    whole["$defs"]["Load"]["properties"]["workload"] = {"anyOf": [{"type": "string", "enum": ["chat"]}, workload]}
    retries = whole["$defs"]["Client"]["properties"]["retries"]
    by_name = {"type": "string", "enum": list(RETRY_PROFILES)}
    whole["$defs"]["Client"]["properties"]["retries"] = {"anyOf": [by_name, retries]}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **whole}


def _item_schema(name: str, model: type[BaseModel], definitions: Json) -> Json:
    """Return the schema of `name: {parameters}`; definitions it needs join the common ones under its name."""
    prefix = name.replace("-", "_")
    one = model.model_json_schema(ref_template=f"#/$defs/{prefix}.{{model}}")
    definitions.update({f"{prefix}.{key}": value for key, value in one.pop("$defs", {}).items()})
    by_name = {"type": "object", "properties": {name: one}, "required": [name], "additionalProperties": False}
    return by_name if one.get("required") else {"anyOf": [by_name, {"const": name}]}
