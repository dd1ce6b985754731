"""The keys by which a user is let in over SSH: a file's, or the agent's. Nobody is ever asked for a passphrase."""

from __future__ import annotations

import base64
import binascii
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import paramiko
from paramiko.agent import AgentSSH

from drills.errors import Refused

_MAGIC = b"openssh-key-v1\0"


@dataclass(frozen=True)
class Offer:
    """A key that is offered; `what` names it for people."""

    what: str
    key: Any  # paramiko.PKey


class Agent(AgentSSH):  # type: ignore[misc] # comes without types
    """The SSH agent of this user, with a time-out, which paramiko's own way to it has not."""

    def __init__(self, path: str, timeout_s: float) -> None:
        super().__init__()
        link = socket.socket(socket.AF_UNIX)
        try:
            link.settimeout(timeout_s)
            link.connect(path)
            self._connect(link)
        except BaseException:
            link.close()
            raise

    def close(self) -> None:
        """Close the connection to it."""
        self._close()


def agent(timeout_s: float) -> Agent | None:
    """Return the agent, None when there is none. Refused when there is one that does not answer."""
    path = os.environ.get("SSH_AUTH_SOCK")
    if not path:
        return None
    try:
        return Agent(path, timeout_s)
    except (OSError, paramiko.SSHException) as error:
        why = f"{error.strerror or 'does not answer'}" if isinstance(error, OSError) else str(error)
        raise Refused(f"the SSH agent at {path} (SSH_AUTH_SOCK): {why}; start one, or name a key file") from None


def offers(key: str | None, there: Callable[[], Agent | None]) -> list[Offer]:
    """Return the keys to offer: that of the file, else those of the agent, who is asked only if needed.

    Refused when there is none.
    """
    if key is None:
        return _of_agent(there())
    path = Path(key).expanduser()
    try:
        text = path.read_bytes()
        return [Offer(f"the key {key}", paramiko.PKey.from_path(path))]
    except FileNotFoundError:
        raise Refused(f"the key file {key} is not there") from None
    except OSError as error:
        raise Refused(f"the key file {key} cannot be read: {error.strerror}") from None
    except (paramiko.SSHException, paramiko.UnknownKeyType, ValueError, TypeError, ArithmeticError):
        return [_held_by_agent(key, path, text, there())]


def _of_agent(there: Agent | None) -> list[Offer]:
    if there is None:
        raise Refused("no key is named and no SSH agent is there (SSH_AUTH_SOCK): name its file with `key`")
    found = [Offer(f"the agent's key {one.comment or one.fingerprint}", one) for one in there.get_keys()]
    if not found:
        raise Refused("no key is named and the SSH agent holds none: ssh-add FILE, or name the file with `key`")
    return found


def _held_by_agent(key: str, path: Path, text: bytes, there: Agent | None) -> Offer:
    """Return the agent's key of which this file holds the public part, or the private one that we cannot open."""
    blob = _public(path, text)
    for one in there.get_keys() if there and blob else ():
        if one.blob == blob:
            return Offer(f"the agent's key {key}", one)
    if blob and not _encrypted(text) and text.split(b" ")[0].startswith((b"ssh-", b"ecdsa-")):
        raise Refused(f"the key file {key} is a public key, and no SSH agent holds its private one: name that file")
    if _encrypted(text):
        raise Refused(f"the key file {key} is encrypted, and no SSH agent holds that key: ssh-add {key}")
    raise Refused(f"the key file {key} is no private key that can be used (RSA, ECDSA or Ed25519)")


def _encrypted(text: bytes) -> bool:
    body = _openssh(text)
    if body is not None:
        return not body.startswith(b"\0\0\0\4none")
    return b"ENCRYPTED" in text


def _public(path: Path, text: bytes) -> bytes | None:
    """Return the public part: of a public key, of OpenSSH's format, which leaves it open, or of the file beside it."""
    body = _openssh(text)
    if body is not None:
        message = paramiko.Message(body)
        for _ in range(3):  # cipher, key derivation and its options
            message.get_string()
        message.get_int()
        return bytes(message.get_string())
    beside = Path(f"{path}.pub")
    line = text if not text.startswith(b"-----") else beside.read_bytes() if beside.is_file() else b""
    try:
        return base64.b64decode(line.split()[1], validate=True)
    except (IndexError, binascii.Error):
        return None


def _openssh(text: bytes) -> bytes | None:
    """Return what follows the magic of a key in OpenSSH's own format, None when it is in another one."""
    if not text.startswith(b"-----BEGIN OPENSSH PRIVATE KEY-----"):
        return None
    try:
        body = base64.b64decode(b"".join(text.split(b"-----")[2].split()), validate=True)
    except (IndexError, binascii.Error):
        return None
    return body[len(_MAGIC) :] if body.startswith(_MAGIC) else None
