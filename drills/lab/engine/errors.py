"""Errors as vLLM 0.32 words them: an HTTP body, or an event inside a stream that already has its 200.

`code` repeats the HTTP status. `type` follows no rule a client could use: `BadRequestError` is vLLM's own
validation, `Bad Request` the schema's.
"""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import Any

DONE = b"data: [DONE]\n\n"
SHOWN = 10  # problems of a schema that an answer tells


class ApiError(Exception):
    """An answer that is an error: status, message, type and the parameter to blame."""

    def __init__(self, status: int, message: str, kind: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.kind, self.param = status, message, kind, param

    def _envelope(self) -> dict[str, Any]:
        error = {"message": self.message, "type": self.kind, "param": self.param, "code": self.status}
        return {"error": error}

    def body(self) -> bytes:
        """Return the body of the HTTP answer."""
        return json.dumps(self._envelope(), separators=(",", ":"), ensure_ascii=False).encode(errors="replace")

    def events(self) -> bytes:
        """Return the error as the end of a stream; the spaces in its JSON are vLLM's."""
        return b"data: " + json.dumps(self._envelope()).encode() + b"\n\n" + DONE


def invalid(message: str, param: str | None = None, value: object = None) -> ApiError:
    """Return vLLM's own 400; with a value the message ends in `(parameter=..., value=...)`."""
    if value is not None:
        message = f"{message} (parameter={param}, value={value})"
    return ApiError(HTTPStatus.BAD_REQUEST, message, "BadRequestError", param)


def unknown_model(asked: str, served: str) -> ApiError:
    """Return the 404 for a model that is not served."""
    message = f"The model `{asked}` does not exist. Valid aliases: {served}."
    return ApiError(HTTPStatus.NOT_FOUND, message, "NotFoundError", "model")


def engine_dead() -> ApiError:
    """Return the 500 of requests whose EngineCore is gone."""
    message = "EngineCore encountered an issue. See stack trace (above) for the root cause."
    return ApiError(HTTPStatus.INTERNAL_SERVER_ERROR, message, "InternalServerError")


def shutting_down() -> ApiError:
    """Return the 500 of requests that come after SIGTERM, while the port is still open."""
    message = "cannot schedule new futures after shutdown"
    return ApiError(HTTPStatus.INTERNAL_SERVER_ERROR, message, "InternalServerError")


def busy() -> ApiError:
    """Return the 503 of the admission limit `--max-num-queued-reqs`."""
    message = (
        "The engine is currently busy and cannot accept new requests. "
        "Please try again later or on a different instance."
    )
    return ApiError(HTTPStatus.SERVICE_UNAVAILABLE, message, "Service Unavailable")


# ---- schema errors, as pydantic words them and vLLM wraps them ----------------------------------------


def shown(value: object) -> str:
    """Return a value as schema errors show it: containers by size only."""
    if isinstance(value, dict):
        return f"<dict of {len(value)} items>"
    if isinstance(value, list):
        return f"<list of {len(value)} items>"
    return str(value)


def problem(kind: str, loc: str, message: str, value: object, **extra: object) -> dict[str, Any]:
    """Return one schema problem."""
    return {"type": kind, "loc": loc, "msg": message, "input": shown(value), **extra}


def schema(problems: list[dict[str, Any]]) -> ApiError:
    """Return the 400 for problems of the schema; the first one's place is the parameter."""
    head = f"{len(problems)} validation error{'s' if len(problems) > 1 else ''}:"
    lines = [head, *(f"  {p}" for p in problems[:SHOWN])]
    if len(problems) > SHOWN:
        lines.append(f"  ...and {len(problems) - SHOWN} more errors")
    return ApiError(HTTPStatus.BAD_REQUEST, "\n".join(lines), "Bad Request", problems[0]["loc"])


def unsupported_media_type() -> ApiError:
    """Return the 400 (not 415) for a body that is not declared as JSON."""
    message = "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed"
    return ApiError(HTTPStatus.BAD_REQUEST, message, "Bad Request")
