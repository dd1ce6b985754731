"""The JSON Schemas of what a run leaves for machines: made from the code, shipped as files.

`verdict` is that of verdict.json, by drills.model.RunVerdict; `postmortem` that of postmortem.json, by
drills.report.document.
"""

from __future__ import annotations

import json
from importlib import resources
from typing import Any, Final

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaMode, JsonSchemaValue

from drills.errors import UsageError, nearest
from drills.model import Json, RunVerdict

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
NAMES: Final = ("verdict", "postmortem")


class _Written(GenerateJsonSchema):
    """Says of what dialect it is, and of dataclasses that all their keys are always written."""

    def generate(self, schema: Any, mode: JsonSchemaMode = "validation") -> JsonSchemaValue:
        return {"$schema": DIALECT, **super().generate(schema, mode)}

    def field_is_required(self, field: Any, total: bool) -> bool:  # noqa: ARG002 - the signature is pydantic's
        return True


def adapter(name: str) -> TypeAdapter[Any]:
    """Return what validates a file of that kind. Raises UsageError."""
    if name == "verdict":
        return TypeAdapter(RunVerdict)
    if name == "postmortem":
        from drills.report.document import Postmortem

        return TypeAdapter(Postmortem)
    raise UsageError(f"--schema {name}: there is none of that name; there are {', '.join(NAMES)}{nearest(name, NAMES)}")


def made(name: str) -> bytes:
    """Return the schema as the code has it now."""
    schema: Json = adapter(name).json_schema(mode="serialization", schema_generator=_Written)
    return (json.dumps(schema, indent=2, sort_keys=True, ensure_ascii=False) + "\n").encode()


def shipped(name: str) -> str:
    """Return the schema as it is shipped. Raises UsageError."""
    adapter(name)
    return (resources.files("drills") / "data" / f"{name}.schema.json").read_text(encoding="utf-8")
