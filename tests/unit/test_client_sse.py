"""Answers as events, and what they amount to."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drills.load.client import judge
from drills.load.sse import Answer
from drills.model import Outcome
from tests.load_engine import event, tail, usage

DONE = b"data: [DONE]\n\n"


def stream(tokens: int = 8, model: str = "lab-chat") -> bytes:
    deltas = [event(model, f"t{n} ", "length" if n == tokens - 1 else None) for n in range(tokens)]
    return event(model) + b"".join(deltas) + tail(model, tokens)


def read(data: bytes) -> Answer:
    answer = Answer()
    answer.feed(data, 1.0)
    answer.close(2.0)
    return answer


def verdict(data: bytes, asked: int = 8) -> tuple[Outcome, str | None, str]:
    return judge(read(data), asked, ("lab-small",))


@given(cuts=st.lists(st.integers(0, 5000), max_size=40), crlf=st.booleans())
def test_an_answer_reads_the_same_however_it_is_cut(cuts: list[int], crlf: bool) -> None:
    data = stream().replace(b"\n", b"\r\n") if crlf else stream()
    edges = sorted({0, len(data), *(cut % len(data) for cut in cuts)})
    answer = Answer()
    for at, (a, b) in enumerate(itertools.pairwise(edges)):
        answer.feed(data[a:b], float(at))
    assert answer.done
    assert answer.finish == "length"
    assert answer.tokens == 8
    assert answer.model == "lab-chat"
    assert answer.numbers() == list(range(8))
    assert len(answer.chunks) == 8
    assert answer.chunks == sorted(answer.chunks)
    assert not answer.duplicated()
    assert judge(answer, 8, ()) == (Outcome.OK, None, "")


def test_a_role_chunk_and_an_empty_delta_are_no_tokens() -> None:
    answer = Answer()
    answer.feed(event("m") + event("m", ""), 1.0)
    assert answer.chunks == []
    answer.feed(event("m", " hi"), 2.0)
    assert answer.chunks == [2.0]


def test_reasoning_counts_as_content() -> None:
    answer = read(event("m", choices=[{"index": 0, "delta": {"reasoning_content": "hm"}, "finish_reason": None}]))
    assert answer.chunks == [1.0]


@pytest.mark.parametrize("text", ['say "hi"', "back\\slash", "é", "\n", '"finish_reason":null', "data: [DONE]"])
def test_content_that_needs_escaping_is_read_right(text: str) -> None:
    answer = read(event("m") + event("m", text) + event("m", " end", "length"))
    assert b"".join(answer.parts).decode() == text + " end"
    assert answer.finish == "length"


def test_spaced_json_is_read_too() -> None:
    loose = b"".join(
        b"data: " + json.dumps(json.loads(line[6:])).encode() + b"\n\n"
        for line in stream().split(b"\n\n")
        if line.startswith(b"data: {")
    )
    assert verdict(loose + DONE)[0] is Outcome.OK


def test_comments_and_other_fields_do_not_matter() -> None:
    data = b": ping\n\nevent: message\nid: 3\nretry: 10\n" + stream().replace(b"data: {", b": x\ndata: {")
    assert verdict(data)[0] is Outcome.OK


def test_several_data_lines_are_one_event() -> None:
    data = event("m", "t0 ").replace(b',"choices"', b',\ndata: "choices"')
    assert read(data).chunks == [1.0]


def test_continuous_usage_is_followed() -> None:
    data = event("m", usage=usage(0)) + event("m", "t0 ", usage=usage(1)) + event("m", "t1 ", usage=usage(2))
    assert read(data).tokens == 2


def test_an_in_band_error_outlives_done() -> None:
    data = stream()[:400] + b'\n\ndata: {"error": {"message": "EngineCore died", "code": 500}}\n\n' + DONE
    broken = event("m") + event("m", "t0 ") + b'data: {"error": {"message": "EngineCore died"}}\n\n' + tail("m", 8)
    for case in (data, broken):
        assert verdict(case)[:2] == (Outcome.ERROR, "sse_error")
        assert "EngineCore died" in verdict(case)[2]


@pytest.mark.parametrize(
    ("cut", "says"),
    [
        (lambda data: data.replace(DONE, b""), "no [DONE]"),
        (lambda data: data.replace(b'"length"', b"null"), "finish_reason None"),
        (lambda data: data.replace(b'"length"', b'"abort"'), "finish_reason abort"),
        (lambda data: data.replace(b'"completion_tokens":8', b'"completion_tokens":5'), "5 of 8 tokens by usage"),
        (lambda data: data.replace(event("lab-chat", "t3 "), b""), "7 of 8 tokens in the text"),
        (lambda data: data.replace(b'"length"', b'"stop"').replace(b"usage", b"other"), "no usage"),
        (lambda data: b"", "no [DONE]"),
    ],
)
def test_what_is_missing_makes_an_answer_truncated(cut: Any, says: str) -> None:
    outcome, error, detail = verdict(cut(stream()))
    assert (outcome, error) == (Outcome.TRUNCATED, None)
    assert says in detail


def test_without_usage_the_reason_length_vouches_for_the_length() -> None:
    assert verdict(stream().replace(b"usage", b"other"))[0] is Outcome.OK


def test_a_fallback_model_and_a_cache_make_it_degraded() -> None:
    assert verdict(stream(model="lab-small"))[0] is Outcome.DEGRADED
    cached = read(stream(5))
    cached.cached = True
    assert judge(cached, 8, ())[0] is Outcome.DEGRADED
    cached.done = False
    assert judge(cached, 8, ())[0] is Outcome.TRUNCATED


def test_a_model_that_changes_in_the_stream_is_seen() -> None:
    data = stream().replace(tail("lab-chat", 8), tail("lab-small", 8))
    assert verdict(data)[0] is Outcome.DEGRADED


@pytest.mark.parametrize(
    ("text", "dup"),
    [
        ("t0 t1 t2", False),
        ("t5 t6 t7", False),
        ("t0 t1 t0 t1 t2", True),
        ("t0 t1 t1 t2", True),
        ("t0 t2", True),
        ("t0", False),
        ("to be or not to be", False),
        ("t1 of t1 t1", False),
        ("", False),
    ],
)
def test_only_numbered_answers_can_show_a_repetition(text: str, dup: bool) -> None:
    assert read(event("m") + event("m", text)).duplicated() is dup


@pytest.mark.parametrize("data", [b"data: {not json\n\n", b"data: 3\n\n", b'data: {"choices": [7]}\n\n'])
def test_garbage_in_an_event_is_a_protocol_error(data: bytes) -> None:
    assert verdict(event("m") + data + DONE)[:2] == (Outcome.ERROR, "protocol")


def test_an_event_without_end_is_bounded() -> None:
    answer = Answer()
    for _ in range(20):
        answer.feed(b"x" * 100_000, 1.0)
    assert answer.garbage is not None


def test_the_last_event_may_lack_its_blank_line() -> None:
    assert verdict(stream().removesuffix(b"\n"))[0] is Outcome.OK


@given(data=st.binary(max_size=300))
def test_no_bytes_break_the_reader(data: bytes) -> None:
    verdict(b"data: " + data + b"\n\n" + data)


def test_a_document_is_one_chunk() -> None:
    choice = {"index": 0, "message": {"role": "assistant", "content": "t0 t1"}, "finish_reason": "length"}
    answer = Answer()
    answer.whole(json.dumps({"model": "m", "choices": [choice], "usage": usage(2)}).encode(), 3.0)
    assert judge(answer, 2, ()) == (Outcome.OK, None, "")
    assert answer.chunks == [3.0]
