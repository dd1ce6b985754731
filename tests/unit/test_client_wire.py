"""HTTP/1.1 responses in whatever pieces the network makes of them."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drills.load.wire import Chunked, Sized, UntilClose, WireError, body_of, split_head

payloads = st.lists(st.binary(min_size=1, max_size=40), max_size=8)


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[a:b] for a, b in itertools.pairwise(edges)]


@given(payload=payloads, cuts=st.lists(st.integers(0, 10_000), max_size=30), extension=st.booleans())
def test_chunks_come_back_whole_however_they_are_cut(payload: list[bytes], cuts: list[int], extension: bool) -> None:
    mark = b";a=b" if extension else b""
    data = b"".join(b"%x%s\r\n%s\r\n" % (len(p), mark, p) for p in payload) + b"0\r\nx: y\r\n\r\n"
    body = Chunked()
    got = b""
    for piece in pieces(data, cuts):
        assert not body.ended
        got += body.feed(piece)
    assert got == b"".join(payload)
    assert body.ended
    assert body.eof()


@pytest.mark.parametrize(
    "data",
    [b"zz\r\n", b"-5\r\n", b"1_0\r\nx", b"\r\n", b"3\r\nabcd\r\n", b"3\r\nabcdef", b"0x3\r\nabc", b"f" * 2000],
)
def test_what_is_no_chunk_is_refused(data: bytes) -> None:
    with pytest.raises(WireError):
        Chunked().feed(data)


@pytest.mark.parametrize("data", [b"", b"5\r\nab", b"2\r\nab\r\n", b"2\r\nab", b"0\r\n"])
def test_chunks_may_not_end_early(data: bytes) -> None:
    body = Chunked()
    body.feed(data)
    assert not body.ended
    assert not body.eof()


def test_a_sized_body_ends_at_its_length() -> None:
    body = Sized(5)
    assert body.feed(b"abc") == b"abc"
    assert not body.eof()
    assert body.feed(b"defg") == b"de"
    assert body.ended
    assert Sized(0).ended


def test_a_body_without_length_ends_with_the_connection() -> None:
    body = UntilClose()
    assert body.feed(b"abc") == b"abc"
    assert not body.ended
    assert body.eof()


def test_a_head_is_split_from_what_follows() -> None:
    data = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 2\r\nX-Cache:  hit \r\n\r\nno"
    for cut in range(len(data) - 2):
        assert split_head(data[:cut]) is None
    split = split_head(data)
    assert split is not None
    head, rest = split
    assert head.status == 503
    assert head.headers == {"content-length": "2", "x-cache": "hit"}
    assert head.reusable
    assert rest == b"no"


def test_interim_responses_are_skipped() -> None:
    split = split_head(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nconnection: close\r\n\r\n")
    assert split is not None
    assert split[0].status == 200
    assert not split[0].reusable
    assert split_head(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 2") is None


def test_http_1_0_is_kept_open_only_when_it_says_so() -> None:
    for head, reusable in ((b"HTTP/1.0 200 OK", False), (b"HTTP/1.0 200 OK\r\nConnection: keep-alive", True)):
        split = split_head(head + b"\r\n\r\n")
        assert split is not None
        assert split[0].reusable is reusable


@pytest.mark.parametrize(
    "data",
    [
        b"\x00\x01 garbage",
        b"SSH-2.0-OpenSSH",
        b"HTTP/2 200\r\n\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        b"HTTP/1.1 200 OK\r\na: " + b"x" * 70_000,
    ],
)
def test_what_is_no_response_is_refused(data: bytes) -> None:
    with pytest.raises(WireError):
        split_head(data)


def test_the_head_decides_how_the_body_ends() -> None:
    def kind(*lines: bytes) -> object:
        split = split_head(b"\r\n".join([b"HTTP/1.1 200 OK", *lines]) + b"\r\n\r\n")
        assert split is not None
        return type(body_of(split[0]))

    assert kind(b"Transfer-Encoding: chunked", b"Content-Length: 3") is Chunked
    assert kind(b"Content-Length: 3") is Sized
    assert kind() is UntilClose
    with pytest.raises(WireError, match="content-length"):
        kind(b"Content-Length: -3")
