"""A page of Markdown from one of the package's templates, in the language that is spoken."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from drills.lang import t
from drills.report import words

TEMPLATES = Path(__file__).parent / "templates"


def render(template: str, view: Mapping[str, object]) -> bytes:
    """Return a rendered template; every string in the view is inert already (`drills.report.escape`)."""
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=False,  # noqa: S701 - what is rendered is Markdown
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.globals |= {"_": t, "anchor": words.anchor}
    return (environment.get_template(template).render(view).rstrip("\n") + "\n").encode()
