"""Foreign text stays text: in Markdown, in HTML, and in a terminal."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from drills.report import escape, run, words
from tests.unit import report_runs

NASTY = [
    "\x1b[31mred\x1b[0m\x07", "<script>alert(1)</script>", "[click](javascript:x)", "![x](http://evil/x.png)", "a|b",
    "`", "``` \n# heading", "--- \n- item", "@everyone", "https://evil.example", "www.evil.example", "\u202egnp.exe",
    "{{ 7 * 7 }}", "{% raw %}", "*bold* _it_ ~~gone~~", "&lt;b&gt;", "1. item", "| --- |", "\\", "$x^2$", "",
    " ", "\x00", "a\r\nb", "\u2028", "<!-- -->", "#1", "\ud800",
]  # fmt: skip
texts = st.one_of(
    st.sampled_from(NASTY), st.text(max_size=60), st.text(alphabet="`|\\*_[]()<>#&@:\n\x1b-", max_size=30)
)


def html(markdown: str) -> str:
    """Render as a Git host does, with raw HTML, tables and links of bare addresses."""
    return str(MarkdownIt("gfm-like", {"html": True, "linkify": False}).render(markdown))


def tags(markdown: str) -> list[str]:
    return re.findall(r"</?[a-zA-Z][^>]*>|<!--", html(markdown))


@given(texts)
def test_code_is_one_code_span(text: str) -> None:
    assert tags(f"before {escape.code(text)} after") == ["<p>", "<code>", "</code>", "</p>"]


@given(texts)
def test_code_stays_in_its_table_cell(text: str) -> None:
    table = f"| a | b |\n| --- | --- |\n| {escape.code(text)} | {escape.prose(text)} |"
    assert html(table).count("<td>") == 2
    assert html(table).count("<tr>") == 2


@given(texts)
def test_prose_has_no_markup_of_its_own(text: str) -> None:
    assert tags(f"before {escape.prose(text)} after") == ["<p>", "</p>"]


@given(texts, texts)
def test_a_sentence_with_names_has_code_and_nothing_else(text: str, name: str) -> None:
    shown = escape.spans(f"{text} {escape.ticked(name)} {text}")
    assert set(tags(f"before {shown} after")) <= {"<p>", "</p>", "<code>", "</code>"}
    assert html(f"| a | b |\n| --- | --- |\n| {shown} | x |").count("<td>") == 2


@given(texts)
def test_a_sentence_begins_no_block(text: str) -> None:
    assert set(tags(f"- {escape.spans(text)}x")) <= {"<ul>", "<li>", "</li>", "</ul>", "<code>", "</code>"}


def test_names_in_a_sentence_are_code() -> None:
    assert escape.spans("Mend `a_b`, not c_d, `") == "Mend `a_b`, not c\\_d, \\`"
    assert escape.spans(f"see {escape.ticked('a`b')}") == "see `a'b`"


@given(texts)
def test_prose_begins_no_block(text: str) -> None:
    assert tags(f"- {escape.prose(text)}x") == ["<ul>", "<li>", "</li>", "</ul>"]


@given(texts)
def test_a_fence_holds_its_content(text: str) -> None:
    assert tags(escape.fence(f"{text}\n```\n# no heading", "sh")) == [
        "<pre>",
        '<code class="language-sh">',
        "</code>",
        "</pre>",
    ]


@given(texts)
@example("\x1b]8;;http://evil\x07")
def test_nothing_reaches_a_terminal(text: str) -> None:
    for shown in (escape.code(text), escape.prose(text), escape.spans(text), escape.ascii_name(text)):
        assert shown.isprintable() or not shown


@given(texts)
def test_no_address_and_no_mention_is_left(text: str) -> None:
    shown = escape.prose(f"{text} http://evil.example www.evil.example @ada")
    assert "://" not in shown
    assert "www." not in shown
    assert "@" not in shown


@pytest.mark.parametrize("text", ["replica-1", "GPU-5f0c-11", "connection refused", "1.80 s", "p99 of new requests"])
def test_harmless_text_stays_as_it_is(text: str) -> None:
    assert escape.prose(text) == text
    assert escape.code(text) == f"`{text}`"


# No shrinking: each example is a whole report, and a failure is read as well from the text it made.
@settings(
    max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow], phases=[Phase.explicit, Phase.generate]
)
@given(texts, texts)
@example("\x1b[2J</text>", "`|<img src=x onerror=alert(1)>|`\n# owned")
def test_a_whole_report_with_hostile_names_is_inert(name: str, error: str) -> None:
    name = name.encode("utf-8", "replace").decode() or "x"  # JSON of a journal cannot hold half a surrogate
    with tempfile.TemporaryDirectory() as place:
        folder = report_runs.build(
            Path(place) / "run", rate=1.0, victim=name, alert=name, error_text=error.encode("utf-8", "replace").decode()
        )
        made = run.render(folder)
    text = made["postmortem.md"].decode()
    assert all(char.isprintable() or char == "\n" for char in text)
    images = [tag for tag in tags(text) if tag.startswith("<img ")]
    shown = [figure for tag in images for figure in re.findall(r'src="([^"]*)"', tag)]
    assert shown == ["latency.svg", "outcomes.svg", "ecdf.svg", "attempts.svg"]
    assert {tag for tag in tags(text) if tag not in images} <= OURS
    assert len(re.findall(r"^# ", text, re.MULTILINE)) == 1
    for figure in shown:
        ElementTree.fromstring(made[figure])


BLOCKS = ("p", "h1", "h2", "strong", "em", "code", "pre", "ul", "li", "table", "thead", "tbody", "tr", "th", "td")
OURS = {f"<{slash}{tag}>" for slash in ("", "/") for tag in BLOCKS} | {
    '<code class="language-sh">', '<a href="#how-to-repeat">', '<a href="#action-items">', "</a>"
}  # fmt: skip


# ---- numbers -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, "no data"), (float("nan"), "no data"), (float("inf"), words.NEVER), (0, "0 s"), (0.0001, "< 1 ms"),
     (0.412, "412 ms"), (4.312, "4.31 s"), (61.24, "61.2 s"), (312.4, "312 s")],
)  # fmt: skip
def test_seconds(value: float | None, shown: str) -> None:
    assert words.seconds(value) == shown


@pytest.mark.parametrize(
    ("value", "shown"), [(None, "no data"), (1.0, "100 %"), (0.9997, "99.97 %"), (0.0003, "0.03 %"), (0.25, "25.0 %")]
)
def test_shares_are_not_rounded_into_all_or_none(value: float | None, shown: str) -> None:
    assert words.share(value) == shown


def test_an_open_interval_is_said_in_words() -> None:
    assert words.between(0.2, None, "s") == "at least 200 ms"
    assert words.between(None, 0.2, "s") == "at most 200 ms"
    assert words.between(None, None, "s") == "no data"
    assert words.quantity("> 41.2", "s") == "> 41.2 s"
    assert words.quantity("inf", "s") == words.NEVER


def test_a_long_text_is_cut_at_a_word() -> None:
    text = "60 s allowed; cache_recovery: replica-0 never came back"
    assert escape.shorten(text, 22) == "60 s allowed…"
    assert escape.shorten(text, 30) == "60 s allowed; cache_recovery…"
    assert escape.shorten("one two", 4) == "one…"  # between two words
    assert escape.shorten(text, 200) == text
    for length in range(8, len(text)):
        cut = escape.shorten(text, length)
        assert len(cut) <= length
        assert cut.endswith("…")


def test_a_word_without_end_is_cut_in_itself() -> None:
    assert escape.shorten("a " + "x" * 300) == "a " + "x" * 197 + "…"
