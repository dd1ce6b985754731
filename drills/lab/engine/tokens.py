"""Words to token ids and back: one whitespace-separated word is one token.

An id is the word's CRC-32, four bytes; a prompt is its ids as bytes. Answers are numbered words, and an
answer sent back as part of the next turn's prompt gives the very ids it was generated with, which is what
lets the prefix cache serve the next turn.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from functools import lru_cache
from zlib import crc32

ID_BYTES = 4
Message = tuple[str, str]  # role, content


@lru_cache(maxsize=4096)
def encode(text: str) -> bytes:
    """Return the token ids of a text, four bytes each."""
    return array("I", [crc32(word.encode(errors="surrogatepass")) for word in text.split()]).tobytes()


def encode_ids(ids: Sequence[int]) -> bytes:
    """Return ids that a client sent as numbers in the form `encode` gives."""
    return array("I", [i & 0xFFFFFFFF for i in ids]).tobytes()


def encode_chat(messages: Sequence[Message]) -> bytes:
    """Return the ids of a chat in the template `<|bos|>(<|role|>content<|end|>)*<|assistant|>`."""
    parts = [encode("<|bos|>")]
    for role, content in messages:
        parts += [encode(f"<|{role}|>"), encode(content), encode("<|end|>")]
    parts.append(encode("<|assistant|>"))
    return b"".join(parts)


def count(ids: bytes) -> int:
    """Return how many tokens these ids are."""
    return len(ids) // ID_BYTES


def numbers(ids: bytes) -> list[int]:
    """Return the ids as numbers."""
    return array("I", ids).tolist()


@lru_cache(maxsize=16384)
def answer_id(index: int) -> bytes:
    """Return the id of an answer's token number `index` (from 0)."""
    return encode(f"t{index}")


def answer_text(start: int, stop: int) -> str:
    """Return the answer's tokens from `start` to before `stop` as text: `t0 t1 `, a space after each."""
    return "".join([f"t{i} " for i in range(start, stop)])
