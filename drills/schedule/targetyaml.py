"""A target as the schedule carries it: its part of drill.yaml, and the secrets that it refers to."""

from __future__ import annotations

import copy
import io
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ruamel.yaml import YAML

from drills.model import Json
from drills.target import TargetSpec

LINE_MAX = 140


@dataclass(frozen=True)
class Secrets:
    """What a target refers to: names of environment variables, and paths of files."""

    env: tuple[str, ...]
    files: tuple[str, ...]


def text(spec: TargetSpec) -> str:
    """Return drill.yaml with this target alone, as it is used from inside its cluster: by the pod's own account."""
    section = _section(spec)
    if isinstance(section.get("kubernetes"), dict):
        section["kubernetes"].pop("context", None)
    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style = None  # the innermost maps and lists in one line
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    yaml.width = LINE_MAX
    out = io.StringIO()
    yaml.dump({"default_target": spec.name, "targets": {spec.name: section}}, out)
    return out.getvalue()


def secrets(spec: TargetSpec) -> Secrets:
    """Return the secrets that the target's section refers to, `{env: NAME}` and `{file: PATH}`."""
    found = list(_references(_section(spec)))
    return Secrets(*(tuple(sorted({where for kind, where in found if kind == one})) for one in ("env", "file")))


def _section(spec: TargetSpec) -> Json:
    if spec.document is None:  # the built-in lab
        return {"kind": spec.kind}
    return dict(copy.deepcopy(spec.document.data["targets"][spec.name]))


def _references(value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        if len(value) == 1 and (kind := next(iter(value))) in ("env", "file") and isinstance(value[kind], str):
            yield kind, value[kind]
        for part in value.values():
            yield from _references(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _references(part)
