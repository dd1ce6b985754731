"""The known pitfalls: shipped as data, met or not by what checks show, and the rest are people's answers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from markdown_it import MarkdownIt

from drills import yamlfile
from drills.checks import CHECKS, serving_minimum
from drills.report import pitfalls
from drills.report.digest import Digest
from drills.report.pitfalls import Answers, Found, answers, begin, go_through, shipped
from tests.unit import runs
from tests.unit.digests import digest, row, ttft

#: The pitfalls of the issue, by a word of each.
NAMED = (
    "quantised", "tokenizer", "INT8", "one request", "KV cache", "GPU utilisation", "Large batches", "Speculative",
    "temperature", "export", "upgraded", "CUDA", "Several models", "Polling", "sliding window",
)  # fmt: skip


def of(name: str, runs: list[Digest], earlier: list[Digest] | None = None) -> Found:
    found = go_through(runs, runs if earlier is None else [*earlier, *runs], Answers())
    return next(one for one in found if one.pitfall.id == name)


def metrics(metric: str, verdict: str, value: Any = 1.0, **more: Any) -> Any:
    inner = {
        "metric": metric,
        "verdict": verdict,
        "value": value,
        "bound": 85.0,
        "unit": "°C",
        "side": "at most",
    } | more
    return row("metrics", verdict, 0, 0, "count", detail={"rows": [inner]})


# ---- the list --------------------------------------------------------------------------------------------


def test_there_are_fifteen_as_they_are_known() -> None:
    titles = [one.title for one in shipped()]
    assert len(titles) == len({one.id for one in shipped()}) == 15
    for word, title in zip(NAMED, titles, strict=True):
        assert word.lower() in title.lower()


def test_every_check_that_a_pitfall_names_is_there(tmp_path: Path) -> None:
    run = runs.healthy(6.0)
    watched = serving_minimum.watched(run.evidence(tmp_path))
    assert watched is not None
    rows = {one.metric for one in serving_minimum.rows(watched, serving_minimum.Thresholds())}
    for rule in (rule for one in shipped() for rule in one.checks):
        assert rule.check in CHECKS
        assert rule.row is None or rule.row in rows
        assert CHECKS[rule.check].Params.model_fields.keys() >= rule.params.keys()


def test_the_texts_are_markdown_without_surprises() -> None:
    for one in shipped():
        for text in (one.why, one.find, one.question):
            html = str(MarkdownIt("gfm-like", {"html": True, "linkify": False}).render(text))
            assert set(re.findall(r"</?([a-z0-9]+)", html)) <= {"p", "code", "em"}
        assert one.question.endswith("?")


# ---- what the runs show ----------------------------------------------------------------------------------


def test_a_row_that_fails_meets_a_pitfall_and_the_run_is_the_evidence() -> None:
    found = of("gpu-temperature-unwatched", [digest(1, "20261101T020000Z", metrics("GPU temperature", "fail", 91.0))])
    assert found.met is True
    assert found.evidence == (
        "`metrics: GPU temperature` of `pod-kill`, "
        "[00000001](../runs/20261101T020000Z-pod-kill-00000001/): 91 °C (at most 85 °C)",
    )  # fmt: skip


def test_one_run_that_meets_it_outweighs_others_that_do_not() -> None:
    good, bad = (digest(n, f"2026110{n}T020000Z", metrics("GPU temperature", w)) for n, w in ((1, "pass"), (2, "fail")))
    found = of("gpu-temperature-unwatched", [good, bad])
    assert (found.met, len(found.evidence)) == (True, 1)
    assert "00000002" in found.evidence[0]
    assert of("gpu-temperature-unwatched", [good]).met is False


@pytest.mark.parametrize("verdict", ["not judged", "inconclusive"])
def test_what_was_not_judged_shows_nothing(verdict: str) -> None:
    assert of("gpu-temperature-unwatched", [digest(1, "x", metrics("GPU temperature", verdict))]).met is None


def test_a_run_that_is_not_to_be_trusted_shows_nothing() -> None:
    hot = metrics("GPU temperature", "fail")
    assert of("gpu-temperature-unwatched", [digest(1, "x", hot, verdict="inconclusive")]).met is None
    assert of("gpu-temperature-unwatched", [digest(1, "x", hot, status="stopped")]).met is None


def test_requests_that_failed_are_no_large_batch() -> None:
    run = digest(1, "x", metrics("p99 max gap", "fail", "inf", unit="s"))
    assert of("large-batches-online", [run]).met is None


def test_latency_of_a_single_user_is_no_latency_under_load() -> None:
    alone = {"arrivals": {"kind": "users", "users": 1}}
    many = {"arrivals": {"kind": "users", "users": 40}}
    slow = ttft("inf", None, None, "fail")
    assert of("one-request-latency", [digest(1, "x", slow, load=alone)]).met is None
    assert of("one-request-latency", [digest(1, "x", slow, load=many)]).met is False


def test_an_upgrade_counts_by_the_first_comparable_run_after_it() -> None:
    slow, fast = ttft(0.3, 0.25, 0.4), ttft(0.1, 0.09, 0.12)
    old, new = {"vllm": "0.31.0"}, {"vllm": "0.32.0"}
    before = digest(1, "20261001T020000Z", fast, versions=old)
    worse = digest(2, "20261101T020000Z", slow, versions=new)
    same = digest(3, "20261101T020000Z", fast, versions=new)
    assert of("upgrade-without-regression", [worse], [before]).met is True
    found = of("upgrade-without-regression", [same], [before])
    assert found.met is False
    told = "vllm `0.31.0` → `0.32.0`: `availability` of `pod-kill` is not worse beyond chance"
    assert found.evidence[0].startswith(told)
    kept = digest(4, "20261201T020000Z", fast, versions=new)
    assert of("upgrade-without-regression", [kept], [worse]).met is None


def test_evidence_of_many_runs_is_cut_and_the_last_one_is_kept() -> None:
    for word, shown in (("fail", 3), ("pass", 1)):
        runs = [digest(n, f"2026110{n}T020000Z", metrics("GPU temperature", word)) for n in range(1, 8)]
        *evidence, more = of("gpu-temperature-unwatched", runs).evidence
        assert (len(evidence), more) == (shown, f"and {7 - shown} more")
        assert "00000007" in evidence[-1]


# ---- what people say -------------------------------------------------------------------------------------


def test_the_file_is_begun_with_every_question_and_never_written_again(tmp_path: Path) -> None:
    path = begin(tmp_path)
    assert path is not None
    assert list(yamlfile.read(path).data["pitfalls"]) == [one.id for one in shipped()]
    assert answers(tmp_path).problems == ()
    assert all(answers(tmp_path).of(one.id).answer == "unknown" for one in shipped())
    path.write_text("pitfalls: {int8-small-batches: {answer: yes, by: ada, date: 2026-11-30, note: at 16}} # mine\n")
    assert begin(tmp_path) is None
    assert path.read_text().endswith("# mine\n")
    given = answers(tmp_path).of("int8-small-batches")
    assert (given.answer, given.by, given.date, given.note) == ("yes", "ada", "2026-11-30", "at 16")
    assert pitfalls.said(given) == "answered **yes** by ada, 2026-11-30: at 16"
    assert pitfalls.said(answers(tmp_path).of("tokenizer-differs")) == ""


@pytest.mark.parametrize(("written", "meant"), [("true", "yes"), ("'no'", "no"), ("~", "unknown"), ("false", "no")])
def test_yes_and_no_in_other_spellings(tmp_path: Path, written: str, meant: str) -> None:
    (tmp_path / "pitfalls.yaml").write_text(f"pitfalls: {{cuda-not-pinned: {{answer: {written}}}}}\n")
    found = answers(tmp_path)
    assert (found.of("cuda-not-pinned").answer, found.problems) == (meant, ())


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("pitfalls: {cuda-not-pinned: {answer: perhaps}}", "cuda-not-pinned: answer is not yes, no or unknown"),
        ("pitfalls: {cuda-not-pinned: {answer: [yes]}}", "cuda-not-pinned: answer is not yes, no or unknown"),
        ("pitfalls: {cuda-not-pinned: []}", "cuda-not-pinned: answer is not yes, no or unknown"),
        ("pitfalls: {cuda: {answer: yes}}", "cuda: is none of the pitfalls"),
        ("pitfalls: 3", "holds no map `pitfalls`"),
        ("pitfalls: {a: 1, a: 2}", ":1:"),
        ("", "is empty"),
    ],
)
def test_what_is_no_answer_is_named_and_counts_as_none(tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / "pitfalls.yaml").write_text(text)
    found = answers(tmp_path)
    assert found.of("cuda-not-pinned").answer == "unknown"
    assert len(found.problems) == 1
    assert found.problems[0].startswith("pitfalls.yaml:")
    assert problem in found.problems[0]


def test_no_file_is_no_problem(tmp_path: Path) -> None:
    assert answers(tmp_path) == Answers()
