"""Damaged, changed and missing files: one clear line or an inconclusive run, never a crash and never a pass."""

import functools
import json
import random
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drills import evidence, present, verdict
from drills.checks import validity
from drills.checks.base import named
from drills.errors import EXIT_USAGE, DrillError
from drills.model import Restored, RunVerdict, Verdict
from drills.report import run as report
from tests.unit import retries, runs
from tests.unit.runs import FAULT, HIT, RECOVERY, START, Run

FILES = ("journal.jsonl", "requests.ndjson", "ledger.ndjson", "samples.ndjson", "plan.json", "verdict.json")
DEEP = b"[" * 100_000 + b"\n"


# ---- whatever is done to the files --------------------------------------------------------------------


@functools.cache
def stored(kind: str) -> dict[str, bytes]:
    """Return the files of a run that fails by far, or of one that passes, thin enough to be judged in no time.

    Of a `cut` link, whose rule counts what no ledger sees, all the checks on retries pass.
    """
    run = cut_off() if kind == "cut" else runs.healthy(rate=6.0)
    run.plan["hash"] = evidence.plan_hash(run.plan)
    if kind == "fail":
        run.fail(run.between(HIT, runs.END)[::2])
        run.recount()
    with tempfile.TemporaryDirectory() as name:
        folder = run.write(Path(name))
        assert verdict.write(folder).verdict == ("fail" if kind == "fail" else "pass")
        return {file: (folder / file).read_bytes() for file in FILES}


def cut_off() -> Run:
    """Return a run in which a link is cut, some are saved by a retry and some by the smaller model."""
    run = retries.cut_link(retries.quiet_service(6.0), swallowed=8)
    retries.degrade(run.between(HIT + 3, HIT + 5))
    checks: dict[str, Any] = {"retried": {}, "retry_storm": {}, "degraded": {"of": "hit"}, "sessions": {}}
    run.plan["experiment"]["checks"] = [{"check": name, "params": params} for name, params in checks.items()]
    run.plan["target"]["degradation"] = {"fallback_models": ["lab-small"], "cached": None}
    run.plan["phases"]["recovery_from"] = "off"
    run.recount()
    return run


GARBAGE: list[Any] = [
    None, True, False, 0, -1, 3, 1.5, -1e9, 1e308, 10**30, "", "x", "\ud800", "\x1b[31m", "2026-13-45", [], [1], [None],
    [{}], {}, {"a": None}, {"name": 1}, float("nan"), float("inf"),
]  # fmt: skip


def places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the path of everything inside a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [at, *(place for key, inner in items for place in places(inner, (*at, key)))]


def changed(value: Any, rng: random.Random) -> Any:
    """Return the value with one thing in it replaced or taken away."""
    place = rng.choice(places(value))
    if not place:
        return rng.choice(GARBAGE)
    inner = value
    for key in place[:-1]:
        inner = inner[key]
    if rng.random() < 0.4:
        del inner[place[-1]]
    else:
        inner[place[-1]] = rng.choice(GARBAGE)
    return value


def damaged(name: str, content: bytes, rng: random.Random) -> bytes:
    """Return the file as something spoilt it."""
    way = rng.choice(("bytes", "cut", "hole", "value", "value", "value", "value", "line", "twice"))
    if way == "bytes":
        at = rng.randrange(len(content))
        return content[:at] + rng.randbytes(rng.randint(1, 40)) + content[at + rng.randint(0, 40) :]
    if way == "cut":
        return content[: rng.randrange(len(content))]
    if way == "hole":
        at = rng.randrange(len(content))
        return content[:at] + content[at + rng.randint(1, 4000) :]
    if name in ("plan.json", "verdict.json"):
        return json.dumps(changed(json.loads(content), rng)).encode()
    lines = content.splitlines(keepends=True)
    at = rng.randrange(len(lines))
    if way == "value":
        lines[at] = json.dumps(changed(json.loads(lines[at]), rng)).encode() + b"\n"
    elif way == "twice":
        lines.insert(at, lines[rng.randrange(len(lines))])
    else:
        lines[at] = rng.choice(
            [b"null\n", b"[]\n", b"{}\n", b"5\n", b'"x"\n', b'{"values":"x"}\n', b"\n", b"\0\n", DEEP]
        )
    return b"".join(lines)


def look(act: Callable[[], object]) -> str:
    """Return the one line of the error, empty without one; anything but a DrillError escapes."""
    try:
        act()
    except DrillError as error:
        said, code = str(error), error.exit_code
    else:
        return ""
    assert (code, "\n" in said) == (EXIT_USAGE, False), said
    return said


@settings(max_examples=100, deadline=None)
@given(kind=st.sampled_from(["fail", "pass", "cut"]), seed=st.integers(0, 2**32))
def test_no_damage_crashes_or_makes_a_pass(kind: str, seed: int) -> None:
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as name:
        reports = Path(name)
        folder = reports / "runs" / f"20261130T000000Z-pod-kill-{runs.RUN}"
        folder.mkdir(parents=True)
        for file, content in stored(kind).items():
            (folder / file).write_bytes(content)
        for file in rng.sample(FILES, rng.choice((1, 1, 2))):
            (folder / file).write_bytes(damaged(file, (folder / file).read_bytes(), rng))
        look(lambda: present.run(str(folder), reports))
        if seed % 4 == 0:  # figures take their time
            look(lambda: report.render(folder))
        error = look(lambda: verdict.write(folder))
        assert (folder / "verdict.json").is_file() == (not error)
        if not error:
            found = json.loads((folder / "verdict.json").read_bytes())
            assert kind != "fail" or found["verdict"] != "pass"
            assert not [row for row in found["checks"] if "broke" in row["detail"]]


# ---- each kind of damage ------------------------------------------------------------------------------


def judged(run: Run, folder: Path, spoil: Callable[[Path], object] = lambda _: None) -> RunVerdict:
    """Judge the run as it is, after its files were spoilt."""
    written = run.write(folder)
    spoil(written)
    return verdict.judge(written)


def loop(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.name)


def become_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def rewrite(change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    return lambda path: (path.write_bytes(change(path.read_bytes())), None)[1]


SPOILS: dict[str, Callable[[Path], object]] = {
    "missing": Path.unlink,
    "empty": rewrite(lambda _: b""),
    "short": rewrite(lambda c: c[: len(c) // 2]),
    "torn in the middle": rewrite(lambda c: c[:5000] + c[5040:]),
    "hole": rewrite(lambda c: b"".join(c.splitlines(keepends=True)[:100] + c.splitlines(keepends=True)[400:])),
    "folder": become_folder,
    "symlink loop": loop,
    "null": rewrite(lambda c: b"null\n" + c),
    "list": rewrite(lambda c: c + b"[]\n"),
    "other shape": rewrite(lambda c: c + b'{"values":"x"}\n'),
    "deep": rewrite(lambda c: c + DEEP),
}


@pytest.mark.parametrize("name", ["samples.ndjson", "requests.ndjson", "ledger.ndjson"])
@pytest.mark.parametrize("way", SPOILS)
def test_a_file_that_is_not_whole_is_inconclusive(tmp_path: Path, name: str, way: str) -> None:
    found = judged(runs.healthy(), tmp_path, lambda folder: SPOILS[way](folder / name))
    assert (found.verdict, found.exit_code) == (Verdict.INCONCLUSIVE, 2)
    assert name in found.reason or "have a record" in found.reason
    report.render(tmp_path)


@pytest.mark.parametrize("name", ["samples.ndjson", "journal.jsonl"])
def test_a_torn_last_line_alone_is_tolerated(tmp_path: Path, name: str) -> None:
    found = judged(runs.healthy(), tmp_path, lambda folder: rewrite(lambda c: c + b'{"mono": 1')(folder / name))
    assert found.verdict is Verdict.PASS


@pytest.mark.parametrize("probe", ["alerts", "router", "load"])
@pytest.mark.parametrize("when", [(START - 1, START + 11), (FAULT + 30, FAULT + 41), (runs.END - 11, runs.END)])
def test_a_probe_that_was_silent_is_inconclusive(tmp_path: Path, probe: str, when: tuple[float, float]) -> None:
    run = runs.healthy()
    run.samples = [s for s in run.samples if s["probe"] != probe or not when[0] < s["mono"] < when[1]]
    found = judged(run, tmp_path)
    assert found.verdict is Verdict.INCONCLUSIVE
    assert f"probe {probe} of" in found.reason


@pytest.mark.parametrize(("asked", "gap_s", "verdict"), [
    (True, 35.0, Verdict.INCONCLUSIVE), (True, 25.0, Verdict.PASS), (False, 60.0, Verdict.PASS),
])  # fmt: skip
def test_looks_at_the_gpus_are_rarer_and_matter_to_one_check(
    tmp_path: Path, asked: bool, gap_s: float, verdict: Verdict
) -> None:
    run = runs.healthy()
    if not asked:
        checks = run.plan["experiment"]["checks"]
        run.plan["experiment"]["checks"] = [check for check in checks if check["check"] != "metrics"]
    gap = (FAULT + 30, FAULT + 30 + gap_s)
    run.samples = [s for s in run.samples if s["probe"] != "gpu" or not gap[0] < s["mono"] < gap[1]]
    reason = judged(run, tmp_path).reason
    silent = "probe gpu of lab is silent" in reason
    assert silent is (verdict is Verdict.INCONCLUSIVE), reason


def test_a_probe_may_keep_its_hands_off_during_a_deed(tmp_path: Path) -> None:
    run = runs.healthy()
    run.samples = [s for s in run.samples if s["probe"] != "router" or not HIT < s["mono"] < HIT + 18]
    for event in run.events:
        if event["event"] == "inject.end":
            event["mono"] = HIT + 12
    assert judged(run, tmp_path).verdict is Verdict.PASS


def test_heartbeats_without_cpu_are_inconclusive_in_words(tmp_path: Path) -> None:
    run = runs.healthy()
    for sample in run.samples:
        if sample["probe"] == "load" and sample["mono"] > FAULT:
            del sample["values"]["cpu"]
    assert "100 of 170 heartbeats of the generator do not tell its CPU" in judged(run, tmp_path).reason


@pytest.mark.parametrize("content", [None, b"", b"[" * 100_000 + b"\n", b"null\n", b"{}\n", b'{"n":1}\n'])
def test_a_journal_that_cannot_be_read_is_a_bad_file(tmp_path: Path, content: bytes | None) -> None:
    folder = runs.healthy().write(tmp_path)
    verdict.write(folder)
    (folder / "journal.jsonl").unlink() if content is None else (folder / "journal.jsonl").write_bytes(content)
    for act in (lambda: verdict.write(folder), lambda: report.render(folder), lambda: evidence.read(folder)):
        assert "journal" in look(act)
    assert not (folder / "verdict.json").exists()


# ---- what was not looked at ---------------------------------------------------------------------------

#: Parameters with which each check fails on the run below.
STRICT: dict[str, dict[str, Any]] = {
    "failover": {"within": 1.0}, "latency": {}, "availability": {}, "replica_restart": {"within": 5.0},
    "rejoin": {"within": 5.0}, "alert": {"name": "VllmReplicaDown", "within": 1.0, "resolves_within": 40.0},
    "streams": {"max_cut": 0}, "recovery": {"within": 10.0}, "accounted": {}, "untouched": {},
    "cache_recovery": {"within": 1.0}, "engine_vs_client": {"max": 0.001}, "health_honest": {"within": 5.0},
    "metrics": {"preset": "serving-minimum", "thresholds": {
        "gpu_memory_max": 0.5, "gpu_temperature_max": 20.0, "prefix_hit_rate_min": 0.99, "qps_change": 0.01}},
    "retried": {"min_share": 0.99}, "retry_storm": {}, "sessions": {}, "goodput": {},
}  # fmt: skip
#: Rows of the table that need a longer run, or somebody who names a query.
NEVER = {"GPU utilisation", "business metric"}


def everything_fails() -> Run:
    """Return a run in which every check and every metric fails, and no gate is broken."""
    run = runs.healthy(rate=6.0)
    middle = run.between(HIT + 10, HIT + 40)
    retries.again(run, middle[1::2], 1)
    run.fail(lost := middle[::2])
    for record in lost:
        record["attempts"][-1] |= {"outcome": "error", "error": "refused", "first_token": None}
    run.fail(lost[:1], "hung", None)
    refused = {"status": None, "first_byte": None, "last_byte": None, "close": "refused"}
    by_victim = {record["attempts"][0]["id"] for record in lost if record["intended"] < runs.READY}
    for line in run.ledger:
        if line["id"] in by_victim:
            line |= refused | {"replica": runs.VICTIM, "end": line["start"] + 0.001}
        if line["replica"] == runs.VICTIM and runs.BACK < line["start"] < runs.BACK + 8:
            line["replica"] = "replica-0"
    for sample in run.samples:
        if sample["probe"] == "health" and HIT < sample["mono"] < runs.READY:
            sample["values"]["status"] = 200
        if sample["probe"] == "vllm" and sample["subject"] == "replica-0" and sample["mono"] > HIT:
            sample["values"]["preemptions"] = 500
    touched = {"replica": "replica-0", "uid": "u-replica-0", "by": "supervisor", "source": "supervisor"}
    run.tell(HIT + 3, "replica", change="started", pid=7, start=7, restarts=1, **touched)
    run.plan["experiment"]["checks"] = [{"check": name, "params": params} for name, params in STRICT.items()]
    run.recount()
    return run


def answers(ev: evidence.Evidence) -> dict[str, Verdict]:
    """Return the verdict of every check, and of every row of the table of metrics."""
    found = verdict.of(ev).checks
    rows = [row for check in found for row in check.detail.get("rows", ())]
    return {check.check: check.verdict for check in found} | {row["metric"]: Verdict(row["verdict"]) for row in rows}


Samples = list[dict[str, Any]]


def failed(sample: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in sample.items() if key != "values"} | {"ok": False, "error": "timed out"}


def emptied(sample: dict[str, Any], value: object) -> dict[str, Any]:
    return sample | ({"values": dict.fromkeys(sample["values"], value)} if sample["ok"] else {})


#: What becomes of the samples of one probe.
WAYS: dict[str, Callable[[Samples], Samples]] = {
    "none": lambda _: [],
    "all failed": lambda found: [failed(s) for s in found],
    "failed from the injection on": lambda found: [failed(s) if s["mono"] > HIT else s for s in found],
    "one in twenty": lambda found: found[::20],
    "at the begin only": lambda found: [s for s in found if s["mono"] < START + 20],
    "no values": lambda found: [s | {"values": {}} if s["ok"] else s for s in found],
    "null values": lambda found: [emptied(s, None) for s in found],
    "negative values": lambda found: [emptied(s, -1e308) for s in found],
    "6 s lost after the injection": lambda found: [s for s in found if not HIT + 1 < s["mono"] < HIT + 7],
    "10 s lost in the middle": lambda found: [s for s in found if not HIT + 9 < s["mono"] < HIT + 19],
}
OF_ONE = [(probe, None) for probe in ("alerts", "replicas", "router", "load", "gpu")]
OF_EACH = [(probe, name) for probe in ("completion", "vllm", "health") for name in (None, "replica-0", runs.VICTIM)]


def test_everything_fails_in_the_run_that_is_damaged(tmp_path: Path) -> None:
    ev = everything_fails().evidence(tmp_path)
    assert validity.reasons(ev) == []
    found = answers(ev)
    assert {name for name, word in found.items() if word is not Verdict.FAIL} == NEVER


@pytest.mark.parametrize(("probe", "subject"), [*OF_ONE, *OF_EACH])
@pytest.mark.parametrize("way", WAYS)
def test_no_look_that_is_missing_makes_a_pass(tmp_path: Path, way: str, probe: str, subject: str | None) -> None:
    run = everything_fails()
    hit = [s for s in run.samples if s["probe"] == probe and subject in (None, s["subject"])]
    kept = [s for s in run.samples if s not in hit]
    run.samples = sorted([*kept, *WAYS[way](hit)], key=lambda s: s["mono"])
    ev = run.evidence(tmp_path)
    better = {name for name, word in answers(ev).items() if word in (Verdict.PASS, Verdict.NOT_JUDGED)} - NEVER
    assert not better or validity.reasons(ev)


ABSENT = {"replicas": None, "load": None, "alerts": None, "gpu": None, "completion": "replica-0", "vllm": "replica-2"}


@pytest.mark.parametrize("probe", ABSENT)
def test_a_probe_that_left_nothing_breaks_the_gate(tmp_path: Path, probe: str) -> None:
    run = runs.healthy()
    run.of("header")[0]["facts"] = {"prometheus": "http://127.0.0.1:18090"}
    name = ABSENT[probe]
    run.samples = [s for s in run.samples if s["probe"] != probe or (name and s["subject"] != name)]
    assert f"probe {probe}{f' of {name}' if name else ''} never looked" in judged(run, tmp_path).reason


@pytest.mark.parametrize("probe", ["replicas", "load", "alerts", "gpu", "vllm"])
def test_looks_that_failed_are_none(tmp_path: Path, probe: str) -> None:
    run = runs.healthy()
    run.samples = [failed(s) if s["probe"] == probe and s["mono"] > RECOVERY else s for s in run.samples]
    assert f"probe {probe} of" in judged(run, tmp_path).reason


# ---- the ledger against the requests -------------------------------------------------------------------

LEDGER: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "id of nobody": (lambda line: line.update(id=f"{runs.RUN}-900-7"), "of no attempt that the client made"),
    "role null": (lambda line: line.update(role=None), "the role is none"),
    "role unknown": (lambda line: line.update(role="x"), "the role is none"),
    "replica null": (lambda line: line.update(replica=None), "the replica is none"),
    "replica unknown": (lambda line: line.update(replica="replica-9"), "the replica is none"),
    "start null": (lambda line: line.update(start=None), "the begin is no time"),
    "start before the run": (lambda line: line.update(start=1.0), "the begin is no time"),
    "start before the request": (lambda line: line.update(start=START), "before the client sent"),
    "close unknown": (lambda line: line.update(close="fine"), "the end is none"),
    "status": (lambda line: line.update(status=-1), "the status is none"),
    "still open": (lambda line: line.update(end=None), "open at once"),
    "backwards": (lambda line: line.update(end=line["start"] - 1), "run backwards"),
}


@pytest.mark.parametrize("name", LEDGER)
def test_a_line_of_the_ledger_that_cannot_be_true_breaks_the_gate(tmp_path: Path, name: str) -> None:
    run, (spoil, said) = runs.healthy(), LEDGER[name]
    spoil(run.ledger[1900])
    reason = judged(run, tmp_path).reason
    assert reason.startswith("ledger.ndjson: 1 line: ")
    assert said in reason


def test_a_line_that_took_the_place_of_another_breaks_the_gate(tmp_path: Path) -> None:
    run = runs.healthy()
    run.ledger[1900] = dict(run.ledger[300])
    assert "2 lines: are there more than once" in judged(run, tmp_path / "a").reason
    run = runs.healthy()
    run.ledger[1900] = run.ledger[1900] | {"id": run.ledger[300]["id"]}
    assert "1 answered arrivals have no attempt in it" in judged(run, tmp_path / "b").reason


def gone_at(run: runs.Run, at: int) -> float:
    """Take a line out of the ledger; returns when its attempt began."""
    line = run.ledger.pop(at)
    run.recount()
    return float(line["start"])


@pytest.mark.parametrize(("since", "until", "good"), [(-1.0, 1.0, True), (-1.0, None, True), (1.0, 2.0, False)])
def test_what_a_new_replica_answered_before_its_proxy_stood_is_not_missed(
    tmp_path: Path, since: float, until: float | None, good: bool
) -> None:
    run = runs.healthy()
    at = gone_at(run, 1900)
    times = {"since_mono": at + since, "until_mono": None if until is None else at + until}
    run.tell(runs.END - 1.0, "ledger.gap", replica=runs.VICTIM, **times)
    run.events.sort(key=lambda event: event["mono"])
    assert ("answered arrivals have no attempt" in judged(run, tmp_path).reason) is not good


@pytest.mark.parametrize(("wrong_s", "good"), [(0.02, True), (0.005, False)])
def test_an_attempt_may_begin_too_early_by_what_its_clock_may_be_wrong(
    tmp_path: Path, wrong_s: float, good: bool
) -> None:
    run = runs.healthy()
    run.ledger[1900]["start"] -= 0.015
    run.of("collected")[0]["clock_error_s"] = wrong_s
    assert ("begin before the client sent" in judged(run, tmp_path).reason) is not good


@pytest.mark.parametrize("other", [None, "ffffffff-900-0"])
def test_an_attempt_that_lost_its_name_breaks_the_gate(tmp_path: Path, other: str | None) -> None:
    run = runs.healthy()
    run.ledger[1900]["id"] = other
    assert "1 answered arrivals have no attempt in it" in judged(run, tmp_path / "a").reason
    run = runs.healthy()
    run.ledger += [line | {"id": other, "start": line["start"] + 1e-4 * n} for n, line in enumerate(run.ledger[:100])]
    run.recount()
    assert "100 lines: no request of the run" in judged(run, tmp_path / "b").reason


def test_other_peoples_requests_are_in_the_ledger_of_a_service(tmp_path: Path) -> None:
    run = runs.healthy()
    run.plan["target"]["kind"] = "hosts"
    run.ledger += [line | {"id": None} for line in run.ledger[300:400]]
    run.recount()
    assert judged(run, tmp_path).verdict is Verdict.PASS


# ---- what was hit, and the proof ------------------------------------------------------------------------


@pytest.mark.parametrize("victims", [[], ["replica-2"], ["nobody"], [runs.VICTIM, "replica-2"]])
def test_victims_that_nobody_aimed_at_prove_nothing(tmp_path: Path, victims: list[str]) -> None:
    run = runs.healthy()
    run.of("inject.hit")[0]["victims"] = victims
    assert "pod-kill is not proven on: replica-1 was aimed at" in judged(run, tmp_path).reason


def test_a_deed_that_does_not_tell_its_victims_had_those_of_the_receipt(tmp_path: Path) -> None:
    run = everything_fails()
    run.of("inject.hit")[0]["victims"] = []
    ev = run.evidence(tmp_path)
    assert set(ev.victims) == {runs.VICTIM}
    assert answers(ev)["failover"] is Verdict.FAIL


@pytest.mark.parametrize("proof", ["proof.on", "proof.off"])
def test_a_proof_that_says_nothing_is_none(tmp_path: Path, proof: str) -> None:
    nothing: list[dict[str, Any]] = [{"evidence": [{}]}, {"evidence": [*runs.SEEN, {}]}, {"bystanders_ok": None}]
    for number, spoilt in enumerate(nothing):
        run = runs.healthy()
        run.of(proof)[0].update(spoilt)
        assert f"not proven {proof.removeprefix('proof.')}" in judged(run, tmp_path / str(number)).reason


def test_that_others_were_hit_fails_who_asks_for_it_and_voids_the_run_of_who_does_not(tmp_path: Path) -> None:
    run = runs.healthy()
    run.of("proof.on")[0]["bystanders_ok"] = False
    told = judged(run, tmp_path / "told")
    assert told.verdict is Verdict.FAIL
    assert [row.check for row in told.checks if row.verdict is Verdict.FAIL] == ["untouched"]
    run.plan["experiment"]["checks"] = [one for one in runs.ALL_CHECKS if named(one)[0] != "untouched"]
    assert "others were hit as well" in judged(run, tmp_path / "untold").reason


# ---- what is left of receipts ---------------------------------------------------------------------------

LOST: dict[str, Callable[[Run], object]] = {
    "empty receipt": lambda run: run.of("receipt")[0].update(receipt={}),
    "victims": lambda run: run.of("receipt")[0]["receipt"].update(victims=7),
    "revert": lambda run: run.of("revert.end")[0].update(restored=["clean"]),
}


@pytest.mark.parametrize("name", LOST)
def test_what_a_damaged_receipt_left_behind_is_unknown(tmp_path: Path, name: str) -> None:
    run = runs.healthy()
    LOST[name](run)
    found = judged(run, tmp_path)
    assert (found.verdict, found.restored, found.exit_code) == (Verdict.INCONCLUSIVE, Restored.UNKNOWN, 5)


def _hit(run: Run, mono: float) -> None:
    next(e for e in run.events if e["event"] == "inject.hit")["data"]["at_mono"] = mono


UNTRUE: dict[str, Callable[[Run], object]] = {
    "not done": lambda run: run.requests[900].update(done=False),
    "no usage": lambda run: run.requests[900].update(tokens=None),
    "too few tokens": lambda run: run.requests[900].update(tokens=31),
    "no status": lambda run: run.requests[900].update(status=None),
    "no attempts": lambda run: run.requests[900].update(attempts=[]),
    "no finish": lambda run: run.requests[900].update(finish=None),
    "failed attempt": lambda run: run.requests[900]["attempts"][0].update(outcome="error"),
    "error": lambda run: run.requests[900].update(error="reset"),
    "before intended": lambda run: run.requests[900].update(first_token=run.requests[900]["intended"] - 0.1),
    "before sent": lambda run: run.requests[900].update(sent=run.requests[900]["first_token"] + 0.1),
    "lag": lambda run: run.requests[900].update(lag=0.5),
    "end": lambda run: run.requests[900].update(end=run.requests[900]["last_token"] - 0.1),
    "far away": lambda run: run.requests[900].update(intended=1e308),
}


@pytest.mark.parametrize("name", UNTRUE)
def test_a_record_that_contradicts_itself_is_inconclusive(tmp_path: Path, name: str) -> None:
    run = runs.healthy()
    UNTRUE[name](run)
    found = judged(run, tmp_path)
    assert found.verdict is Verdict.INCONCLUSIVE
    assert "1 record contradicts itself" in found.reason


def test_a_service_that_never_tells_usage_contradicts_nothing(tmp_path: Path) -> None:
    run = runs.healthy()
    for record in run.requests:
        record["tokens"] = None
    assert judged(run, tmp_path).verdict is Verdict.PASS


@pytest.mark.parametrize("time", [float("nan"), float("inf"), 1e308, -1.0])
def test_a_time_that_is_none_is_inconclusive(tmp_path: Path, time: float) -> None:
    run = runs.healthy()
    _hit(run, time)
    assert "its time is no time of the run" in judged(run, tmp_path / "a").reason

    def spoil(folder: Path) -> None:
        path = folder / "journal.jsonl"
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        next(line for line in lines if line["event"] == "inject.hit")["mono"] = time
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))

    found = judged(runs.healthy(), tmp_path / "b", spoil)
    assert found.verdict is Verdict.INCONCLUSIVE
    assert "its time is no time of the run" in found.reason


@pytest.mark.parametrize("seen", [None, []])
@pytest.mark.parametrize("proof", ["proof.on", "proof.off"])
def test_a_proof_without_evidence_proves_nothing(tmp_path: Path, proof: str, seen: object) -> None:
    run = runs.healthy()
    run.of(proof)[0]["evidence"] = seen
    assert "there is no evidence with that word" in judged(run, tmp_path).reason


def test_a_plan_that_was_changed_is_inconclusive(tmp_path: Path) -> None:
    run = runs.healthy()
    run.plan["hash"] = evidence.plan_hash(run.plan)
    assert judged(run, tmp_path / "a").verdict is Verdict.PASS
    run.plan["experiment"]["checks"] = run.plan["experiment"]["checks"][3:]
    assert "its hash is another one" in judged(run, tmp_path / "b").reason
    plan = json.dumps(run.plan | {"seed": 8})
    said = judged(runs.healthy(), tmp_path / "c", lambda folder: (folder / "plan.json").write_text(plan)).reason
    assert "plan.json is not the plan that the journal begins with" in said


# ---- the verdict that is shown is that of the files ---------------------------------------------------


def test_a_verdict_of_other_files_is_not_shown(tmp_path: Path) -> None:
    folder = runs.healthy().write(tmp_path)
    assert any("not there; `drill judge` writes it" in line for line in present.run(str(folder), tmp_path))
    verdict.write(folder)
    assert present.run(str(folder), tmp_path)[1].startswith("verdict pass")
    assert not any("drill judge" in line for line in present.run(str(folder), tmp_path))
    (folder / "samples.ndjson").unlink()
    shown = present.run(str(folder), tmp_path)
    assert shown[1].startswith("verdict inconclusive")
    assert any("verdict.json says something else than these files" in line for line in shown)
    assert "verdict.json says something else" in report.render(folder)[report.POSTMORTEM].decode().replace("\\", "")


@pytest.mark.parametrize("content", ["[]", '{"verdict":"pass"}', "{", "null", '{"checks":null}'])
def test_a_damaged_verdict_is_said(tmp_path: Path, content: str) -> None:
    folder = runs.healthy().write(tmp_path)
    verdict.write(folder)
    (folder / "verdict.json").write_text(content)
    assert any("verdict.json says something else" in line for line in present.run(str(folder), tmp_path))
    assert "delete it and run `drill judge` again" in look(lambda: report.render(folder))


def test_nothing_hostile_reaches_the_terminal(tmp_path: Path) -> None:
    run = runs.healthy()
    run.of("end")[0].update(status="broken", reason="\x1b[31mred\ud800")
    lines = present.run(str(run.write(tmp_path)), tmp_path)
    assert "\n".join(lines).encode().isascii() or "\x1b" not in "".join(lines)
    verdict.write(tmp_path)


# ---- words --------------------------------------------------------------------------------------------


def test_reasons_are_words(tmp_path: Path) -> None:
    run = runs.healthy()
    run.of("load.stopped")[0].update(drawn=None, outcomes=None)
    reason = judged(run, tmp_path).reason
    assert "never said how many arrivals it drew" in reason
    assert not [word for word in ("None", "nan", "Error", "{") if word in reason]
