"""Messages end where they end, however the bytes are cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drills.wire import BadFraming, Framer, head_end, parse_head

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n1;x=y\r\nd\r\n0\r\nTrailer: t\r\n\r\n"
LENGTH = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 5\r\n\r\nhello"
INTERIM = b"HTTP/1.1 100 Continue\r\n\r\n" + LENGTH
EMPTY = b"HTTP/1.1 204\r\n\r\n"


@given(st.sampled_from([CHUNKED, LENGTH, INTERIM, EMPTY]), st.lists(st.integers(1, 40)), st.booleans())
def test_any_cut_finds_the_same_end(message: bytes, cuts: list[int], more: bool) -> None:
    data = message + (b"HTTP/1.1 next" if more else b"")
    framer, at, used = Framer(answers="POST"), 0, 0
    for step in [*cuts, len(data)]:
        if framer.done or at >= len(data):
            break
        used += framer.feed(data[at : at + step])
        at += step
    assert framer.done
    assert used == len(message)


def test_marks_are_where_pieces_of_the_body_end() -> None:
    framer = Framer(answers="POST")
    framer.feed(CHUNKED)
    head = head_end(CHUNKED)
    assert framer.marks == [head + len(b"3\r\nabc\r\n"), head + len(b"3\r\nabc\r\n1;x=y\r\nd\r\n")]


@pytest.mark.parametrize(
    ("answers", "message", "done", "until_close"),
    [
        ("HEAD", b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", True, False),
        ("GET", b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n", True, False),
        ("GET", b"HTTP/1.0 200 OK\r\n\r\n", False, True),
        (None, b"GET / HTTP/1.1\r\n\r\n", True, False),
        (None, b"POST / HTTP/1.1\r\nContent-Length: 0\r\n\r\n", True, False),
    ],
)
def test_the_head_says_how_the_body_ends(answers: str | None, message: bytes, done: bool, until_close: bool) -> None:
    framer = Framer(answers=answers)
    assert framer.feed(message) == len(message)
    assert (framer.done, framer.until_close, framer.body) == (done, until_close, False)


@pytest.mark.parametrize(
    "message",
    [
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 abc OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n",
        b"x" * 70_000,
    ],
)
def test_what_cannot_be_framed_says_so(message: bytes) -> None:
    with pytest.raises(BadFraming):
        Framer(answers="POST").feed(message)


def test_a_head_is_read_with_lower_case_names() -> None:
    head = parse_head(b"POST /v1/completions?a=b HTTP/1.1\r\nX-Request-Id:  r-1 \r\n\r\n")
    assert (head.method, head.path, head.fields) == ("POST", "/v1/completions", {"x-request-id": "r-1"})
