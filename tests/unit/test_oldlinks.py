"""Connections that are older than a proxy, as `ss` tells of them."""

from __future__ import annotations

import pytest

from drills.fronts.oldlinks import read

OUT = """\
0      0      10.244.0.5:8000 10.244.0.9:41234
\t cubic wscale:7,7 rto:204 bytes_sent:100 lastsnd:884 lastrcv:888 lastack:880 rcv_space:14480
0      0      [::ffff:10.244.0.5]:8000 [::ffff:10.244.0.1]:50000
\t cubic wscale:7,7 rto:204 lastsnd:2000 lastrcv:1500 lastack:4
0      12     10.244.0.5:8000 10.244.0.9:41236
\t cubic lastack:880
"""


def test_each_is_told_by_its_other_end_mapped_addresses_too() -> None:
    assert [(link.address, link.port) for link in read(OUT)] == [
        ("10.244.0.9", 41234),
        ("10.244.0.1", 50000),
        ("10.244.0.9", 41236),
    ]


def test_idle_is_who_was_answered_a_while_ago_and_has_nothing_queued() -> None:
    assert [link.idle for link in read(OUT)] == [True, False, False]


@pytest.mark.parametrize("out", ["", "\n"])
def test_none_is_none(out: str) -> None:
    assert read(out) == []
