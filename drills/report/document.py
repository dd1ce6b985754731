"""postmortem.json: what a postmortem says, for machines. Its JSON Schema is shipped beside the package.

Numbers are plain: seconds, shares of 1, offsets in seconds from `zero`. Null is "no data" or "not seen", never zero;
"inf" is a quantile that failed requests made endless. Texts are one sentence of inert Markdown each.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Cell = int | float | str | None


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Served(_Part):
    """What was drilled: the target, and what of it served."""

    target: str
    kind: str
    environment: str = Field(description="as the target's limits name it; empty where they do not")
    endpoint: str
    model: str
    entry: str
    primaries: list[str]
    fallbacks: list[str]
    expected_replicas: int | None
    versions: dict[str, str]


class Identity(_Part):
    """Which run this is, and what made it."""

    run: str
    experiment: str
    title: str
    hypothesis: str
    playbook: str | None
    began: str = Field(description="UTC, ISO 8601")
    length_s: float
    status: str | None = Field(description="how it ended; null: its journal has no end")
    reason: str
    defect: str | None = Field(description="planted on purpose")
    oncall: str | None
    seed: int | None
    plan: str | None = Field(description="sha256 of the plan without run and seed")
    command: str | None
    tool: dict[str, Any]
    python: str | None
    time_zone: str | None = Field(description="of the reader, beside UTC")


class Outcome(_Part):
    """The verdict, and how things were left; checks and their evidence are in verdict.json."""

    verdict: str | None
    left: str
    restored: str
    reason: str


class Zero(_Part):
    """What offsets count from."""

    what: str
    utc: str


class Stretch(_Part):
    """A phase."""

    name: str
    begin_s: float
    end_s: float


class Fault(_Part):
    """What was injected, and into what."""

    fault: str
    params: dict[str, Any]
    victims: list[str]
    gpus: list[str]


class Arrivals(_Part):
    """Arrivals that ended alike, by cohort."""

    outcome: str
    error: str | None
    baseline: int
    caught: int
    fault: int
    whole_run: int


class Quantile(_Part):
    """A quantile of a latency; failed requests count as infinitely slow."""

    metric: str
    quantile: float
    cohort: str
    value_s: Cell
    n: int
    interval_s: list[Cell] | None = Field(description="two-sided, 95 %, from order statistics")


class Streams(_Part):
    """Requests in flight on victims at the injection."""

    in_flight: int
    cut: int


class Worst(_Part):
    """The stretch with the largest share of arrivals that broke the SLA's time to first token."""

    length_s: float
    begin_s: float
    n: int
    violations: int


class Budget(_Part):
    """How much of 30 days' error budget the run burnt, at the load it ran with."""

    promise: str
    allowed_share: float
    bad: int
    n: int
    allowed_in_30_days: float
    burnt: float | None = Field(description="share of that; null where nothing is allowed")


class Amplification(_Part):
    """Attempts per request at a place."""

    place: str
    baseline: float | None
    fault: float | None
    worst_10_s: float | None


class Retries(_Part):
    """What retries cost beyond one attempt for each arrival of the fault. Tokens are estimates."""

    client: int | None
    primaries: int | None
    fallbacks: int | None
    swallowed_by_network: float | None
    tokens_in_vain: int | None
    prompt_tokens_again: int | None
    amplification: list[Amplification]


class Impact(_Part):
    """What users saw."""

    arrivals: list[Arrivals]
    latencies: list[Quantile]
    streams: Streams | None
    worst: list[Worst]
    degraded: int
    begun_after_injection: int
    budgets: list[Budget]
    retries: Retries


class Line(_Part):
    """One line of the timeline."""

    utc: str
    offset_s: float
    text: str
    source: str


class Alert(_Part):
    """When an alert came into each state."""

    alert: str
    expected: bool
    pending_s: float | None
    firing_s: float | None
    notified_s: float | None
    resolved_s: float | None
    resolution_notified_s: float | None


class Detection(_Part):
    """Who noticed, and when."""

    alerts: list[Alert]
    router_s: float | None
    alert: str | None = Field(description="the first expected one that fired")
    after_injection_s: float | None
    after_first_violation_s: float | None
    allowed_s: float | None


class Deed(_Part):
    """What was done about the fault, and by whom."""

    offset_s: float
    who: str
    text: str
    source: str


class Stage(_Part):
    """A stage that was reached, or not seen."""

    name: str
    offset_s: float | None
    source: str


class Action(_Part):
    """An item to be done, as this run proposes it."""

    id: str
    type: str
    priority: str
    what: str
    done_when: str
    proof: dict[str, Any]


class Gate(_Part):
    """Whether the measurement may be believed."""

    gate: str
    holds: bool
    reason: str
    value: float | None
    bound: float | None


class File(_Part):
    """An input of the report."""

    name: str
    sha256: str


class Figure(_Part):
    """A figure beside the report."""

    file: str
    text: str


class Lessons(_Part):
    """What to learn."""

    well: list[str]
    badly: list[str]
    lucky: list[str]
    factors: list[str]
    deviations: list[str]
    limits: list[str]


class Postmortem(_Part):
    """A run's postmortem, for machines."""

    format: Literal["drill.postmortem/1"] = "drill.postmortem/1"
    identity: Identity
    served: Served
    outcome: Outcome
    zero: Zero
    phases: list[Stretch]
    faults: list[Fault]
    impact: Impact
    timeline: list[Line]
    timeline_left_out: int
    detection: Detection
    response: list[Deed]
    downtime: list[Stage]
    gpu_reset: list[Stage]
    lessons: Lessons
    actions: list[Action]
    validity: list[Gate]
    files: list[File]
    figures: list[Figure]
