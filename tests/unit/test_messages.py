"""Reports in another language than English: no message is missing, and nothing English is left where words are ours."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from drills import lang, reviews, runfolder
from drills.errors import UsageError
from drills.lang import mark, t
from drills.report import run as report
from tests.unit import stored_month

ROOT = Path(__file__).parents[2]
#: Three words in a row are a piece of a sentence; two may be a name.
SENTENCE = re.compile(r"[A-Za-z]{2,}(?:[ ,;:]+[A-Za-z]{2,}){2,}")
#: Names of metrics stay as they are.
NAMES = ("prefix hit rate",)
#: What is not ours to translate: code, links, where a line comes from.
FOREIGN = re.compile(r"```.*?```|(`+)(?!`).*?(?<!`)\1(?!`)|\]\([^)]*\)|&#?\w+;|\w+\.ndjson, probe \w+", re.DOTALL)


def test_every_message_is_translated_with_its_placeholders() -> None:
    done = subprocess.run(
        [sys.executable, "tools/messages.py", "--check"], cwd=ROOT, text=True, capture_output=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def month(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stored_month.write(tmp_path_factory.mktemp("month"))


@pytest.mark.parametrize("number", range(len(stored_month.SIX)), ids=lambda n: stored_month.SIX[n][2].__name__)
def test_a_postmortem_in_chinese_has_no_english_sentence(month: Path, number: int) -> None:
    folder = runfolder.list_runs(month / "runs")[number]
    text = report.render(folder, lang="zh")["postmortem.zh.md"].decode()
    assert english(text, own_words(folder)) == []


@pytest.mark.parametrize("when", [("2026-11", None), (None, "2026Q4")], ids=["month", "quarter"])
def test_a_review_in_chinese_has_no_english_sentence(month: Path, when: tuple[str | None, str | None]) -> None:
    reviews.write(month, *when, None, lambda _: None, lang="zh")
    text = (month / str(when[0] or when[1]) / "review.zh.md").read_text()
    own = [own_words(folder) for folder in runfolder.list_runs(month / "runs")]
    own += [path.read_text() for path in (month / "2026-11").glob("*.json")]  # why a drill did not run
    assert english(text, "".join(own)) == []


def english(text: str, own: str) -> list[str]:
    """Return the pieces of English sentences, but for those in `own`."""
    return [found for found in SENTENCE.findall(FOREIGN.sub(" ", text)) if found not in own]


def own_words(folder: Path) -> str:
    """Return what people and programs wrote into the run's files, and the names of metrics: they stay as they are."""
    return "\n".join(
        [*NAMES, *((folder / name).read_text(errors="replace") for name in ("plan.json", "journal.jsonl"))]
    )


def test_a_message_is_said_in_the_language_that_is_spoken() -> None:
    known = mark("no data")
    with lang.speaking("zh"):
        assert t(known) != known
        with lang.speaking("en"):
            assert t(known) == known
        assert lang.spoken() == "zh"
    assert (t(known), lang.spoken()) == (known, "en")


def test_what_fills_a_placeholder_is_not_read_as_one() -> None:
    assert t("{what}", what="{evil} %s") == "{evil} %s"


def test_a_language_there_is_no_catalogue_of_is_refused_in_one_line() -> None:
    with pytest.raises(UsageError, match="--lang xx: no such language; valid: en, zh"), lang.speaking("xx"):
        pass
