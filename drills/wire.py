"""Where HTTP/1.1 messages begin and end in a stream of bytes; nothing is copied, changed or sent here.

The proxy passes bytes on as they are and uses a `Framer` beside them to know which bytes belong to which
request. `Framer.feed` takes bytes and returns how many of them belong to the current message:

    used = framer.feed(data)      # data[:used] is of this message, data[used:] of the next one
    framer.head, framer.done, framer.marks
"""

from __future__ import annotations

from dataclasses import dataclass

#: A head longer than this is not one we want to read (bytes).
MAX_HEAD = 64 * 1024
_MAX_LINE = 8 * 1024


class BadFraming(ValueError):
    """The bytes are no HTTP/1.1 message whose end we could find."""


@dataclass(frozen=True)
class Head:
    """The first line in its three parts, and the header fields with lower-case names (the last of a name wins)."""

    first: tuple[str, str, str]
    fields: dict[str, str]

    @property
    def method(self) -> str:
        """The method of a request."""
        return self.first[0]

    @property
    def path(self) -> str:
        """The path of a request, without its query."""
        return self.first[1].partition("?")[0]

    @property
    def status(self) -> int:
        """The status of a response."""
        return int(self.first[1])


def head_end(data: bytes | bytearray) -> int:
    """Return the offset behind the head's empty line, or -1 while it is not there yet."""
    at = data.find(b"\r\n\r\n", 0, MAX_HEAD)
    if at < 0 and len(data) > MAX_HEAD:
        raise BadFraming(f"head longer than {MAX_HEAD} bytes")
    return at + 4 if at >= 0 else -1


def parse_head(raw: bytes) -> Head:
    """Parse a complete head, of a request or of a response."""
    lines = raw.decode("latin-1").rstrip("\r\n").split("\r\n")
    parts = lines[0].split(" ", 2)
    if len(parts) == 2:  # "HTTP/1.1 200": the reason may be missing, with its space
        parts.append("")
    if len(parts) != 3 or (parts[0].startswith("HTTP/") and not parts[1].isdigit()):
        raise BadFraming(f"first line {lines[0][:80]!r}")
    fields = {}
    for line in lines[1:]:
        name, colon, value = line.partition(":")
        if not colon:
            raise BadFraming(f"header line {line[:80]!r}")
        fields[name.lower()] = value.strip()
    return Head((parts[0], parts[1], parts[2]), fields)


class Framer:
    """Follows one message. `answers` is the method that a response answers; None frames a request."""

    __slots__ = (
        "_chunked",
        "_early",
        "_left",
        "_line",
        "_trailer",
        "answers",
        "body",
        "done",
        "head",
        "marks",
        "until_close",
    )

    def __init__(self, answers: str | None = None) -> None:
        self.answers = answers
        self.head: Head | None = None
        self.done = False
        self.body = False  # the bytes fed last held some of the body
        self.until_close = False  # a response that ends with its connection
        self.marks: list[int] = []  # offsets in the bytes fed last where a piece of the body ends
        self._early = b""  # a head that has not come whole yet
        self._left = 0  # bytes of the body, or of the current chunk with its CRLF, still to come
        self._line = b""  # a chunk-size or trailer line that has not come whole yet
        self._chunked = False
        self._trailer = False

    def feed(self, data: bytes) -> int:
        """Take bytes; return how many belong to this message. Raises BadFraming."""
        self.marks.clear()
        self.body = False
        at = 0
        while self.head is None:
            if at >= len(data):
                return at
            at = self._feed_head(data, at)
        if self.done or at >= len(data):
            return at
        self.body = True
        if self._chunked:
            return self._feed_chunks(data, at)
        return self._feed_plain(data, at)

    def _feed_head(self, data: bytes, at: int) -> int:
        raw = self._early + data[at:]
        end = head_end(raw)
        if end < 0:
            self._early = raw
            return len(data)
        at += end - len(self._early)
        self._early = b""
        head = parse_head(raw[:end])
        if self.answers is not None and 100 <= head.status < 200 and head.status != 101:
            return at  # interim: the real head follows
        self.head = head
        self._plan(head)
        return at

    def _plan(self, head: Head) -> None:
        """Decide from the head how the body ends."""
        coding = head.fields.get("transfer-encoding", "").lower()
        length = head.fields.get("content-length")
        bodiless = self.answers is not None and (self.answers == "HEAD" or head.status in (204, 304))
        if bodiless:
            self.done = True
        elif coding.endswith("chunked"):
            self._chunked = True
        elif length is not None:
            if not length.isdigit():
                raise BadFraming(f"content-length {length!r}")
            self._left = int(length)
            self.done = self._left == 0
        elif self.answers is not None:
            self.until_close = True
        else:
            self.done = True

    def _feed_plain(self, data: bytes, at: int) -> int:
        if self.until_close:
            return len(data)
        step = min(self._left, len(data) - at)
        self._left -= step
        self.done = self._left == 0
        return at + step

    def _feed_chunks(self, data: bytes, at: int) -> int:
        end = len(data)
        while at < end and not self.done:
            if self._left:
                step = min(self._left, end - at)
                self._left -= step
                at += step
                if not self._left:
                    self.marks.append(at)
                continue
            newline = data.find(b"\n", at)
            if newline < 0:
                self._line += data[at:]
                if len(self._line) > _MAX_LINE:
                    raise BadFraming("chunk line without an end")
                return end
            line = self._line + data[at:newline]
            self._line = b""
            at = newline + 1
            self._chunk_line(line.strip())
        return at

    def _chunk_line(self, line: bytes) -> None:
        if self._trailer:
            self.done = not line
            return
        size = line.partition(b";")[0].strip()
        if not size.isalnum():
            raise BadFraming(f"chunk size {line[:40]!r}")
        try:
            count = int(size, 16)
        except ValueError:
            raise BadFraming(f"chunk size {line[:40]!r}") from None
        if count:
            self._left = count + 2
        else:
            self._trailer = True
