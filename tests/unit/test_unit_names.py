"""Names of systemd's units: what ends one, and what is none."""

from __future__ import annotations

import pytest

from drills.unitnames import is_service, is_unit, whole


@pytest.mark.parametrize(
    ("unit", "name"),
    [
        ("vllm", "vllm.service"),
        ("vllm.service", "vllm.service"),
        ("vllm@qwen2.5", "vllm@qwen2.5.service"),
        ("qwen2.5-7b", "qwen2.5-7b.service"),
        (r"vllm\x2da", r"vllm\x2da.service"),
        ("vllm.socket", "vllm.socket"),
        ("gpu.target", "gpu.target"),
    ],
)
def test_only_a_suffix_of_systemds_ends_a_name(unit: str, name: str) -> None:
    assert whole(unit) == whole(name) == name


@pytest.mark.parametrize("word", ["", "-x", "vllm*", "a b", "a/b", "$(id)", "vllm;id", "a\nb"])
def test_what_names_no_unit(word: str) -> None:
    assert not is_unit(word)


def test_not_every_unit_is_a_service() -> None:
    assert is_unit("gpu.target")
    assert not is_service("gpu.target")
    assert is_service("vllm@qwen2.5")
