"""Errors of an engine, byte for byte: the bodies were captured from vLLM 0.32 with a context of 512 tokens."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.contract.engine_harness import KINDS, Engine, Pool

HI = [{"role": "user", "content": "hi"}]
LONG = [{"role": "user", "content": "word " * 600}]


@pytest.fixture(scope="module", params=sorted(KINDS))
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, pool: Pool) -> Iterator[Engine]:
    with pool.borrow(request.param, tmp_path_factory.mktemp("engine"), max_model_len="512", step_base_ms="4") as e:
        yield e


TOO_LONG = (
    '{"error":{"message":"This model\'s maximum context length is 512 tokens. However, your prompt contains at '
    "least 513 input tokens, which exceeds this limit even without any output tokens. Please reduce the length of the "
    'input prompt. (parameter=input_tokens, value=513)","type":"BadRequestError","param":"input_tokens","code":400}}'
)
CASES: dict[str, tuple[object, int, str]] = {
    "unknown model": (
        {"model": "nope", "messages": HI},
        404,
        '{"error":{"message":"The model `nope` does not exist. Valid aliases: tiny.","type":"NotFoundError",'
        '"param":"model","code":404}}',
    ),
    "context too long": ({"messages": LONG}, 400, TOO_LONG),
    "context too long, stream": ({"messages": LONG, "stream": True}, 400, TOO_LONG),
    "max_tokens too long": (
        {"messages": HI, "max_tokens": 5000},
        400,
        '{"error":{"message":"max_tokens=5000 cannot be greater than max_model_len=512. Please request fewer output '
        'tokens. (parameter=max_tokens, value=5000)","type":"BadRequestError","param":"max_tokens","code":400}}',
    ),
    "missing messages": (
        {"model": "tiny"},
        400,
        "{\"error\":{\"message\":\"1 validation error:\\n  {'type': 'missing', 'loc': 'body.messages', 'msg': 'Field "
        'required\', \'input\': \'<dict of 1 items>\'}","type":"Bad Request","param":"body.messages","code":400}}',
    ),
    "messages of a wrong type": (
        {"messages": "hi"},
        400,
        "{\"error\":{\"message\":\"1 validation error:\\n  {'type': 'list_type', 'loc': 'body.messages', 'msg': 'Input "
        'should be a valid list\', \'input\': \'hi\'}","type":"Bad Request","param":"body.messages","code":400}}',
    ),
    "empty messages": (
        {"messages": []},
        400,
        '{"error":{"message":"Cannot apply chat template to an empty conversation. Provide at least one message.",'
        '"type":"BadRequestError","param":null,"code":400}}',
    ),
    "negative max_tokens": (
        {"messages": HI, "max_tokens": -1},
        400,
        '{"error":{"message":"max_tokens must be at least 1, got -1. (parameter=max_tokens, value=-1)",'
        '"type":"BadRequestError","param":"max_tokens","code":400}}',
    ),
    "zero max_tokens": (
        {"messages": HI, "max_tokens": 0},
        400,
        '{"error":{"message":"max_tokens must be at least 1, got 0. (parameter=max_tokens, value=0)",'
        '"type":"BadRequestError","param":"max_tokens","code":400}}',
    ),
    "negative temperature": (
        {"messages": HI, "temperature": -1},
        400,
        '{"error":{"message":"temperature must be non-negative, got -1.0. (parameter=temperature, value=-1.0)",'
        '"type":"BadRequestError","param":"temperature","code":400}}',
    ),
    "temperature of a wrong type": (
        {"messages": HI, "temperature": "hot"},
        400,
        "{\"error\":{\"message\":\"1 validation error:\\n  {'type': 'float_parsing', 'loc': 'body.temperature', 'msg': "
        "'Input should be a valid number, unable to parse string as a number', 'input': 'hot'}\",\"type\":\"Bad "
        'Request","param":"body.temperature","code":400}}',
    ),
    "top_p of 2": (
        {"messages": HI, "top_p": 2},
        400,
        '{"error":{"message":"top_p must be in (0, 1], got 2.0. (parameter=top_p, value=2.0)",'
        '"type":"BadRequestError","param":"top_p","code":400}}',
    ),
    "no room for an answer": (
        {"messages": [{"role": "user", "content": "word " * 508}], "max_tokens": 5},
        400,
        '{"error":{"message":"max_tokens must be at least 1, got 0. (parameter=max_tokens, value=0)",'
        '"type":"BadRequestError","param":"max_tokens","code":400}}',
    ),
    "min_tokens over the room": (
        {"messages": [{"role": "user", "content": "word " * 507}], "max_tokens": 5, "min_tokens": 3},
        400,
        '{"error":{"message":"min_tokens must be less than or equal to max_tokens=1, got 3.",'
        '"type":"BadRequestError","param":null,"code":400}}',
    ),
    "negative min_tokens": (
        {"messages": HI, "min_tokens": -1},
        400,
        '{"error":{"message":"min_tokens must be greater than or equal to 0, got -1.",'
        '"type":"BadRequestError","param":null,"code":400}}',
    ),
    "temperature of 3": (
        {"messages": HI, "temperature": 3},
        400,
        '{"error":{"message":"temperature must be in [0, 2], got 3.0. (parameter=temperature, value=3.0)",'
        '"type":"BadRequestError","param":"temperature","code":400}}',
    ),
    "penalty of 3": (
        {"messages": HI, "presence_penalty": 3},
        400,
        '{"error":{"message":"presence_penalty must be in [-2, 2], got 3.0.",'
        '"type":"BadRequestError","param":null,"code":400}}',
    ),
    "top_k of -5": (
        {"messages": HI, "top_k": -5},
        400,
        '{"error":{"message":"top_k must be 0 (disable), or at least 1, got -5.",'
        '"type":"BadRequestError","param":null,"code":400}}',
    ),
    "user of a wrong type": (
        {"messages": HI, "user": 5},
        400,
        "{\"error\":{\"message\":\"1 validation error:\\n  {'type': 'string_type', 'loc': 'body.user', 'msg': 'Input "
        'should be a valid string\', \'input\': \'5\'}","type":"Bad Request","param":"body.user","code":400}}',
    ),
    "no tools": (
        {"messages": HI, "tools": []},
        400,
        '{"error":{"message":"`tools` must not be an empty array. Either provide at least one tool or omit the field '
        'entirely. (parameter=tools)","type":"BadRequestError","param":"tools","code":400}}',
    ),
    "n of 0": (
        {"messages": HI, "n": 0},
        400,
        '{"error":{"message":"n must be at least 1, got 0.","type":"BadRequestError","param":null,"code":400}}',
    ),
    "stream_options without stream": (
        {"messages": HI, "stream_options": {"include_usage": True}},
        400,
        '{"error":{"message":"Stream options can only be defined when `stream=True`. (parameter=stream_options)",'
        '"type":"BadRequestError","param":"stream_options","code":400}}',
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_bad_request_gets_vllms_body(engine: Engine, case: str) -> None:
    value, status, body = CASES[case]
    reply = engine.post("/v1/chat/completions", value)
    assert (reply.status, reply.body.decode()) == (status, body)
    assert reply.headers["content-type"] == "application/json"


def test_a_message_without_a_role_has_the_problems_of_all_forms(engine: Engine) -> None:
    reply = engine.post("/v1/chat/completions", {"messages": [*HI, {"content": "hi"}]})
    error = reply.json()["error"]
    forms = ["Developer", "System", "User", "Assistant"]
    places = [f"body.messages.1.ChatCompletion{form}MessageParam.role" for form in forms]
    head, *lines, last = error["message"].split("\n")
    assert (reply.status, error["param"], error["type"]) == (400, places[0], "Bad Request")
    assert (head, last) == ("11 validation errors:", "  ...and 1 more errors")
    for line, place in zip(lines, places, strict=False):
        assert (
            line == f"  {{'type': 'missing', 'loc': '{place}', 'msg': 'Field required', 'input': '<dict of 1 items>'}}"
        )
    assert len(lines) == 10


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        (None, "Either prompt or prompt_embeds must be provided and non-empty. (parameter=prompt)"),
        ("", "Either prompt or prompt_embeds must be provided and non-empty. (parameter=prompt)"),
        ([], "You must pass at least one prompt"),
        (
            5,
            "4 validation errors:\n"
            "  {'type': 'list_type', 'loc': 'body.prompt', 'msg': 'Input should be a valid list', 'input': '5'}\n"
            "  {'type': 'list_type', 'loc': 'body.prompt', 'msg': 'Input should be a valid list', 'input': '5'}\n"
            "  {'type': 'string_type', 'loc': 'body.prompt', 'msg': 'Input should be a valid string', 'input': '5'}\n"
            "  {'type': 'list_type', 'loc': 'body.prompt', 'msg': 'Input should be a valid list', 'input': '5'}",
        ),
    ],
)
def test_a_prompt_that_is_none_is_told(engine: Engine, prompt: object, message: str) -> None:
    reply = engine.post("/v1/completions", {"prompt": prompt, "max_tokens": 1})
    assert (reply.status, reply.json()["error"]["message"]) == (400, message)


@pytest.mark.parametrize(
    ("raw", "media", "body"),
    [
        (
            b'{"model":"tiny","messages":x',
            "application/json",
            "{\"error\":{\"message\":\"1 validation error:\\n  {'type': 'json_invalid', 'loc': 'body.27', 'msg': 'JSON "
            "decode error', 'input': '<dict of 0 items>', 'ctx': {'error': 'Expecting value'}}\",\"type\":\"Bad "
            'Request","param":"body.27","code":400}}',
        ),
        (
            b'{"model":"tiny"}',
            "text/plain",
            '{"error":{"message":"1 validation error:\\n  Unsupported Media Type: Only \'application/json\' is '
            'allowed","type":"Bad Request","param":null,"code":400}}',
        ),
        (
            b"",
            "application/json",
            "{\"error\":{\"message\":\"1 validation error:\\n  {'type': 'missing', 'loc': 'body', 'msg': 'Field "
            'required\', \'input\': \'None\'}","type":"Bad Request","param":"body","code":400}}',
        ),
    ],
)
def test_a_bad_body_gets_vllms_body(engine: Engine, raw: bytes, media: str, body: str) -> None:
    reply = engine.request("POST", "/v1/chat/completions", raw, {"Content-Type": media})
    assert (reply.status, reply.body.decode()) == (400, body)


@pytest.mark.parametrize(
    "more", [{"unknown": 1}, {"messages": [{"role": "bad", "content": "hi"}]}, {"priority": 3}, {"user": "drill"}]
)
def test_what_vllm_ignores_is_ignored(engine: Engine, more: dict[str, object]) -> None:
    reply = engine.post("/v1/chat/completions", {"messages": HI, "max_tokens": 1} | more)
    assert reply.status == 200
    assert json.loads(reply.body)["object"] == "chat.completion"
