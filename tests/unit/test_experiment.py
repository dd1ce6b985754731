"""An experiment file is refused with file, line, key, value and the nearest valid name, or it is right."""

from __future__ import annotations

import json
import re
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from drills import experiment, yamlfile
from drills.errors import EXIT_USAGE, FileProblem, UsageError
from drills.experiment import Load, Retries
from drills.options import Options

SHIPPED = Path(__file__).parents[2] / "experiments"

GOOD = """\
drill: 1
name: tried
title: A replica dies
hypothesis: Traffic moves by itself.
playbook: pod-kill
load:
  arrivals: {kind: poisson, rate: 20/s}
  workload: chat
  client: {timeout: 30s, retries: {max: 2, backoff: 250ms, budget: 10%}}
phases: {warmup: 10s, baseline: 60s, fault: 60s, recovery: auto}
faults:
  - pod-kill: {victims: 1, how: {lab: delete}}
guards:
  - error_ratio: {max: 60%, over: 10s}
  - ready_replicas: {min: 1}
checks:
  - failover: {within: 5s}
  - latency: {metric: ttft, quantile: 0.99, cohort: fault, max: sla}
  - alert: {name: VllmReplicaDown, within: 20s, resolves_within: 1m}
  - streams: {max_cut: in_flight_on_victim}
  - accounted
"""


def load(tmp_path: Path, text: str) -> experiment.Experiment:
    path = tmp_path / "x.yaml"
    path.write_text(text)
    return experiment.load_experiment(path)


def problem(tmp_path: Path, text: str) -> str:
    """Return the error without the folder; it is one line and ends the process with 64."""
    with pytest.raises(FileProblem) as caught:
        load(tmp_path, text)
    assert caught.value.exit_code == EXIT_USAGE
    message = str(caught.value)
    assert "\n" not in message
    return message.removeprefix(f"{tmp_path}/")


def test_quantities_become_plain_numbers(tmp_path: Path) -> None:
    found = load(tmp_path, GOOD)
    assert found.load.arrivals.rate == 20.0
    assert found.load.client.retries == Retries(max=2, backoff=0.25, budget=0.1)
    assert found.phases.recovery == "auto"
    assert found.guards[0].to_json() == {"guard": "error_ratio", "params": {"max": 0.6, "over": 10.0}}
    assert found.checks[0].to_json() == {"check": "failover", "params": {"within": 5.0}}
    assert [item.name for item in found.checks] == ["failover", "latency", "alert", "streams", "accounted"]


def test_what_is_resolved_can_be_read_again(tmp_path: Path) -> None:
    """plan.json holds plain numbers, and a judge builds the same parameters from them."""
    found = load(tmp_path, GOOD)
    content = json.loads(json.dumps(found.to_json()))
    assert Load.model_validate(content["load"]) == found.load
    for item, entry in zip(found.checks, content["checks"], strict=True):
        assert type(item.params).model_validate(entry["params"]) == item.params


def test_an_experiment_cannot_be_changed(tmp_path: Path) -> None:
    found = load(tmp_path, GOOD)
    with pytest.raises(AttributeError):
        found.name = "other"  # type: ignore[misc] # that it cannot be done is the test
    with pytest.raises(ValidationError):
        found.phases.fault = 1.0


DURATION = "write for example"

BAD: list[tuple[str, str, str]] = [
    # unknown keys
    ("name: tried", "nmae: tried", "x.yaml:2: nmae: unknown key 'nmae'; did you mean 'name'?"),
    ("{kind: poisson, rate:", "{kind: poisson, rat:", "x.yaml:7: load.arrivals.rat: unknown key 'rat'; did you mean"),
    ("backoff: 250ms", "backof: 250ms", "x.yaml:9: load.client.retries.backof: unknown key 'backof'; did you mean"),
    ("warmup: 10s", "warm_up: 10s", "x.yaml:10: phases.warm_up: unknown key 'warm_up'; did you mean 'warmup'?"),
    ("baseline: 60s", "basline: 60s", "x.yaml:10: phases.basline: unknown key 'basline'; did you mean 'baseline'?"),
    ("victims: 1", "victim: 1", "x.yaml:12: faults[0].pod-kill.victim: unknown key 'victim'; did you mean 'victims'?"),
    ("over: 10s", "ovr: 10s", "x.yaml:14: guards[0].error_ratio.ovr: unknown key 'ovr'; did you mean 'over'?"),
    ("within: 5s", "witin: 5s", "x.yaml:17: checks[0].failover.witin: unknown key 'witin'; did you mean 'within'?"),
    # what can never be, or never be decided
    ("title: ", f"title: {200 * 'x'}", "x.yaml:3: title: the text is longer than 200 characters"),
    ("timeout: 30s", "timeout: 30s, idle_timeout: 31s", "x.yaml:9: load.client: idle_timeout 31s is above timeout 30s"),
    ("quantile: 0.99", "quantile: 1.0e-320", "x.yaml:18: checks[1].latency.quantile: quantile 1e-320 is below 0.01;"),
    ("max: sla", "max: {baseline_times: 1.0e+308}", "x.yaml:18: checks[1].latency.max.baseline_times: "),
    ("- accounted", "- metrics: {preset: serving-minimum, thresholds: {qps_window: 1ms}}", "x.yaml:21: checks[4].met"),
    ("- accounted", "- metrics: {preset: serving-minimum, thresholds: {gpu_temperature_max: 1.0e+308}}", "x.yaml:21: "),
    (
        "- accounted",
        "- metrics: {preset: serving-minimum, thresholds: {gpu_temperature_act: 70, gpu_temperature_max: 80}}",
        "x.yaml:21: checks[4].metrics.thresholds: gpu_temperature_act 70 is below gpu_temperature_max 80",
    ),
    # unknown names
    ("pod-kill: {v", "pod-kil: {v", "x.yaml:12: faults[0]: unknown fault 'pod-kil'; did you mean 'pod-kill'?"),
    ("- failover:", "- failovr:", "x.yaml:17: checks[0]: unknown check 'failovr'; did you mean 'failover'?"),
    ("- accounted", "- acounted", "x.yaml:21: checks[4]: unknown check 'acounted'; did you mean 'accounted'?"),
    ("error_ratio", "eror_ratio", "x.yaml:14: guards[0]: unknown guard 'eror_ratio'; did you mean 'error_ratio'?"),
    ("metric: ttft", "metric: tft", "x.yaml:18: checks[1].latency.metric: unknown value 'tft'; did you mean 'ttft'?"),
    ("cohort: fault", "cohort: fualt", "x.yaml:18: checks[1].latency.cohort: unknown value 'fualt'; did you mean"),
    (
        "retries: {max: 2, backoff: 250ms, budget: 10%}",
        "retries: sdk-lik",
        "x.yaml:9: load.client.retries: unknown value 'sdk-lik'; did you mean 'sdk-like'?",
    ),
    (
        "retries: {max: 2, backoff: 250ms, budget: 10%}",
        "retries: {profile: sdk}",
        "x.yaml:9: load.client.retries.profile: unknown value 'sdk'; did you mean 'sdk-like'?",
    ),
    ("workload: chat", "workload: chatt", "x.yaml:8: load.workload: unknown value 'chatt'; did you mean 'chat'?"),
    ("kind: poisson", "kind: poison", "x.yaml:7: load.arrivals.kind: unknown value 'poison'; did you mean 'poisson'?"),
    ("{lab: delete}", "{lba: delete}", "x.yaml:12: faults[0].pod-kill.how.lba: unknown kind of target 'lba'; did you"),
    (
        "{lab: delete}",
        '{"\\x1f": delete}',
        "x.yaml:12: faults[0].pod-kill.how.'\\x1f': unknown kind of target '\\x1f'; valid",
    ),
    ("{lab: delete}", "deleet", "x.yaml:12: faults[0].pod-kill.how: unknown value 'deleet'; did you mean 'delete'?"),
    ("{lab: delete}", "{lab: deleet}", "x.yaml:12: faults[0].pod-kill.how.lab: unknown value 'deleet'; did you mean"),
    ("{lab: delete}", "{}", "x.yaml:12: faults[0].pod-kill.how: is empty; name a kind of target: lab, kubernetes, hos"),
    ("drill: 1", "drill: 2", "x.yaml:1: drill: unknown value 2; valid: 1"),
    ("playbook: pod-kill", "playbook: pod-kil", "x.yaml:5: playbook: unknown playbook 'pod-kil'; did you mean 'pod-"),
    # quantities
    ("within: 5s", "within: 5", f"x.yaml:17: checks[0].failover.within: duration 5 has no unit; {DURATION} 5s (units:"),
    ("within: 5s", "within: 5sec", "x.yaml:17: checks[0].failover.within: duration '5sec' has the unknown unit 'sec'"),
    ("within: 5s", "within: -5s", "x.yaml:17: checks[0].failover.within: duration '-5s' is negative"),
    ("warmup: 10s", "warmup: 10", "x.yaml:10: phases.warmup: duration 10 has no unit; write for example 10s"),
    ("recovery: auto", "recovery: atuo", "x.yaml:10: phases.recovery: 'atuo' is not a duration;"),
    ("recovery: auto", "recovery: 60", "x.yaml:10: phases.recovery: duration 60 has no unit;"),
    ("max: 60%", "max: 160%", "x.yaml:14: guards[0].error_ratio.max: percentage '160%' is over 100%"),
    ("max: 60%", "max: 0.6", "x.yaml:14: guards[0].error_ratio.max: percentage 0.6 has no unit; write for example"),
    ("budget: 10%", "budget: 101%", "x.yaml:9: load.client.retries.budget: percentage '101%' is over 100%"),
    ("rate: 20/s", "rate: -20/s", "x.yaml:7: load.arrivals.rate: rate '-20/s' is negative"),
    ("rate: 20/s", "rate: 0/s", "x.yaml:7: load.arrivals.rate: rate '0/s' must be above 0"),
    ("rate: 20/s", "rate: 20", "x.yaml:7: load.arrivals.rate: rate 20 has no unit; write for example 20/s (units: /s"),
    ("quantile: 0.99", "quantile: 1", "x.yaml:18: checks[1].latency.quantile: quantile 1 is not between 0 and 1;"),
    ("quantile: 0.99", "quantile: 0", "x.yaml:18: checks[1].latency.quantile: quantile 0 is not between 0 and 1;"),
    ("quantile: 0.99", "quantile: 99", "x.yaml:18: checks[1].latency.quantile: quantile 99 is not between 0 and 1; di"),
    ("quantile: 0.99", "quantile: -0.5", "x.yaml:18: checks[1].latency.quantile: quantile -0.5 is not between 0 and 1"),
    ("max: sla", "max: 1", "x.yaml:18: checks[1].latency.max: duration 1 has no unit; write for example 1s"),
    ("victims: 1", "victims: 0", "x.yaml:12: faults[0].pod-kill.victims: at least 1 victim"),
    ("victims: 1", "victims: 150%", "x.yaml:12: faults[0].pod-kill.victims: a number of victims, or a percentage"),
    ("victims: 1", "victims: true", "x.yaml:12: faults[0].pod-kill.victims: "),
    # kinds of value
    ("max: 2,", "max: '2',", "x.yaml:9: load.client.retries.max: a whole number is expected, found text '2'"),
    (
        "max: 2,",
        "max: true,",
        "x.yaml:9: load.client.retries.max: a whole number is expected, found true or false true",
    ),
    ("max: 2,", "max: 11,", "x.yaml:9: load.client.retries.max: less than or equal to 10; found a number 11"),
    ("min: 1", "min: -1", "x.yaml:15: guards[1].ready_replicas.min: greater than or equal to 0; found a number -1"),
    ("title: A replica dies", "title:", "x.yaml:3: title: text is expected, found nothing"),
    ("title: A replica dies", "title: ' '", "x.yaml:3: title: the text is empty"),
    ("name: tried", "name: ../tried", "x.yaml:2: name: '../tried' is not a name: small letters, digits and -,"),
    ("name: tried", "name: 7", "x.yaml:2: name: text is expected, found a number 7"),
    ("- accounted", "- 7", "x.yaml:21: checks[4]: one `check: {parameters}` is expected, found a number"),
    (
        "- accounted",
        "- {accounted: , streams: }",
        "x.yaml:21: checks[4]: one `check: {parameters}` is expected, found a",
    ),
    ("- accounted", "- accounted: 7", "x.yaml:21: checks[4].accounted: a map is expected, found a number"),
    # what is missing or empty
    ("name: tried\n", "", "x.yaml:1: the key 'name' is missing"),
    (
        "warmup: 10s, baseline: 60s, fault: 60s, recovery: auto",
        "",
        "x.yaml:10: phases: is empty; the keys 'baseline', ",
    ),
    (
        "{warmup: 10s, baseline: 60s, fault: 60s, recovery: auto}",
        "",
        "x.yaml:10: phases: a map is expected, found noth",
    ),
    (", baseline: 60s", "", "x.yaml:10: phases: the key 'baseline' is missing"),
    ("  - pod-kill: {victims: 1, how: {lab: delete}}\n", "", "x.yaml:11: faults: a list is expected, found nothing"),
    (
        "\n  - pod-kill: {victims: 1, how: {lab: delete}}\n",
        " []\n",
        "x.yaml:11: faults: is empty; at least one is need",
    ),
    (", how: {lab: delete}", "", "x.yaml:12: faults[0].pod-kill: the key 'how' is missing"),
    ("{within: 5s}", "", "x.yaml:17: checks[0].failover: is empty; the key 'within' is missing"),
    ("{within: 5s}", "{}", "x.yaml:17: checks[0].failover: is empty; the key 'within' is missing"),
    (", rate: 20/s", "", "x.yaml:7: load.arrivals: kind poisson needs the key 'rate'"),
    ("rate: 20/s", "rate: 20/s, users: 3", "x.yaml:7: load.arrivals: kind poisson takes no 'users'"),
    # the file itself
    ("phases:", "name: twice\nphases:", "x.yaml:10: name: is there twice; remove one"),
    ("phases: {", "phases: {{", "x.yaml:11: is not YAML: expected ',' or '}', but got '<scalar>'"),
]


@pytest.mark.parametrize(("old", "new", "message"), BAD, ids=[f"{new or old}"[:40] for old, new, _ in BAD])
def test_refuses(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert GOOD.count(old) >= 1
    found = problem(tmp_path, GOOD.replace(old, new, 1))
    assert found.startswith(message), found


@pytest.mark.parametrize("section", ["faults", "checks"])
def test_an_empty_section_is_refused(tmp_path: Path, section: str) -> None:
    text = re.sub(rf"^{section}:\n(  .*\n)+", f"{section}: []\n", GOOD, flags=re.MULTILINE)
    line = text[: text.index(f"{section}:")].count("\n") + 1
    assert problem(tmp_path, text) == f"x.yaml:{line}: {section}: is empty; at least one is needed"


def test_guards_may_be_left_out(tmp_path: Path) -> None:
    text = re.sub(r"^guards:\n(  .*\n)+", "", GOOD, flags=re.MULTILINE)
    assert load(tmp_path, text).guards == ()


def test_a_line_is_that_of_the_key_also_in_block_style(tmp_path: Path) -> None:
    text = GOOD.replace("  - failover: {within: 5s}\n", "  - failover:\n\n      within: 5\n")
    assert problem(tmp_path, text).startswith("x.yaml:19: checks[0].failover.within: duration 5 has no unit")


def test_a_closed_loop_needs_users(tmp_path: Path) -> None:
    text = GOOD.replace("{kind: poisson, rate: 20/s}", "{kind: users, users: 30, think: 2s}")
    assert load(tmp_path, text).load.arrivals.think == 2.0
    found = problem(tmp_path, GOOD.replace("kind: poisson", "kind: users"))
    assert found.startswith("x.yaml:7: load.arrivals: kind users needs the key 'users'")


def test_a_workload_may_be_spelt_out(tmp_path: Path) -> None:
    found = load(tmp_path, GOOD.replace("workload: chat", "workload: {name: chat, turns: 2, think: 1s}"))
    assert (found.load.workload.turns, found.load.workload.think) == (2, 1.0)


SDK_LIKE = {"max": 2, "backoff": 0.5, "backoff_max": 8.0, "jitter": "sdk", "budget": None, "header": True}


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("sdk-like", {"profile": "sdk-like", **SDK_LIKE}),
        ("{profile: sdk-like, budget: 10%}", {"profile": "sdk-like", **SDK_LIKE, "budget": 0.1}),
        ("{profile: sdk-like, max: 5, backoff: 1s}", {"profile": "sdk-like", **SDK_LIKE, "max": 5, "backoff": 1.0}),
        ("none", {**Retries().model_dump(), "profile": "none", "max": 0}),
        ("default", {**Retries().model_dump(), "profile": "default"}),
        ("{max: 2, backoff: 250ms, budget: 10%}", Retries().model_dump()),
    ],
)
def test_retries_may_be_a_profile_and_what_differs_from_it(tmp_path: Path, written: str, read: object) -> None:
    found = load(tmp_path, GOOD.replace("{max: 2, backoff: 250ms, budget: 10%}", written))
    assert found.load.client.retries.model_dump() == read
    content = json.loads(json.dumps(found.to_json()))["load"]
    assert Load.model_validate(content) == found.load
    assert ("profile" in content["client"]["retries"]) == ("profile" in written or ":" not in written)


def test_reading_touches_no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a socket was opened")

    monkeypatch.setattr(socket, "socket", refuse)
    load(tmp_path, GOOD)


def test_a_playbook_of_ones_own_lies_beside_the_experiments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = GOOD.replace("playbook: pod-kill", "playbook: our-pods")
    assert "unknown playbook 'our-pods'; valid: engine-hang, " in problem(tmp_path, text)
    (tmp_path / "playbooks").mkdir()
    (tmp_path / "playbooks" / "our-pods.md").touch()
    assert load(tmp_path, text).playbook == "our-pods"
    assert load(tmp_path, GOOD).playbook == "pod-kill"
    assert "did you mean 'our-pods'?" in problem(tmp_path, text.replace("our-pods", "our-pod"))


# ---- what is shipped --------------------------------------------------------------------------------


@pytest.mark.parametrize("path", sorted(SHIPPED.glob("*.yaml")), ids=lambda path: path.stem)
def test_shipped_experiments_are_right(path: Path) -> None:
    assert experiment.load_experiment(path).name == path.stem


def test_the_schema_knows_every_name() -> None:
    schema = experiment.schema()
    text = json.dumps(schema)
    for name in ("pod-kill", "noop", "failover", "latency", "error_ratio", "ready_replicas"):
        assert f'"{name}"' in text
    references = set(re.findall(r'"#/\$defs/([^"]+)"', text))
    assert references <= set(schema["$defs"])
    rate = schema["$defs"]["Arrivals"]["properties"]["rate"]["anyOf"][0]
    assert rate["type"] == "string"
    assert re.fullmatch(rate["pattern"], "20/s")
    assert not re.fullmatch(rate["pattern"], "20")


# ---- anything at all --------------------------------------------------------------------------------


def refusal(act: Callable[[], object]) -> str:
    """Return the text of the refusal, empty for none; any other exception is a failure."""
    try:
        act()
    except FileProblem as exc:
        return str(exc)
    return ""


TREE = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.sampled_from(["5s", "20/s", "10%", "sla", ""])),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=8), inner, max_size=3)),
    max_leaves=6,
)


@st.composite
def damaged(draw: st.DrawFn) -> dict[str, Any]:
    """Return a good experiment in which one value, anywhere, is something else."""
    data = cast("dict[str, Any]", yamlfile.parse(Path("x.yaml"), GOOD).data)
    node: Any = data
    while True:
        key = draw(st.sampled_from(sorted(node) if isinstance(node, dict) else list(range(len(node)))))
        if not isinstance(node[key], dict | list) or not node[key] or draw(st.booleans()):
            node[key] = draw(TREE)
            return data
        node = node[key]


@settings(deadline=None, max_examples=150)
@given(data=damaged())
def test_one_wrong_value_anywhere_is_one_line(data: dict[str, Any]) -> None:
    document = yamlfile.Document(Path("x.yaml"), data, {(): 1})
    assert refusal(lambda: experiment.from_document(document)).isprintable()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=150)
@given(at=st.integers(min_value=0, max_value=len(GOOD) - 1), junk=st.binary(max_size=6))
def test_any_bytes_in_the_middle_are_one_line(tmp_path: Path, at: int, junk: bytes) -> None:
    path = tmp_path / "x.yaml"
    raw = GOOD.encode()
    path.write_bytes(raw[:at] + junk + raw[at + len(junk) :])
    assert refusal(lambda: experiment.load_experiment(path)).isprintable()


def test_the_package_data_is_found_where_a_wheel_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(SHIPPED, tmp_path / "drills" / "data" / "experiments")
    monkeypatch.setattr("importlib.resources.files", lambda _: tmp_path / "drills")
    assert experiment.experiment_folders(tmp_path) == (tmp_path / "drills" / "data" / "experiments",)


@pytest.mark.parametrize("value", ["true", "1.0", '"1"', "2"])
def test_the_format_is_the_number_one_and_nothing_equal_to_it(tmp_path: Path, value: str) -> None:
    with pytest.raises(FileProblem, match=r"x.yaml:1: drill: "):
        load(tmp_path, GOOD.replace("drill: 1", f"drill: {value}"))


@pytest.mark.parametrize(("section", "item", "most"), [("faults", "noop", 50), ("checks", "accounted", 200)])
def test_more_than_anybody_means_is_refused(tmp_path: Path, section: str, item: str, most: int) -> None:
    text = GOOD[: GOOD.index("faults:")] + "faults: [noop]\nchecks: [accounted]\n"
    many = text.replace(f"{section}: [{item}]", f"{section}: [{', '.join([item] * (most + 1))}]")
    assert f"at most {most} may be" in problem(tmp_path, many)


@pytest.mark.parametrize("peer", ["rooter", "10.0.0.300", "::1", "example.org"])
def test_a_peer_is_the_router_or_an_address(tmp_path: Path, peer: str) -> None:
    fault = f"  - packet-loss: {{mode: reject, peers: ['{peer}']}}"
    text = "\n".join(fault if "- pod-kill" in line else line for line in GOOD.splitlines())
    assert f"no peer '{peer}'" in problem(tmp_path, text)
    load(tmp_path, text.replace(peer, "10.0.0.0/8"))


@pytest.mark.parametrize("seed", [2**63, -1, 10**30])
def test_a_seed_is_a_whole_number_that_every_reader_takes(seed: int) -> None:
    Options(seed=2**63 - 1)
    with pytest.raises(UsageError, match="--seed"):
        Options(seed=seed)


def test_a_level_alone_may_be_beyond_those_that_nobody_wrote(tmp_path: Path) -> None:
    own = "- metrics: {preset: serving-minimum, thresholds: {gpu_temperature_max: 95}}"
    item = load(tmp_path, GOOD.replace("- accounted", own)).checks[-1]
    assert type(item.params).model_validate(item.to_json()["params"]) == item.params
