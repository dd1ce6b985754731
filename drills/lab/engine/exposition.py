"""Prometheus text format for the metric families of `families.json`, as captured from vLLM 0.32.

The file carries name, type, HELP, labels and bucket edges; `"edges": "tokens"` are the 1-2-5 steps up to the
longest context. Line prefixes are made once, so a scrape only formats numbers.
"""

from __future__ import annotations

import json
import math
import time
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"
Labels = Mapping[str, str]


def number(value: float) -> str:
    """Return a number as Prometheus clients write it (`1.0`, `1.5e+09`, `+Inf`)."""
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    text = repr(float(value))
    dot = text.find(".")
    if value > 0 and dot > 6:
        mantissa = f"{text[0]}.{text[1:dot]}{text[dot + 1 :]}".rstrip("0.")
        return f"{mantissa}e+0{dot - 1}"
    return text


def token_edges(longest: int) -> list[float]:
    """Return 1, 2, 5, 10, 20, 50, ... up to `longest`."""
    edges: list[float] = []
    power = 1
    while True:
        for step in (1, 2, 5):
            if step * power > longest:
                return edges
            edges.append(float(step * power))
        power *= 10


def series(name: str, labels: Labels) -> str:
    """Return `name{label="value",...} `, labels in alphabetical order, ready for the number."""
    if not labels:
        return f"{name} "
    pairs = ",".join(f'{k}="{_escape(v)}"' for k, v in sorted(labels.items()))
    return f"{name}{{{pairs}}} "


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


class Child(Protocol):
    """One labelled member of a family."""

    def lines(self) -> Iterator[str]:
        """Yield its lines."""


class Value:
    """A counter or a gauge."""

    def __init__(self, name: str, labels: Labels) -> None:
        self._series = series(name, labels)
        self.value = 0.0

    def add(self, amount: float = 1.0) -> None:
        """Raise it."""
        self.value += amount

    def lines(self) -> Iterator[str]:
        """Yield its one line."""
        yield self._series + number(self.value)


class Summary:
    """A count and a sum."""

    def __init__(self, name: str, labels: Labels) -> None:
        self._count, self._sum = series(f"{name}_count", labels), series(f"{name}_sum", labels)
        self.count, self.sum = 0, 0.0

    def observe(self, value: float) -> None:
        """Count a value."""
        self.count += 1
        self.sum += value

    def lines(self) -> Iterator[str]:
        """Yield count and sum."""
        yield self._count + number(self.count)
        yield self._sum + number(self.sum)


class Histogram(Summary):
    """Counts in buckets, beside count and sum."""

    def __init__(self, name: str, labels: Labels, edges: list[float]) -> None:
        super().__init__(name, labels)
        self._edges = edges
        self._buckets = [series(f"{name}_bucket", {**labels, "le": number(e)}) for e in [*edges, math.inf]]
        self._counts = [0] * (len(edges) + 1)

    def observe(self, value: float) -> None:
        """Count a value."""
        super().observe(value)
        self._counts[bisect_left(self._edges, value)] += 1

    def lines(self) -> Iterator[str]:
        """Yield the cumulative buckets, count and sum."""
        total = 0
        for prefix, n in zip(self._buckets, self._counts, strict=True):
            total += n
            yield prefix + number(total)
        yield from super().lines()


class Family:
    """A metric family: its children, made at first use, and when each was made."""

    def __init__(self, spec: dict[str, Any], common: Labels, longest: int) -> None:
        self.name: str = spec["name"]
        self.type: str = spec["type"]
        self._help: str = spec["help"]
        self._with_created: bool = spec["created"]
        self._common = {k: v for k, v in common.items() if k in spec["labels"]}
        self._names = [n for n in spec["labels"] if n not in self._common]
        edges = spec.get("edges", [])
        self._edges: list[float] = token_edges(longest) if edges == "tokens" else edges
        self._children: dict[tuple[str, ...], Child] = {}
        self._created: list[str] = []
        for value in spec.get("values", ()):
            self.child(value)
        if not self._names:
            self.child()

    def child(self, *values: str) -> Any:
        """Return the child with these values of its own labels (alphabetical order of names)."""
        found = self._children.get(values)
        if found is None:
            found = self._children[values] = self._make(values)
        return found

    def _make(self, values: tuple[str, ...]) -> Child:
        labels = {**self._common, **dict(zip(self._names, values, strict=True))}
        if self._with_created:
            self._created.append(series(self._created_name(), labels) + number(time.time()))
        if self.type == "histogram":
            return Histogram(self.name, labels, self._edges)
        if self.type == "summary":
            return Summary(self.name, labels)
        return Value(self.name, labels)

    def _created_name(self) -> str:
        base = self.name.removesuffix("_total") if self.type == "counter" else self.name
        return f"{base}_created"

    def lines(self) -> Iterator[str]:
        """Yield HELP, TYPE, the children, and the family of their creation times."""
        yield f"# HELP {self.name} {self._help}"
        yield f"# TYPE {self.name} {self.type}"
        for child in self._children.values():
            yield from child.lines()
        if self._created:
            yield f"# HELP {self._created_name()} {self._help}"
            yield f"# TYPE {self._created_name()} gauge"
            yield from self._created


def _fixed_lines(spec: dict[str, Any], labels: Labels) -> list[str]:
    """Return the lines of a family that never changes: captured labels, with those given put in their place."""
    name = spec["name"]
    member = series(name, {**spec["fixed"], **labels}) + number(1)
    return [f"# HELP {name} {spec['help']}", f"# TYPE {name} {spec['type']}", member]


class Registry:
    """All families, in the order in which they are exposed."""

    def __init__(self, common: Labels, longest: int, fixed: Mapping[str, Labels]) -> None:
        specs = json.loads((Path(__file__).parent / "families.json").read_text())
        self._families = {s["name"]: Family(s, common, longest) for s in specs if "fixed" not in s}
        self._order = [s["name"] for s in specs]
        self._fixed = {s["name"]: _fixed_lines(s, fixed[s["name"]]) for s in specs if "fixed" in s}

    def __getitem__(self, name: str) -> Family:
        """Return a family by its name."""
        return self._families[name]

    def render(self) -> bytes:
        """Return the whole text of a scrape."""
        lines: list[str] = []
        for name in self._order:
            lines.extend(self._fixed[name] if name in self._fixed else self._families[name].lines())
        return ("\n".join(lines) + "\n").encode()
