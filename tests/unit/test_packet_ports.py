"""Ports of packet-loss: where a proxy stands in front, a packet to the engine's port arrives at the proxy's."""

from __future__ import annotations

from typing import Any

import pytest

from drills.faults.packet_loss import PacketLoss
from drills.model import Json

NET: Json = {"netns": None, "port": 8000, "peers": {"router": ["10.0.0.9"]}, "management": [], "bystanders": {}}


def ports(net: Json, **asked: Any) -> set[str]:
    made = PacketLoss(PacketLoss.Params(mode="blackhole", **asked), "kubernetes")
    return {word for rule in made._rules("0a1b2c3d-0", net) for word in rule.words if word.isdigit() and len(word) > 3}


@pytest.mark.parametrize(
    ("redirected", "asked", "meant"),
    [
        ({}, {}, {"8000"}),
        ({"8000": 21100}, {}, {"8000", "21100"}),
        ({"8000": 21100}, {"ports": (8000,)}, {"8000", "21100"}),
        ({"8000": 21100}, {"ports": (9000,)}, {"9000"}),
    ],
)
def test_both_ports_are_meant(redirected: Json, asked: Json, meant: set[str]) -> None:
    found = ports(NET | {"redirected": redirected}, **asked) - {"600000"}
    assert found == meant
