"""Writes the alert rules of examples/kubernetes from the shipped ones; `--check` says whether they are current."""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SHIPPED = ROOT / "drills" / "data" / "alerts"
EXAMPLES = ROOT / "examples" / "kubernetes"
RULES = ("vllm.rules.yml", "serving-minimum.rules.yml")
HEAD = """\
# The alert rules that drill ships ({folder}), {what}
# Made by tools/example_alerts.py: change the rules there, or take your own copy.
apiVersion: v1
kind: ConfigMap
metadata: {{name: vllm-alerts}}
data:
"""
AS_SHIPPED = "unchanged: they suit engines that take minutes to load."
QUICK = """with short times: an engine
# that is back within 20 s would never be missed by an alert that waits a minute. Not for production."""
#: As short as the lab's, which scrapes each second, too.
TIMES = ((r"\[5m\]", "[10s]"), (r"\[1m\]", "[5s]"), (r"^( +)for: \S+$", r"\1for: 5s"))


def pages() -> dict[Path, str]:
    """Return what the files should hold."""
    texts = {name: (SHIPPED / name).read_text() for name in RULES}
    quick = texts | {RULES[0]: _quick(texts[RULES[0]])}
    return {
        EXAMPLES / "alerts.yaml": _config_map(texts, AS_SHIPPED),
        EXAMPLES / "alerts-emulated.yaml": _config_map(quick, QUICK),
    }


def _quick(text: str) -> str:
    for pattern, short in TIMES:
        text = re.sub(pattern, short, text, flags=re.MULTILINE)
    return text


def _config_map(texts: dict[str, str], what: str) -> str:
    body = HEAD.format(folder=SHIPPED.relative_to(ROOT), what=what)
    for name, text in texts.items():
        lines = "".join(f"    {line}\n" if line else "\n" for line in text.splitlines())
        body += f"  {name}: |\n{lines}"
    return body


def main() -> int:
    """Write or check; 0, or 1 when a file is not current."""
    old = [path for path, text in pages().items() if not path.exists() or path.read_text() != text]
    if "--check" not in sys.argv[1:]:
        for path in old:
            path.write_text(pages()[path])
        return 0
    for path in old:
        print(f"{path.relative_to(ROOT)} is not current: run python tools/example_alerts.py", file=sys.stderr)
    return 1 if old else 0


if __name__ == "__main__":
    sys.exit(main())
