"""LOAD.json as values: what to offer, to whom, how the client behaves.

The driver writes the file, the load process reads it. Every number is seconds, requests per second or a
share from 0 to 1. A file that cannot be used is one line: path, key, what is wrong.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from drills.errors import FileProblem, nearest

T = TypeVar("T")

#: Environment variable with the descriptor of the load process's end of the link to its driver.
FD_VARIABLE = "DRILL_LOAD_FD"
ARRIVAL_KINDS = ("poisson", "constant", "users")
JITTERS = ("full", "none", "sdk")


@dataclass(frozen=True)
class ArrivalPlan:
    """When requests are meant to start. `users` is a closed loop: it waits for answers."""

    kind: str
    rate: float = 0.0  # per second; open loop
    users: int = 0  # closed loop
    think_s: float = 0.0  # closed loop: pause between an answer and the next question

    @property
    def closed(self) -> bool:
        """Whether answers decide when the next request starts."""
        return self.kind == "users"


@dataclass(frozen=True)
class WorkloadPlan:
    """What is asked. Tokens are words of plain English, at least one token each in any vocabulary."""

    name: str = "chat"
    turns: int = 4
    prefix_tokens: int = 512
    turn_tokens: int = 64
    answer_tokens: int = 32
    think_s: float = 5.0


@dataclass(frozen=True)
class RetryPlan:
    """When and how often the client asks again. Never after the first token."""

    max: int = 0
    backoff_s: float = 0.25
    backoff_max_s: float = 8.0
    jitter: str = "full"  # `sdk`: what the OpenAI SDK repeats, when, and with which header
    budget: float | None = None  # retries over requests, sliding window
    header: bool = False  # send x-stainless-retry-count


@dataclass(frozen=True)
class ClientPlan:
    """Time-outs and connection habits of the client."""

    timeout_s: float = 30.0  # of the whole request, retries included
    idle_timeout_s: float = 10.0  # without one byte
    connect_timeout_s: float = 3.0
    keepalive: bool = False
    retries: RetryPlan = field(default_factory=RetryPlan)


@dataclass(frozen=True)
class CachedHeader:
    """The response header that marks an answer from a cache."""

    header: str
    value: str


@dataclass(frozen=True)
class LoadPlan:
    """LOAD.json."""

    run: str
    url: str
    model: str
    seed: int
    arrivals: ArrivalPlan
    records: str
    cap: int  # open requests; an arrival over it is shed
    max_duration_s: float
    workload: WorkloadPlan = field(default_factory=WorkloadPlan)
    client: ClientPlan = field(default_factory=ClientPlan)
    api_key_file: str | None = None
    api_key_env: str | None = None  # the name of a variable
    headers: Mapping[str, str] = field(default_factory=dict)
    user: str = ""
    fallback_models: tuple[str, ...] = ()
    cached_header: CachedHeader | None = None
    cpu: int | None = None

    @classmethod
    def read(cls, path: Path) -> LoadPlan:
        """Read and check LOAD.json; FileProblem says what is wrong with it."""
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as problem:
            raise FileProblem(path, f"cannot be read as JSON: {problem}; write it again") from None
        return cls.of(data, path)

    @classmethod
    def of(cls, data: Any, path: Path | str = "load.json") -> LoadPlan:
        """Build the plan from parsed JSON; `path` is only named in errors."""
        whole = _mapping(data, path, "")
        plan = _build(cls, whole, path, "", _PARTS)
        _check(plan, path)
        return plan

    def api_key(self) -> str | None:
        """Return the key from its place (it never stands on a command line), None when there is none."""
        if self.api_key_env is not None:
            if found := os.environ.get(self.api_key_env, "").strip():
                return found
            raise FileProblem("load.json", f"the environment variable {self.api_key_env} is not set; check api_key")
        if self.api_key_file is None:
            return None
        try:
            return Path(self.api_key_file).read_text(encoding="utf-8").strip()
        except OSError as problem:
            raise FileProblem(self.api_key_file, f"cannot be read: {problem.strerror}; check api_key") from None


def _mapping(value: Any, path: Path | str, key: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise FileProblem(path, f"an object is needed, not {type(value).__name__}", key=key or None)
    return value


def _build(
    cls: type[T], data: Mapping[str, Any], path: Path | str, at: str, parts: Mapping[str, Callable[..., Any]]
) -> T:
    """Make a dataclass of a mapping; `parts` builds nested values.

    Unknown and missing keys are errors. Null means the default.
    """
    # T is one of our dataclasses; its bound cannot say so.
    fields = {f.name: f for f in dataclasses.fields(cls)}  # type: ignore[arg-type] # see above
    for key in data:
        if key not in fields:
            raise FileProblem(path, f"unknown key{nearest(key, fields)}", key=at + key)
    for name, f in fields.items():
        required = f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
        if required and data.get(name) is None:
            raise FileProblem(path, "is missing", key=at + name)
    given = {key: value for key, value in data.items() if value is not None}
    values = {k: parts[k](v, path, at + k) if k in parts else v for k, v in given.items()}
    return cls(**values)


def _part(cls: type[T], parts: Mapping[str, Callable[..., Any]] | None = None) -> Callable[[Any, Path | str, str], T]:
    def build(value: Any, path: Path | str, key: str) -> T:
        return _build(cls, _mapping(value, path, key), path, key + ".", parts or {})

    return build


def _names(value: Any, path: Path | str, key: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise FileProblem(path, "a list of names is needed", key=key)
    return tuple(value)


_PARTS: Mapping[str, Callable[..., Any]] = {
    "arrivals": _part(ArrivalPlan),
    "workload": _part(WorkloadPlan),
    "client": _part(ClientPlan, {"retries": _part(RetryPlan)}),
    "cached_header": _part(CachedHeader),
    "fallback_models": _names,
}


def _positive(plan: LoadPlan) -> dict[str, Any]:
    """Return the numbers that must be above zero, by key."""
    load, client = plan.workload, plan.client
    sizes = {f"workload.{name}": getattr(load, name) for name in ("turns", "prefix_tokens", "turn_tokens")}
    spans = {f"client.{name}": getattr(client, name) for name in ("timeout_s", "idle_timeout_s", "connect_timeout_s")}
    pace = {"arrivals.users": plan.arrivals.users} if plan.arrivals.closed else {"arrivals.rate": plan.arrivals.rate}
    own = {"cap": plan.cap, "max_duration_s": plan.max_duration_s, "workload.answer_tokens": load.answer_tokens}
    return {**sizes, **spans, **pace, **own}


def _check(plan: LoadPlan, path: Path | str) -> None:
    """Refuse values that no load could be made of."""
    for key, value, valid in (
        ("arrivals.kind", plan.arrivals.kind, ARRIVAL_KINDS),
        ("client.retries.jitter", plan.client.retries.jitter, JITTERS),
        ("workload.name", plan.workload.name, ("chat",)),
    ):
        if value not in valid:
            raise FileProblem(path, f"'{value}' is not known{nearest(str(value), valid)}", key=key)
    for key, value in _positive(plan).items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            raise FileProblem(path, f"a number above 0 is needed, not {value!r}", key=key)
    for name, text in plan.headers.items():
        if any(c in name + text for c in "\r\n"):
            raise FileProblem(path, "a header may not hold a line break", key=f"headers.{name.strip()}")
    if not plan.url.startswith(("http://", "https://")):
        raise FileProblem(path, f"'{plan.url}' must begin with http:// or https://", key="url")
