"""Known hosts are read as OpenSSH reads them."""

from __future__ import annotations

import base64
import hmac
from pathlib import Path

import pytest

from drills.access.knownhosts import known, name_of
from drills.errors import Refused

A, B = (base64.b64encode(text).decode() for text in (b"key-a", b"key-b"))
SALT = b"0123456789abcdefghij"


def hashed(name: str) -> str:
    parts = (SALT, hmac.digest(SALT, name.encode(), "sha1"))
    return "|1|" + "|".join(base64.b64encode(part).decode() for part in parts)


def keys(tmp_path: Path, text: str, address: str = "gpu-1.example", port: int = 22) -> list[str]:
    path = tmp_path / "known_hosts"
    path.write_text(text)
    return [one.blob.decode() for one in known([str(path)], address, port).keys]


@pytest.mark.parametrize(
    ("names", "address", "port", "meant"),
    [
        ("gpu-1.example", "gpu-1.example", 22, True),
        ("gpu-1.example", "GPU-1.Example", 22, True),
        ("gpu-1.example", "gpu-1.example", 2222, False),
        ("[gpu-1.example]:2222", "gpu-1.example", 2222, True),
        ("[gpu-1.example]:2222", "gpu-1.example", 22, False),
        ("gpu-2,10.0.0.7,gpu-1.example", "10.0.0.7", 22, True),
        ("gpu-?.example", "gpu-1.example", 22, True),
        ("*.example", "gpu-1.example", 22, True),
        ("*.example", "example", 22, False),
        ("*.example,!gpu-1.example", "gpu-1.example", 22, False),
        ("!gpu-2.example", "gpu-1.example", 22, False),
        ("[*.example]:2222", "gpu-1.example", 2222, True),
        ("gpu-[1].example", "gpu-1.example", 22, False),
        ("10.0.0.*", "10.0.0.7", 22, True),
        ("gpu-1", "gpu-1.example", 22, False),
        (hashed("gpu-1.example"), "gpu-1.example", 22, True),
        (hashed("[gpu-1.example]:2222"), "gpu-1.example", 2222, True),
        (hashed("gpu-2.example"), "gpu-1.example", 22, False),
        ("|1|broken", "gpu-1.example", 22, False),
        ("|1|a|b|c", "gpu-1.example", 22, False),
    ],
)
def test_names(tmp_path: Path, names: str, address: str, port: int, meant: bool) -> None:
    assert keys(tmp_path, f"{names} ssh-ed25519 {A} somebody\n", address, port) == (["key-a"] if meant else [])


def test_what_is_no_entry_is_passed_over(tmp_path: Path) -> None:
    text = f"\n# gpu-1.example ssh-ed25519 {A}\ngpu-1.example\ngpu-1.example ssh-ed25519 ***\n"
    assert keys(tmp_path, f"{text}gpu-1.example\tssh-rsa  {B}\n") == ["key-b"]


def test_a_revoked_key_and_an_authority_are_no_keys(tmp_path: Path) -> None:
    path = tmp_path / "known_hosts"
    path.write_text(f"@revoked * ssh-ed25519 {A}\n@cert-authority * ssh-ed25519 {B}\n@other * ssh-ed25519 {B}\n")
    found = known([str(path)], "gpu-1", 22)
    assert found.keys == ()
    assert [(one.blob, one.where) for one in found.revoked] == [(b"key-a", f"{path}:1")]


def test_several_files_and_keys_count(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.write_text(f"gpu-1 ssh-ed25519 {A}\n")
    second.write_text(f"gpu-1 ssh-rsa {B}\n")
    found = known([str(first), str(tmp_path / "none"), str(second)], "gpu-1", 22)
    assert [(one.type, one.where) for one in found.keys] == [("ssh-ed25519", f"{first}:1"), ("ssh-rsa", f"{second}:1")]


def test_a_file_that_cannot_be_read_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(Refused, match=rf"^known hosts: {tmp_path} cannot be read: Is a directory$"):
        known([str(tmp_path)], "gpu-1", 22)


def test_a_name_carries_a_port_that_is_not_the_usual_one() -> None:
    assert (name_of("GPU-1", 22), name_of("fe80::1", 2222)) == ("gpu-1", "[fe80::1]:2222")


def test_a_fingerprint_is_as_openssh_shows_it(tmp_path: Path) -> None:
    """By `ssh-keygen -lf` of this very key."""
    text = "AAAAC3NzaC1lZDI1NTE5AAAAIGPKSUTyz1HwHReFVvD5obVsALAgJRNarH4TRpNePnAS"
    path = tmp_path / "known_hosts"
    path.write_text(f"h ssh-ed25519 {text}\n")
    [key] = known([str(path)], "h", 22).keys
    assert key.fingerprint == "SHA256:qH8baHrA5X0qCBovKCZyM02Q7TFtK4GMqVgOo4TZJAE"
    assert key.text == f"ssh-ed25519 {text}"
