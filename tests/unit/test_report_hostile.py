"""Whatever stands in a run's files: the postmortem is inert Markdown, figures and JSON are well-formed."""

from __future__ import annotations

import json
import random
import re
import tempfile
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from drills import schemas, strictjson
from drills.report import run as report
from tests.unit import runs
from tests.unit.test_report_escape import NASTY, OURS, tags

#: Of our own are the words that a run did not finish, and that a defect was planted.
QUOTES = OURS | {"<blockquote>", "</blockquote>"}
#: Without these a file is not read at all.
KEPT = {"event", "time"}
LONG = "Ω`|<b>" * 3000
EVIL = [
    *NASTY, LONG, "\x1b]0;title\x07", "\x9b31m", "\u061c\u2066x\u2069", "\u200b\u200d", "=HYPERLINK(1)",
    "</td></table>",
    "javascript:alert(1)", "![](x)", "[x]: http://evil", "<a href=x>", "\\\\", "`` ` ``", "|" * 50, "\n\n## owned\n\n",
    "%s {0} {name}", "A" * 5000, "🙂" * 200, "a\u0300" * 300,
]  # fmt: skip


class Poison:
    """Replaces texts of plain data by hostile ones, each by chance; drawn by a seed."""

    def __init__(self, seed: int, share: float) -> None:
        self._random, self._share = random.Random(seed), share

    def spoil(self, value: Any, key: str = "") -> Any:
        if isinstance(value, dict):
            return {self._key(k): self.spoil(item, k) for k, item in value.items()}
        if isinstance(value, list):
            return [self.spoil(item, key) for item in value]
        if isinstance(value, str) and key not in KEPT and self._random.random() < self._share:
            return self._random.choice(EVIL).encode("utf-8", "replace").decode()
        return value

    def _key(self, key: str) -> str:
        """Names of metrics and GPUs are data, too."""
        data = "{" in key or key.startswith("GPU-")
        return key + self._random.choice(EVIL[:20]) if data and self._random.random() < self._share else key


def poisoned(folder: Path, seed: int, share: float, *, plan: bool) -> Path:
    """Write a run full of events of every kind, with hostile texts; without `plan` those of plan and verdict stay."""
    run = runs.healthy(2.0)
    run.plan["defect"] = "planted"
    run.plan["experiment"] |= {"playbook": "p", "hypothesis": "h"}
    for sample in run.samples:
        if sample["probe"] == "router":
            sample["values"]['x_cb_state{worker="http://w"}'] = float(sample["mono"] > runs.HIT + 2)
    at = runs.HIT + 3
    run.tell(at, "stop", by="somebody", how="drill stop")
    run.tell(at, "signal", signal="SIGINT")
    run.tell(at, "guard", guard="error_ratio", query="up", value=1.0, bound=0.6)
    run.tell(at, "changed_by_others", what="replicas", subject="deployment", was="3", now="4")
    run.tell(at, "scaled", what="replicas", subject="deployment", was="3", now="4", by="autoscaler")
    run.tell(at, "scaled.left", what="replicas", subject="deployment", was="3", now="4", by="autoscaler")
    run.tell(at, "undo.failed", receipt="r1", manual=["systemctl start x"])
    run.tell(at, "broken", step="inject", error="RuntimeError: x")
    run.tell(at, "announced", alert="DrillBegins", what="begin", error="refused")
    run.tell(at, "unreachable", asked="target", reason="timed out")
    run.tell(at, "something.new", text="x")
    run.tell(at, "replica", replica="replica-2", role="primary", change="gone", uid="u", source="s", by="b")
    for data in run.of("header"):
        data |= {
            "oncall": "ada",
            "versions": {"vllm": "1"},
            "command": "drill run x",
            "tool": {"version": "1", "git": "g"},
        }
        data["facts"] = {"notes": ["a note"], "entry": {"use": "edge"}}
        data["clock"] = {"offsets": {"gpu-host": 0.2}}
    poison = Poison(seed, share)
    header = next(event for event in run.events if event["event"] == "header")
    header["data"].pop("plan", None)
    for place in (run.requests, run.ledger, run.samples, run.events):
        place[:] = [poison.spoil(row) for row in place]
    if plan:
        run.plan = poison.spoil(run.plan)
    run.write(folder)
    checks = [{"check": f"c{n}", "verdict": word, "value": "v", "bound": "b", "unit": "", "reason": "r", "params":
               {"name": "n"}, "events": [1], "detail": {}} for n, word in
              enumerate(("pass", "fail", "inconclusive", "not judged"))]  # fmt: skip
    said = {"run": "r", "verdict": "fail", "restored": "dirty", "left": "degraded", "reason": "x", "checks": checks}
    (folder / "verdict.json").write_text(json.dumps(poison.spoil(said) if plan else said))
    return folder


def inert(made: dict[str, bytes]) -> None:
    text = made["postmortem.md"].decode()
    assert all(char.isprintable() or char == "\n" for char in text)
    found = tags(text)
    images = [tag for tag in found if tag.startswith("<img ")]
    files = [name for tag in images for name in re.findall(r'src="([^"]*)"', tag)]
    assert set(files) == {name for name in made if name.endswith(".svg")}
    assert len(files) == len(images)
    assert {tag for tag in found if tag not in images} <= QUOTES
    assert all(line.startswith("> **") for line in text.splitlines() if line.startswith(">"))
    assert len(re.findall(r"^# ", text, re.MULTILINE)) == 1
    assert max(len(line) for line in text.splitlines()) < 6000
    for name, content in made.items():
        if name.endswith(".svg"):
            ElementTree.fromstring(content)
    schemas.adapter("postmortem").validate_json(made["postmortem.json"])
    strictjson.loads(made["postmortem.json"])


# No shrinking: each example is a whole report, and a failure is read as well from the text it made.
@settings(
    max_examples=6, deadline=None, suppress_health_check=[HealthCheck.too_slow], phases=[Phase.explicit, Phase.generate]
)
@given(st.integers(0, 10**6), st.sampled_from([0.05, 0.3, 1.0]), st.booleans())
@example(1, 1.0, True)
@example(2, 1.0, False)
@example(3, 0.05, True)
def test_any_text_of_any_file_is_inert(seed: int, share: float, plan: bool) -> None:
    with tempfile.TemporaryDirectory() as place:
        folder = poisoned(Path(place) / "run", seed, share, plan=plan)
        made = report.render(folder)
        inert(made)
        assert report.render(folder) == made


def test_nasty_texts_as_the_reason_of_everything(tmp_path: Path) -> None:
    folder = poisoned(tmp_path / "run", 0, 0.0, plan=False)
    path = folder / "verdict.json"
    safe = [text.encode("utf-8", "replace").decode() for text in EVIL]
    words = ("pass", "fail", "inconclusive", "not judged")
    checks = [
        {"check": text, "verdict": words[n % 4], "value": text, "bound": text, "unit": text, "reason": text,
         "params": {"name": text}, "events": [], "detail": {}}
        for n, text in enumerate(safe)
    ]  # fmt: skip
    path.write_text(json.dumps(json.loads(path.read_text()) | {"checks": checks, "reason": safe[0], "left": safe[1]}))
    inert(report.render(folder))
