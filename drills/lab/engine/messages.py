"""What is wrong with the messages of a chat, in the words of vLLM 0.32.

A message may have one of eight forms. One that fits none gets the problems of all of them, in the order of the
forms: a missing role alone is eleven.
"""

from __future__ import annotations

from typing import Any

from drills.lab.engine.errors import problem

#: Name of the form, the role it is for (None: any text), and its fields in the order in which they are looked at.
_FORMS: tuple[tuple[str, str | None, tuple[str, ...]], ...] = (
    ("ChatCompletionDeveloperMessageParam", "developer", ("content", "role")),
    ("ChatCompletionSystemMessageParam", "system", ("content", "role")),
    ("ChatCompletionUserMessageParam", "user", ("content", "role")),
    ("ChatCompletionAssistantMessageParam", "assistant", ("role", "content")),
    ("ChatCompletionToolMessageParam", "tool", ("content", "role", "tool_call_id")),
    ("ChatCompletionFunctionMessageParam", "function", ("content", "name", "role")),
    ("CustomChatCompletionMessageParam", None, ("role", "content")),
    ("Message", None, ("author", "content")),
)
_CONTENT_OPTIONAL = ("assistant", None)  # roles whose message may lack content
_CONTENT_NULL = ("assistant", "function")  # roles whose content may be null
_TEXT, _ITERABLE, _REQUIRED = "Input should be a valid string", "Input should be iterable", "Field required"
Problems = list[dict[str, Any]]


def problems(messages: object, body: dict[str, Any]) -> Problems:
    """Return the schema's problems with `messages` of a body."""
    if "messages" not in body:
        return [problem("missing", "body.messages", _REQUIRED, body)]
    if not isinstance(messages, list):
        return [problem("list_type", "body.messages", "Input should be a valid list", messages)]
    return [p for i, message in enumerate(messages) for p in _of_message(message, f"body.messages.{i}")]


def _of_message(message: object, loc: str) -> Problems:
    if not isinstance(message, dict):
        return _of_no_object(message, loc)
    found = [_of_form(message, f"{loc}.{name}", name, role, fields) for name, role, fields in _FORMS]
    return [] if [] in found else [p for form in found for p in form]


def _of_no_object(message: object, loc: str) -> Problems:
    what = "Input should be a valid dictionary"
    *dicts, (last, _, _) = _FORMS
    found = [problem("dict_type", f"{loc}.{name}", what, message) for name, _, _ in dicts]
    more = f"{what} or object to extract fields from"
    return [*found, problem("model_attributes_type", f"{loc}.{last}", more, message)]


def _of_form(message: dict[str, Any], loc: str, form: str, role: str | None, fields: tuple[str, ...]) -> Problems:
    found: Problems = []
    for field in fields:
        where = f"{loc}.{field}"
        if field == "content":
            found += _of_content(message, where, form, role)
        elif field not in message:
            found.append(problem("missing", where, _REQUIRED, message))
        elif field == "role":
            found += _of_role(message[field], where, role)
    return found


def _of_role(value: object, where: str, role: str | None) -> Problems:
    if role is None:
        return [] if isinstance(value, str) else [problem("string_type", where, _TEXT, value)]
    if value == role:
        return []
    return [problem("literal_error", where, f"Input should be '{role}'", value, ctx={"expected": f"'{role}'"})]


def _of_content(message: dict[str, Any], where: str, form: str, role: str | None) -> Problems:
    if "content" not in message:
        return [] if role in _CONTENT_OPTIONAL else [problem("missing", where, _REQUIRED, message)]
    value = message["content"]
    if form == "Message":  # of another library, which takes lists only
        return [] if isinstance(value, list) else [problem("list_type", where, "Input should be a valid list", value)]
    if isinstance(value, (str, list)) or (value is None and role in _CONTENT_NULL):
        return []
    found = [problem("string_type", where, _TEXT, value)]
    return found if role == "function" else [*found, problem("iterable_type", where, _ITERABLE, value)]
