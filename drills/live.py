"""What a person sees while a drill runs: a live panel on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

from drills import output
from drills.model import Json

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

PLAIN_INTERVAL_S = 10.0
REFRESH_PER_S = 4
LINES_KEPT = 8


class View(Protocol):
    """What shows the run to a person."""

    def phase(self, phase: str, planned_s: float) -> None:
        """Begin a phase."""

    def say(self, text: str) -> None:
        """Show one line that matters."""

    def tick(self, now: Json) -> None:
        """Show the present state."""


class PlainView:
    """One line for everything that matters, and one every ten seconds; for logs and pipes."""

    def __init__(self) -> None:
        self.current = ""
        self.next_mono = 0.0

    def __enter__(self) -> PlainView:
        return self

    def __exit__(self, *_: object) -> None:
        return

    def phase(self, phase: str, planned_s: float) -> None:
        """Say that a phase begins."""
        self.current = phase
        self.next_mono = time.monotonic() + PLAIN_INTERVAL_S
        self.say(f"phase {phase}, {'up to ' if phase == 'recovery' else ''}{planned_s:.0f} s")

    def say(self, text: str) -> None:
        """Print one line."""
        output.say(f"{time.strftime('%H:%M:%S', time.gmtime())} {text}")

    def tick(self, now: Json) -> None:
        """Print the state every ten seconds."""
        if time.monotonic() < self.next_mono:
            return
        self.next_mono = time.monotonic() + PLAIN_INTERVAL_S
        left = f"{now['left_s']:.0f} s left" if now["left_s"] is not None else "working"
        self.say(f"{self.current}: {left}; " + "; ".join(f"{name} {value}" for name, value in figures(now)))


class LiveView:
    """A panel that is redrawn in place."""

    def __init__(self, title: str, console: Console) -> None:
        from rich.live import Live

        self.title, self.console = output.visible(title), console
        self.name, self.planned_s, self.now = "starting", 0.0, {}
        self.lines: deque[str] = deque(maxlen=LINES_KEPT)
        self.live = Live(get_renderable=self._draw, console=console, refresh_per_second=REFRESH_PER_S)

    def __enter__(self) -> LiveView:
        self.live.__enter__()
        return self

    def __exit__(self, *problem: Any) -> None:
        self.live.__exit__(*problem)

    now: Json

    def phase(self, phase: str, planned_s: float) -> None:
        """Begin a phase."""
        self.name, self.planned_s = phase, planned_s
        self.say(f"phase {phase}")

    def say(self, text: str) -> None:
        """Add one line under the figures."""
        self.lines.append(output.visible(f"{time.strftime('%H:%M:%S', time.gmtime())} {text}"))

    def tick(self, now: Json) -> None:
        """Take the present state; the panel redraws itself."""
        self.now = now

    def _draw(self) -> RenderableType:
        from rich.console import Group
        from rich.panel import Panel
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        left = self.now.get("left_s")
        done = 0.0 if left is None else max(0.0, self.planned_s - left)
        head = Table.grid(padding=(0, 2))
        head.add_row(
            Text(self.name, style="bold"),
            ProgressBar(total=self.planned_s or 1, completed=done, width=40),
            Text("" if left is None else f"{left:.0f} s left"),
        )
        values = Table.grid(padding=(0, 3))
        for _ in range(4):
            values.add_column()
        cells = [output.visible(f"{name} {value}") for name, value in figures(self.now)] if self.now else []
        for i in range(0, len(cells), 4):
            values.add_row(*[Text(c, style=_style(c)) for c in cells[i : i + 4]])
        return Panel(Group(head, values, *[Text(line, style="dim") for line in self.lines]), title=self.title)


def worth_saying(event: str, data: Json) -> str | None:
    """Return the line about an event that a person who watches wants to see, None for most events."""
    match event:
        case "inject.hit":
            return f"fault on: {', '.join(data['victims'])}"
        case "inject.step" if data["step"] in ("reset.begin", "reset.end", "gate.opened"):
            return f"{data['step']} {data.get('outcome', '')}".rstrip()
        case "proof.off" if not data["held"]:
            return f"{data['fault']}: {'nothing' if data['ok'] else 'NOT proven that nothing'} of ours is left in place"
        case "proof.on" | "proof.off":
            return f"{data['fault']}: {'proven' if data['ok'] else 'NOT proven'} {event.removeprefix('proof.')}"
        case "replica" if data.get("change") in ("gone", "started", "ready"):
            return f"{data['replica']}: {data['change']}"
        case "alert" if data["source"] == "prometheus" and "firing" in (data["state"], data["was"]):
            return f"alert {data['alert']}: {'over' if data['state'] == 'inactive' else data['state']}"
        case "beside.inject.step" if "matchers" in data:
            return f"silenced: {data['matchers']}, until {data['until']}"
        case "announced":
            return f"{data['what']} of the drill announced" + (f": FAILED: {data['error']}" if "error" in data else "")
        case "scaled" | "scaled.back":
            return f"{data['subject']}: {event} {data['was']} → {data['now']}, by {data['by']}"
        case "notified":
            return f"alert {data['alert']}: notified, {data['status']}"
    return None


def figures(now: Json) -> list[tuple[str, str]]:
    """Return the figures of the present state as (name, value)."""
    beat = now.get("beat") or {}
    second = beat.get("second", {})
    bad = sum(n for outcome, n in beat.get("outcomes", {}).items() if outcome not in ("ok", "degraded"))
    degraded = beat.get("outcomes", {}).get("degraded", 0)
    return [
        ("offered", f"{second.get('drawn', 0)}/s"),
        ("achieved", f"{second.get('ended', 0)}/s"),
        ("errors", f"{bad}" + (f" (+{degraded} degraded)" if degraded else "")),
        ("open", f"{beat.get('open', 0)}"),
        ("TTFT p50", _ms(beat.get("ttft_p50_ms"))),
        ("TTFT p99", _ms(beat.get("ttft_p99_ms"))),
        ("ready", f"{now.get('ready', 0)}/{now.get('expected', 0)}"),
        ("fault", f"ON {now['fault']}" if now.get("fault") else "off"),
    ]


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f} ms"


def _style(cell: str) -> str:
    return "bold red" if cell.startswith("fault ON") else ""


def view(title: str, *, plain: bool) -> Harmless:
    """Return the view that suits standard output."""
    if plain or not sys.stdout.isatty():
        return Harmless(PlainView())
    from rich.console import Console

    return Harmless(LiveView(title, Console()))


class Harmless:
    """A view whose failure changes no drill."""

    def __init__(self, inner: PlainView | LiveView) -> None:
        self.inner = inner

    def __enter__(self) -> Harmless:
        with suppress(Exception):
            self.inner.__enter__()
        return self

    def __exit__(self, *problem: Any) -> None:
        with suppress(Exception):
            self.inner.__exit__(*problem)

    def phase(self, phase: str, planned_s: float) -> None:
        """Begin a phase."""
        with suppress(Exception):
            self.inner.phase(phase, planned_s)

    def say(self, text: str) -> None:
        """Show one line that matters."""
        with suppress(Exception):
            self.inner.say(text)

    def tick(self, now: Json) -> None:
        """Show the present state."""
        with suppress(Exception):
            self.inner.tick(now)
