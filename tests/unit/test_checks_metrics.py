from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from drills.checks import CHECKS
from drills.model import CheckResult, Verdict
from drills.params import FROM_FILE
from tests.unit import probed, runs
from tests.unit.runs import BASELINE, END, FAULT, GPU, HIT, RECOVERY, START, Json, Run, judge

PRESET: Json = {"preset": "serving-minimum"}


def row(found: CheckResult, metric: str) -> Json:
    [one] = [r for r in found.detail["rows"] if r["metric"] == metric]
    return dict(one)


def minimum(run: Run, folder: Path, **more: Any) -> CheckResult:
    return judge(run, folder, "metrics", **PRESET, **more)


def test_pass_and_what_cannot_be_judged_stays_out(tmp_path: Path) -> None:
    found = minimum(runs.healthy(), tmp_path)
    assert (found.verdict, found.value, found.bound, found.n) == (Verdict.PASS, 0, 0, 8)
    assert {r["metric"]: r["reason"] for r in found.detail["rows"] if r["verdict"] == "not judged"} == {
        "GPU utilisation": "needs 300 s, 160 s were watched",
        "business metric": "not configured; name it in business.promql",
    }
    assert row(found, "prefix hit rate")["source"] == "vllm:prefix_cache_hits_total, vllm:prefix_cache_queries_total"
    swapped = row(found, "swapped requests")
    assert (swapped["source"], "preemptions" in swapped["reason"]) == ("vllm:num_preemptions_total", True)


# ---- each row fails by what it is for --------------------------------------------------------------------


def _half_is_gone(run: Run) -> None:
    run.fail([r for n, r in enumerate(run.between(RECOVERY, END)) if n % 5 < 3])


def _slow(key: str, by_s: float) -> Callable[[Run], None]:
    def spoil(run: Run) -> None:
        for r in run.between(HIT, HIT + 10):
            if key == "first":
                r |= {name: r[name] + by_s for name in ("first_token", "last_token", "end")}
                r["chunks"] = [ms + 1000 * by_s for ms in r["chunks"]]
            else:
                r |= {name: r[name] + by_s for name in ("last_token", "end")}
                r["chunks"] = [*r["chunks"][:4], *(ms + 1000 * by_s for ms in r["chunks"][4:])]

    return spoil


def _fail_two_in_a_hundred(run: Run) -> None:
    run.fail(run.between(BASELINE, END)[::50])


def _values(probe: str, **values: Any) -> Callable[[Run], None]:
    def spoil(run: Run) -> None:
        for s in run.samples:
            if s["probe"] == probe and s["ok"]:
                s["values"] |= values

    return spoil


def _gpu(**values: Any) -> Callable[[Run], None]:
    def spoil(run: Run) -> None:
        for s in run.samples:
            if s["probe"] == "gpu" and s["mono"] > FAULT:
                s["values"]["gpus"][GPU] |= values

    return spoil


def _preempted(run: Run) -> None:
    for s in run.samples:
        if s["probe"] == "vllm" and s["ok"] and s["mono"] > RECOVERY:
            s["values"]["preemptions"] = 4


ALARMS: dict[str, tuple[Callable[[Run], None], str]] = {
    "QPS": (_half_is_gone, "at most 50 % may be (answered: "),
    "p99 TTFT": (_slow("first", 2.0), "2.1 s, at most 1.5 s may be"),
    "p99 max gap": (_slow("gap", 4.0), "4.1 s, at most 3 s may be"),
    "error ratio": (_fail_two_in_a_hundred, "at most 1 % may be"),
    "prefix hit rate": (_values("vllm", prefix_hits=0), "0 %, at least 50 % may be"),
    "swapped requests": (_preempted, "12, at most 0 may be (preemptions"),
    "GPU memory": (_gpu(memory_used_mib=80000), "98.1 %, at most 95 % may be"),
    "GPU temperature": (_gpu(temperature_c=86), "86 °C, at most 85 °C may be (level alarm"),
}


@pytest.mark.parametrize("metric", ALARMS)
def test_fail_by_its_own_row(tmp_path: Path, metric: str) -> None:
    spoil, said = ALARMS[metric]
    run = runs.healthy()
    spoil(run)
    found = minimum(run, tmp_path)
    assert (found.verdict, row(found, metric)["verdict"]) == (Verdict.FAIL, "fail"), found.reason
    assert said in found.reason
    also = {"error ratio", "p99 TTFT", "p99 max gap", "QPS"} if metric in ("QPS", "error ratio") else {metric}
    assert {r["metric"] for r in found.detail["rows"] if r["verdict"] == "fail"} <= also


@pytest.mark.parametrize(
    ("degrees", "level", "verdict"),
    [(79, "no level", "pass"), (82, "level warn", "pass"), (87, "level alarm", "fail"), (91, "level act", "fail")],
)
def test_the_level_of_a_temperature(tmp_path: Path, degrees: int, level: str, verdict: str) -> None:
    run = runs.healthy()
    _gpu(temperature_c=degrees)(run)
    found = row(minimum(run, tmp_path), "GPU temperature")
    assert (found["verdict"], found["reason"].startswith(level)) == (verdict, True)


@pytest.mark.parametrize(("busy", "verdict"), [({}, "pass"), ({"utilisation": 20}, "fail")])
def test_a_gpu_that_idles_for_as_long_as_that(tmp_path: Path, busy: Json, verdict: str) -> None:
    run = runs.healthy()
    for s in run.samples:
        if s["probe"] == "gpu" and FAULT < s["mono"] < FAULT + 70:
            s["values"]["gpus"][GPU] |= busy
    found = minimum(run, tmp_path, thresholds={"gpu_utilisation_for": 60.0})
    assert row(found, "GPU utilisation")["verdict"] == verdict


def test_a_gpu_that_no_replica_holds_may_idle_and_heat(tmp_path: Path) -> None:
    run = runs.healthy()
    for event in run.of("completion"):
        event["gpus"] = [GPU]
    for s in run.samples:
        if s["probe"] == "gpu":
            s["values"]["gpus"]["GPU-spare"] = {"temperature_c": 99, "utilisation": 0}
    assert row(minimum(run, tmp_path), "GPU temperature")["value"] == 60.0


def test_thresholds_can_be_others(tmp_path: Path) -> None:
    run = runs.healthy()
    _gpu(temperature_c=86)(run)
    assert minimum(run, tmp_path, thresholds={"gpu_temperature_max": 88.0}).verdict is Verdict.PASS
    assert minimum(runs.healthy(), tmp_path, thresholds={"prefix_hit_rate_min": 0.9}).verdict is Verdict.FAIL


# ---- old engines -----------------------------------------------------------------------------------------


def _of_old(run: Run, names: Json, **values: Any) -> Run:
    for s in run.samples:
        if s["probe"] == "vllm" and s["ok"]:
            kept = {k: v for k, v in s["values"].items() if not k.startswith(("prefix", "preempt"))}
            s["values"] = kept | values
    for event in run.of("metrics.names"):
        event["names"] = names
    return run


def test_the_old_names_are_understood_and_said(tmp_path: Path) -> None:
    names = {"swapped": "vllm:num_requests_swapped", "prefix_hit_rate": "vllm:gpu_prefix_cache_hit_rate"}
    found = minimum(_of_old(runs.healthy(), names, swapped=0, prefix_hit_rate=0.7), tmp_path / "a")
    assert found.verdict is Verdict.PASS
    assert row(found, "swapped requests")["source"] == "vllm:num_requests_swapped"
    assert row(found, "prefix hit rate")["source"] == "vllm:gpu_prefix_cache_hit_rate"
    found = minimum(_of_old(runs.healthy(), names, swapped=2, prefix_hit_rate=0.2), tmp_path / "b")
    assert [r["metric"] for r in found.detail["rows"] if r["verdict"] == "fail"] == [
        "prefix hit rate",
        "swapped requests",
    ]


def test_a_prefix_cache_that_is_off_is_found(tmp_path: Path) -> None:
    run = runs.healthy()
    _values("vllm", prefix_hits=0, prefix_queries=0)(run)
    found = minimum(run, tmp_path)
    assert (found.verdict, "the prefix cache is off" in found.reason) == (Verdict.FAIL, True)


# ---- no data ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("probe", ["vllm", "gpu"])
def test_inconclusive_when_a_probe_could_not_measure(tmp_path: Path, probe: str) -> None:
    run = runs.healthy()
    for s in run.samples:
        if s["probe"] == probe:
            s |= {"ok": False, "error": "timed out", "values": {}}
    assert minimum(run, tmp_path).verdict is Verdict.INCONCLUSIVE


def test_a_target_without_gpus_is_not_judged_for_them(tmp_path: Path) -> None:
    run = runs.healthy()
    run.samples = [s for s in run.samples if s["probe"] != "gpu"]
    found = minimum(run, tmp_path / "lab")  # where there are always GPUs
    assert (found.verdict, row(found, "GPU memory")["verdict"]) == (Verdict.INCONCLUSIVE, "inconclusive")
    run.plan["target"]["kind"] = "kubernetes"
    found = minimum(run, tmp_path / "cluster")
    assert (found.verdict, row(found, "GPU memory")["verdict"]) == (Verdict.PASS, "not judged")


def test_too_few_arrivals_are_inconclusive(tmp_path: Path) -> None:
    run = runs.healthy(rate=1.0)
    found = minimum(run, tmp_path)
    assert found.verdict is Verdict.INCONCLUSIVE
    assert row(found, "QPS")["verdict"] == row(found, "p99 TTFT")["verdict"] == "inconclusive"


def test_nothing_without_a_baseline(tmp_path: Path) -> None:
    run = runs.healthy()
    run.drop("phase")
    assert minimum(run, tmp_path).verdict is Verdict.INCONCLUSIVE


# ---- PromQL ----------------------------------------------------------------------------------------------


def asked(run: Run, name: str, value: Callable[[float], float | None]) -> Run:
    """Prometheus was asked each 5 s; None is no value."""
    for second in range(0, int(END - START), 5):
        mono = START + second + 0.4
        got = value(mono)
        line = probed.sample(mono, "promql", name, {"value": got})
        if got is None:
            line = {k: v for k, v in line.items() if k != "values"} | {"ok": False, "error": "no series"}
        run.samples.append(line)
    return run


OWN: Json = {"name": "queue", "promql": "sum(vllm:num_requests_waiting)"}


@pytest.mark.parametrize(
    ("bound", "value", "verdict"),
    [
        ({"max": 10.0}, lambda _: 10.0, "pass"),
        ({"max": 10.0}, lambda mono: 11.0 if FAULT < mono < FAULT + 6 else 1.0, "fail"),
        ({"min": 2.0}, lambda _: 2.0, "pass"),
        ({"min": 2.0}, lambda mono: 1.0 if FAULT < mono < FAULT + 6 else 5.0, "fail"),
        ({"max": 10.0, "over": 30.0}, lambda mono: 11.0 if FAULT < mono < FAULT + 20 else 1.0, "pass"),
        ({"max": 10.0, "over": 30.0}, lambda mono: 11.0 if FAULT < mono < FAULT + 40 else 1.0, "fail"),
        ({"min": 2.0, "over": 30.0}, lambda mono: 1.0 if FAULT < mono < FAULT + 40 else 5.0, "fail"),
        ({"max": 10.0}, lambda _: None, "inconclusive"),
        ({"max": 10.0}, lambda mono: None if FAULT < mono < FAULT + 20 else 1.0, "inconclusive"),
        ({"max": 10.0, "over": 600.0}, lambda _: 99.0, "not judged"),
    ],
)
def test_a_row_of_ones_own(tmp_path: Path, bound: Json, value: Callable[[float], float | None], verdict: str) -> None:
    run = asked(runs.healthy(), "queue", value)
    found = judge(run, tmp_path, "metrics", rows=[OWN | bound])
    assert row(found, "queue")["verdict"] == verdict, found.reason
    assert found.verdict == ("inconclusive" if verdict == "not judged" else verdict)
    assert row(found, "queue")["source"] == "PromQL sum(vllm:num_requests_waiting)"


@pytest.mark.parametrize(
    ("after", "verdict"), [(100.0, "pass"), (96.0, "pass"), (94.0, "fail"), (130.0, "pass"), (None, "inconclusive")]
)
def test_the_business_metric_after_the_fault_beside_the_baseline(
    tmp_path: Path, after: float | None, verdict: str
) -> None:
    run = asked(runs.healthy(), "business", lambda mono: 100.0 if mono < RECOVERY else after)
    found = judge(run, tmp_path, "metrics", business={"promql": "sum(rate(orders_total[1m]))"})
    assert found.verdict == verdict, found.reason


def test_a_business_that_did_nothing_before_cannot_fall(tmp_path: Path) -> None:
    run = asked(runs.healthy(), "business", lambda _: 0.0)
    found = judge(run, tmp_path, "metrics", business={"promql": "sum(rate(orders_total[1m]))"})
    assert (found.verdict, "nothing to fall from" in found.reason) == (Verdict.INCONCLUSIVE, True)


# ---- parameters ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({}, "nothing to judge"),
        ({"rows": [OWN]}, "either max or min"),
        ({"rows": [OWN | {"max": 1, "min": 0}]}, "either max or min"),
        ({"rows": [OWN | {"max": 1}, OWN | {"max": 2}]}, "two rows are named queue"),
        ({"rows": [OWN | {"name": "business", "max": 1}]}, "choose another"),
        ({"preset": "serving"}, "serving-minimum"),
        ({"preset": "serving-minimum", "thresholds": {"gpu_memory_max": 0.9}}, "%"),
    ],
)
def test_refused(params: Json, said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        CHECKS["metrics"].Params.model_validate(params, context=FROM_FILE)


def test_promql_needs_a_prometheus() -> None:
    metrics = CHECKS["metrics"]
    params = metrics.Params.model_validate({"rows": [OWN | {"max": 1}]})
    assert metrics.plan_errors(params, {"target": {"name": "lab", "kind": "lab"}}) == []
    assert metrics.plan_errors(params, {"target": {"name": "x", "kind": "hosts", "prometheus": "http://p"}}) == []
    [error] = metrics.plan_errors(params, {"target": {"name": "x", "kind": "hosts"}})
    assert "names no prometheus to ask for queue" in error


def failed(run: Run, probe: str, since: float, subject: str | None = None) -> Run:
    """No look of the probe measures anything from then on."""
    run.samples = [
        s | {"ok": False, "error": "timed out"}
        if s["probe"] == probe and s["mono"] > since and subject in (None, s["subject"])
        else s
        for s in run.samples
    ]
    return run


@pytest.mark.parametrize(
    ("probe", "metrics"),
    [("gpu", ("GPU memory", "GPU temperature")), ("vllm", ("prefix hit rate", "swapped requests"))],
)
def test_what_was_not_read_all_the_time_is_inconclusive(tmp_path: Path, probe: str, metrics: tuple[str, ...]) -> None:
    for number, since in enumerate((0.0, runs.START + 15, runs.HIT, runs.RECOVERY)):
        found = minimum(failed(runs.healthy(), probe, since), tmp_path / str(number))
        assert {row(found, metric)["verdict"] for metric in metrics} == {"inconclusive"}
        assert found.verdict is Verdict.INCONCLUSIVE


def test_one_engine_that_was_not_read_is_enough(tmp_path: Path) -> None:
    found = minimum(failed(runs.healthy(), "vllm", runs.HIT, "replica-2"), tmp_path)
    assert "replica-2 did not tell it for" in row(found, "swapped requests")["reason"]
    assert row(found, "prefix hit rate")["verdict"] == "inconclusive"


def test_what_was_seen_to_be_too_much_stays_so(tmp_path: Path) -> None:
    run = failed(runs.healthy(), "gpu", runs.HIT)
    for s in run.samples:
        if s["probe"] == "gpu" and s["ok"]:
            for gpu in s["values"]["gpus"].values():
                gpu["temperature_c"] = 99.0
    assert row(minimum(run, tmp_path), "GPU temperature")["verdict"] == "fail"
