"""From a request's bytes to what the engine must do."""

from __future__ import annotations

import json
from typing import Any

import pytest

from drills.lab.engine import requests, tokens
from drills.lab.engine.errors import ApiError
from drills.lab.engine.requests import CHAT, TEXT, Ask, Limits

LIMITS = Limits("lab-chat", 512)
JSON = {b"content-type": b"application/json"}


def ask(kind: str = CHAT, /, **body: Any) -> Ask:
    if kind == CHAT:
        body = {"messages": [{"role": "user", "content": "a b c d e"}]} | body
    return requests.parse(kind, JSON, json.dumps(body).encode(), LIMITS)


def error(kind: str = CHAT, /, **body: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        ask(kind, **body)
    return caught.value


def test_a_chat_costs_one_token_a_word_and_a_few_for_its_template() -> None:
    assert tokens.count(ask().ids) == 9
    parts = [{"type": "text", "text": "a b"}, {"type": "text", "text": "c d e"}]
    assert ask(messages=[{"role": "user", "content": parts}]).ids == ask().ids


def test_an_answer_sent_back_has_the_ids_it_was_generated_with() -> None:
    assert tokens.encode(tokens.answer_text(0, 50)) == b"".join(tokens.answer_id(i) for i in range(50))


@pytest.mark.parametrize(
    ("body", "length"),
    [
        ({"max_tokens": 7}, (7, "length")),
        ({"max_tokens": 7, "max_completion_tokens": 9}, (9, "length")),
        ({"max_tokens": "7"}, (7, "length")),
        ({"max_tokens": 7.0}, (7, "length")),
        ({"max_tokens": 7, "min_tokens": 7, "ignore_eos": True}, (7, "length")),
        ({"max_tokens": 503}, (503, "length")),
        ({"max_tokens": 512}, (503, "length")),  # as far as there is room
        ({"ignore_eos": True}, (503, "length")),
        ({"min_tokens": 503}, (503, "length")),
    ],
)
def test_a_length_that_was_asked_for_is_met(body: dict[str, object], length: tuple[int, str]) -> None:
    got = ask(**body)
    assert (got.max_tokens, got.finish) == length


def test_without_a_length_the_model_stops_by_itself_always_at_the_same_place() -> None:
    first, second = ask(), ask()
    assert first.finish == "stop"
    assert 16 <= first.max_tokens <= 96
    assert first == second
    assert ask(min_tokens=200).max_tokens == 200
    assert ask(TEXT, prompt="a").max_tokens == 16


def test_usage_is_streamed_only_when_asked_for() -> None:
    plain = ask(stream=True)
    assert (plain.include_usage, plain.continuous_usage) == (False, False)
    both = ask(stream=True, stream_options={"include_usage": True, "continuous_usage_stats": True})
    assert (both.include_usage, both.continuous_usage) == (True, True)


@pytest.mark.parametrize("prompt", ["a b c", [1, 2, 3], ["a b c"], [[1, 2, 3]]])
def test_a_prompt_is_a_text_or_ids(prompt: object) -> None:
    assert tokens.count(ask(TEXT, prompt=prompt, max_tokens=1).ids) == 3


@pytest.mark.parametrize("prompt", [["a", "b"], {"a": 1}, 7, ""])
def test_other_prompts_are_refused(prompt: object) -> None:
    assert error(TEXT, prompt=prompt).status == 400


@pytest.mark.parametrize(
    ("body", "param", "says"),
    [
        ({"max_tokens": "many"}, "body.max_tokens", "'int_parsing'"),
        ({"max_tokens": 1.5}, "body.max_tokens", "got a number with a fractional part"),
        ({"max_tokens": []}, "body.max_tokens", "<list of 0 items>"),
        ({"stream": "maybe"}, "body.stream", "'bool_parsing'"),
        ({"stream_options": 1}, "body.stream_options", "valid dictionary"),
        ({"messages": ["hi"]}, "body.messages.0.ChatCompletionDeveloperMessageParam", "'dict_type'"),
        ({"n": 2}, "n", "one choice only"),
        ({"min_tokens": 5, "max_tokens": 4}, None, "min_tokens must be less than or equal to max_tokens=4, got 5."),
        (
            {"max_tokens": 510, "min_tokens": 504},
            None,
            "min_tokens must be less than or equal to max_tokens=503, got 504.",
        ),
    ],
)
def test_a_bad_field_is_named(body: dict[str, object], param: str | None, says: str) -> None:
    e = error(**body)
    assert (e.status, e.param) == (400, param)
    assert says in e.message


@pytest.mark.parametrize(
    ("message", "count", "first"),
    [
        ({}, 15, "ChatCompletionDeveloperMessageParam.content"),
        ({"content": "hi"}, 11, "ChatCompletionDeveloperMessageParam.role"),
        ({"content": "hi", "role": 5}, 11, "ChatCompletionDeveloperMessageParam.role"),
        ({"content": 5}, 24, "ChatCompletionDeveloperMessageParam.content"),
        ({"content": 5, "role": "user"}, 22, "ChatCompletionDeveloperMessageParam.content"),
        ({"content": None, "role": "user"}, 19, "ChatCompletionDeveloperMessageParam.content"),
        ({"content": None, "role": "bad"}, 20, "ChatCompletionDeveloperMessageParam.content"),
        ("hi", 8, "ChatCompletionDeveloperMessageParam"),
    ],
)
def test_a_message_of_no_form_has_the_problems_of_all_forms(message: object, count: int, first: str) -> None:
    e = error(messages=[{"role": "user", "content": "hi"}, message])
    assert e.message.startswith(f"{count} validation errors:\n")
    assert (e.param, e.message.count("\n")) == (f"body.messages.1.{first}", min(count, 11))


@pytest.mark.parametrize(
    "message",
    [{"role": "user"}, {"role": "bad", "content": "hi"}, {"role": "assistant", "content": None}, {"role": "assistant"}],
)
def test_what_fits_one_form_is_taken(message: object) -> None:
    assert ask(messages=[message], max_tokens=1).max_tokens == 1


def test_a_prompt_that_fills_the_context_has_no_room_for_an_answer() -> None:
    e = error(TEXT, prompt="a " * 512, max_tokens=1)
    assert (e.param, e.message) == (
        "max_tokens",
        "max_tokens must be at least 1, got 0. (parameter=max_tokens, value=0)",
    )


def test_several_problems_are_told_at_once() -> None:
    message = error(messages="hi", n="x").message
    assert message.startswith("2 validation errors:\n")
    assert message.count("\n") == 2


@pytest.mark.parametrize("raw", [b"[1]", b'"a"', b"\xff", b"[" * 100_000])
def test_a_body_that_is_no_object_is_a_400(raw: bytes) -> None:
    with pytest.raises(ApiError) as caught:
        requests.parse(CHAT, JSON, raw, LIMITS)
    assert caught.value.status == 400


def test_half_a_character_does_no_harm() -> None:
    broken = "\ud800"
    got = ask(messages=[{"role": "user", "content": broken}], request_id=broken)
    assert got.request_id == "?"
    assert json.loads(error(model=broken).body())["error"]["code"] == 404
