"""From the bytes of a request to what the engine must do, or the error that vLLM would answer.

Accepted without a word, as vLLM does: unknown fields, an unknown role, no `model`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from zlib import crc32

from drills.lab.engine import messages, tokens
from drills.lab.engine.errors import ApiError, invalid, problem, schema, unknown_model, unsupported_media_type
from drills.lab.engine.scheduler import LENGTH, STOP

CHAT, TEXT = "chat", "text"
Body = dict[str, Any]


@dataclass(frozen=True)
class Ask:
    """A valid request: the prompt's token ids, how many tokens to answer, and in which form."""

    kind: str  # chat | text
    ids: bytes
    max_tokens: int
    finish: str
    stream: bool
    include_usage: bool
    continuous_usage: bool
    request_id: str | None


@dataclass(frozen=True)
class Limits:
    """What requests are checked against."""

    model: str
    max_model_len: int
    seed: int = 0


def parse(kind: str, headers: Mapping[bytes, bytes], raw: bytes, limits: Limits) -> Ask:
    """Return the request of a POST, or raise the ApiError it deserves."""
    body = read_json(headers, raw)
    check_schema(kind, body)
    _check_model(body, limits)
    _check_params(body)
    ids = chat_ids(body) if kind == CHAT else text_ids(body)
    max_tokens, finish = _length(kind, body, ids, limits)
    options = body.get("stream_options") or {}
    return Ask(
        kind=kind,
        ids=ids,
        max_tokens=max_tokens,
        finish=finish,
        stream=_bool(body.get("stream")) or False,
        include_usage=bool(options.get("include_usage")),
        continuous_usage=bool(options.get("include_usage")) and bool(options.get("continuous_usage_stats")),
        request_id=_request_id(body),
    )


def _request_id(body: Body) -> str | None:
    given = body.get("request_id")
    return str(given).encode(errors="replace").decode() if given else None


def read_json(headers: Mapping[bytes, bytes], raw: bytes) -> Body:
    """Return the JSON object in a body."""
    media = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    if media != b"application/json":
        raise unsupported_media_type()
    if not raw:
        raise schema([problem("missing", "body", "Field required", None)])
    try:
        body = json.loads(raw)
    except json.JSONDecodeError as e:
        bad = problem("json_invalid", f"body.{e.pos}", "JSON decode error", {}, ctx={"error": e.msg})
        raise schema([bad]) from None
    except (UnicodeDecodeError, RecursionError):
        raise ApiError(400, "There was an error parsing the body", "Bad Request") from None
    if body is None:
        raise schema([problem("missing", "body", "Field required", None)])
    if not isinstance(body, dict):
        message = "Input should be a valid dictionary or object to extract fields from"
        raise schema([problem("model_attributes_type", "body", message, body)])
    return body


# ---- schema: types only -------------------------------------------------------------------------------


def _int(value: object) -> int | None:
    if value is None or isinstance(value, int):
        return value
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, str):
        return int(value)
    raise TypeError


def _float(value: object) -> float | None:
    if value is None:
        return None
    if isinstance(value, (int, float, str)):
        return float(value)
    raise TypeError


def _bool(value: object) -> bool | None:
    if value is None or isinstance(value, bool):
        return value
    word = str(value).lower()
    if word in {"1", "true", "t", "yes", "y", "on"}:
        return True
    if word in {"0", "false", "f", "no", "n", "off"}:
        return False
    raise TypeError


def _str(value: object) -> str | None:
    if value is None or isinstance(value, str):
        return value
    raise TypeError


def _list(value: object) -> list[Any] | None:
    if value is None or isinstance(value, list):
        return value
    raise TypeError


_TYPES: dict[Callable[[object], object], tuple[str, str]] = {
    _int: ("int", "integer"),
    _float: ("float", "number"),
    _bool: ("bool", "boolean"),
    _str: ("string", "string"),
    _list: ("list", "list"),
}
_FIELDS: dict[str, Callable[[object], object]] = {
    "max_tokens": _int,
    "max_completion_tokens": _int,
    "n": _int,
    "stream": _bool,
    "temperature": _float,
    "top_p": _float,
    "ignore_eos": _bool,
    "min_tokens": _int,
    "top_k": _int,
    "seed": _int,
    "presence_penalty": _float,
    "frequency_penalty": _float,
    "repetition_penalty": _float,
    "model": _str,
    "user": _str,
    "tools": _list,
}


def check_schema(kind: str, body: Body) -> None:
    """Raise the 400 for fields of a wrong type."""
    problems = messages.problems(body.get("messages"), body) if kind == CHAT else _prompt_problems(body)
    for name, read in _FIELDS.items():
        try:
            read(body.get(name))
        except (TypeError, ValueError):
            problems.append(_type_problem(name, read, body[name]))
    options = body.get("stream_options")
    if options is not None and not isinstance(options, dict):
        message = "Input should be a valid dictionary or object to extract fields from"
        problems.append(problem("model_attributes_type", "body.stream_options", message, options))
    if problems:
        raise schema(problems)


def _type_problem(name: str, read: Callable[[object], object], value: object) -> dict[str, Any]:
    short, long = _TYPES[read]
    message = f"Input should be a valid {long}"
    if isinstance(value, str) and read is not _list:
        how = (
            "unable to interpret input"
            if read is _bool
            else f"unable to parse string as a{'n' * (read is _int)} {long}"
        )
        return problem(f"{short}_parsing", f"body.{name}", f"{message}, {how}", value)
    if read is _int and isinstance(value, float):
        how = "got a number with a fractional part"
        return problem("int_from_float", f"body.{name}", f"{message}, {how}", value)
    return problem(f"{short}_type", f"body.{name}", message, value)


def _prompt_problems(body: Body) -> list[dict[str, Any]]:
    prompt = body.get("prompt")
    if prompt is None or isinstance(prompt, (str, list)):
        return []
    a_list, a_text = "Input should be a valid list", "Input should be a valid string"
    forms = (("list", a_list), ("list", a_list), ("string", a_text), ("list", a_list))
    return [problem(f"{kind}_type", "body.prompt", message, prompt) for kind, message in forms]


# ---- values -------------------------------------------------------------------------------------------


def _check_model(body: Body, limits: Limits) -> None:
    asked = body.get("model")
    if asked and asked != limits.model:
        raise unknown_model(str(asked), limits.model)


def _check_params(body: Body) -> None:
    if body.get("stream_options") is not None and not _bool(body.get("stream")):
        message = "Stream options can only be defined when `stream=True`. (parameter=stream_options)"
        raise invalid(message, "stream_options")
    n = _int(body.get("n"))
    if n is not None and n < 1:
        raise invalid(f"n must be at least 1, got {n}.")
    if n is not None and n > 1:
        raise invalid(f"n={n}: this emulated engine answers with one choice only.", "n")
    _check_ranges(body)
    if body.get("tools") == []:
        message = "`tools` must not be an empty array. Either provide at least one tool or omit the field entirely."
        raise invalid(f"{message} (parameter=tools)", "tools")


def _check_ranges(body: Body) -> None:
    temperature = _float(body.get("temperature"))
    if temperature is not None and temperature < 0:
        raise invalid(f"temperature must be non-negative, got {temperature}.", "temperature", temperature)
    if temperature is not None and temperature > 2:
        raise invalid(f"temperature must be in [0, 2], got {temperature}.", "temperature", temperature)
    for name in ("presence_penalty", "frequency_penalty"):
        penalty = _float(body.get(name))
        if penalty is not None and not -2 <= penalty <= 2:
            raise invalid(f"{name} must be in [-2, 2], got {penalty}.")
    repetition = _float(body.get("repetition_penalty"))
    if repetition is not None and repetition <= 0:
        raise invalid(f"repetition_penalty must be greater than zero, got {repetition}.")
    top_p = _float(body.get("top_p"))
    if top_p is not None and not 0 < top_p <= 1:
        raise invalid(f"top_p must be in (0, 1], got {top_p}.", "top_p", top_p)
    top_k = _int(body.get("top_k"))
    if top_k is not None and top_k < -1:
        raise invalid(f"top_k must be 0 (disable), or at least 1, got {top_k}.")
    least = _int(body.get("min_tokens"))
    if least is not None and least < 0:
        raise invalid(f"min_tokens must be greater than or equal to 0, got {least}.")


def _length(kind: str, body: Body, ids: bytes, limits: Limits) -> tuple[int, str]:
    """Return how many tokens to answer and why it ends then.

    A length that was asked for is met exactly, as far as the context has room. Otherwise the model "stops" after a
    length drawn from the prompt (16 to 96 tokens), unless told to ignore the end of the sequence.
    """
    prompt, most = tokens.count(ids), limits.max_model_len
    asked = _int(body.get("max_completion_tokens")) if kind == CHAT else None
    asked = _int(body.get("max_tokens")) if asked is None else asked
    if asked is None and kind == TEXT:
        asked = 16  # the default of the completions API
    _check_lengths(asked, prompt, most)
    room = most - prompt if asked is None else min(asked, most - prompt)
    if room < 1:
        raise invalid(f"max_tokens must be at least 1, got {room}.", "max_tokens", room)
    at_least = _int(body.get("min_tokens")) or 0
    if at_least > room:
        raise invalid(f"min_tokens must be less than or equal to max_tokens={room}, got {at_least}.")
    if asked is not None:
        return room, LENGTH
    natural = max(at_least, 16 + crc32(ids, limits.seed & 0xFFFFFFFF) % 81)
    if _bool(body.get("ignore_eos")) or natural >= room:
        return room, LENGTH
    return natural, STOP


def _check_lengths(asked: int | None, prompt: int, most: int) -> None:
    if asked is not None and asked < 1:
        raise invalid(f"max_tokens must be at least 1, got {asked}.", "max_tokens", asked)
    if asked is not None and asked > most:
        message = f"max_tokens={asked} cannot be greater than max_model_len={most}. Please request fewer output tokens."
        raise invalid(message, "max_tokens", asked)
    if prompt > most:
        raise invalid(
            f"This model's maximum context length is {most} tokens. However, your prompt contains at least "
            f"{most + 1} input tokens, which exceeds this limit even without any output tokens. "
            "Please reduce the length of the input prompt.",
            "input_tokens",
            most + 1,
        )


def chat_ids(body: Body) -> bytes:
    """Return the token ids of `messages`."""
    said = body["messages"]
    if not said:
        raise invalid("Cannot apply chat template to an empty conversation. Provide at least one message.")
    return tokens.encode_chat([(str(m.get("role", "")), _text(m.get("content"))) for m in said])


def _text(content: object) -> str:
    if isinstance(content, list):
        return " ".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return "" if content is None else str(content)


def tokenized(body: Body) -> bytes:
    """Return the token ids that `/tokenize` counts: of `messages` or of `prompt`, which may be empty here."""
    if "messages" in body:
        check_schema(CHAT, body)
        return chat_ids(body)
    if body.get("prompt") is None:
        raise schema([problem("missing", f"body.{name}", "Field required", body) for name in ("prompt", "messages")])
    check_schema(TEXT, body)
    return b"" if body["prompt"] == "" else text_ids(body)


def text_ids(body: Body) -> bytes:
    """Return the token ids of `prompt`: a text, or ids."""
    prompt = body.get("prompt")
    if prompt in (None, ""):
        raise invalid("Either prompt or prompt_embeds must be provided and non-empty. (parameter=prompt)", "prompt")
    if prompt == []:
        raise invalid("You must pass at least one prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], (str, list)):
        prompt = prompt[0]
    if isinstance(prompt, str):
        ids = tokens.encode(prompt)
    elif isinstance(prompt, list) and all(isinstance(i, int) for i in prompt):
        ids = tokens.encode_ids(prompt)
    else:
        raise invalid("this emulated engine answers one prompt (a text or a list of token ids) in a request.", "prompt")
    if not ids:
        raise invalid("The decoder prompt cannot be empty")
    return ids
