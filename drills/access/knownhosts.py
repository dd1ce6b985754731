"""Which host keys are known, by OpenSSH's files of that name. Reads only.

Patterns, hashed names and `@revoked` count as there; a `@cert-authority` does not: who is behind it is not looked at.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import translate
from pathlib import Path
from typing import Final

from drills.errors import Refused

DEFAULT: Final = ("~/.ssh/known_hosts", "/etc/ssh/ssh_known_hosts")
PORT: Final = 22


@dataclass(frozen=True)
class HostKey:
    """A key, and where it is written."""

    type: str  # ssh-ed25519, ecdsa-sha2-nistp256, ssh-rsa, ...
    blob: bytes
    path: str = ""
    line: int = 0

    @property
    def fingerprint(self) -> str:
        """Return it as `ssh-keygen -l` shows it."""
        return "SHA256:" + base64.b64encode(hashlib.sha256(self.blob).digest()).decode().rstrip("=")

    @property
    def where(self) -> str:
        """Return where it is written."""
        return f"{self.path}:{self.line}"

    @property
    def text(self) -> str:
        """Return type and key as a line of the file holds them."""
        return f"{self.type} {base64.b64encode(self.blob).decode()}"


@dataclass(frozen=True)
class Known:
    """What the files say of one name."""

    name: str  # as the files write it
    keys: tuple[HostKey, ...]
    revoked: tuple[HostKey, ...]


def name_of(address: str, port: int) -> str:
    """Return the name by which the files know an address."""
    return address.lower() if port == PORT else f"[{address.lower()}]:{port}"


def known(files: Sequence[str], address: str, port: int) -> Known:
    """Return what these files say of it; one that is not there says nothing. Refused when one cannot be read."""
    name = name_of(address, port)
    keys: list[HostKey] = []
    revoked: list[HostKey] = []
    for file in files:
        for marker, names, key in _entries(file):
            if marker in ("", "@revoked") and _meant(name, names):
                (revoked if marker else keys).append(key)
    return Known(name, tuple(keys), tuple(revoked))


def _entries(file: str) -> Iterator[tuple[str, str, HostKey]]:
    """Yield (marker, names, key) of each line that holds a key."""
    path = Path(file).expanduser()
    try:
        text = path.read_text(errors="replace")
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        raise Refused(f"known hosts: {path} cannot be read: {error.strerror}") from None
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        marker = words.pop(0) if words and words[0].startswith("@") else ""
        if len(words) < 3 or words[0].startswith("#"):
            continue
        try:
            blob = base64.b64decode(words[2], validate=True)
        except binascii.Error:
            continue
        yield marker, words[0], HostKey(words[1], blob, str(path), number)


def _meant(name: str, names: str) -> bool:
    """Whether these names of an entry mean that one; a name with `!` before it means all but that."""
    meant = False
    for pattern in names.split(","):
        if pattern.startswith("!"):
            if _matches(name, pattern[1:]):
                return False
        else:
            meant = meant or _matches(name, pattern)
    return meant


def _matches(name: str, pattern: str) -> bool:
    if pattern.startswith("|1|"):
        try:
            salt, digest = (base64.b64decode(part) for part in pattern.split("|")[2:])
        except ValueError:  # binascii.Error is one
            return False
        return hmac.compare_digest(hmac.digest(salt, name.encode(), "sha1"), digest)
    # Brackets are those of [name]:port here, never a set of characters.
    escaped = pattern.lower().replace("[", "[[]")
    return re.match(translate(escaped), name) is not None
