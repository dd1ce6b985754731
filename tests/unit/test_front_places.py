"""Where a proxy stands on a host's own network, and in whose words: no traffic of others may be led away."""

from __future__ import annotations

import pytest

from drills.fronts import places, words
from drills.model import Json
from drills.proxy import parse_options

HOST: Json = {
    "replica": "gpu-1",
    "role": "primary",
    "uid": "gpu-1",
    "node": "gpu-1",
    "python": "/var/lib/drill/lib/0/python",
    "ip": "gpu-1.example",
    "port": 8000,
    "netns": None,
    "sources": ["10.0.0.5", "10.0.0.6"],
    "stays": False,
    "tag": "0a1b2c3d-0p",
    "folder": "/var/lib/drill/proxies/x",
    "iptables": "/usr/sbin/iptables",
    "listen": 21100,
    "upstream": "127.0.0.1:8000",
}
POD: Json = {
    **HOST,
    "ip": "10.244.0.7",
    "netns": {"pid": 1, "start": 2, "inode": 3},
    "sources": None,
    "stays": True,
    "python": "python3",
}
DOCKER = "nat -A DOCKER ! -i docker0 -p tcp -m tcp --dport {} -j DNAT --to-destination 172.17.0.2:8000"


def spot(base: Json) -> Json:
    return base | words.words(base, base["tag"])


def test_on_a_host_each_address_of_the_router_has_a_rule_and_nobody_else_has() -> None:
    first, second = (" ".join(one) for one in spot(HOST)["redirects"])
    assert first.startswith("-s 10.0.0.5/32 -p tcp -m tcp --dport 8000")
    assert second.startswith("-s 10.0.0.6/32 ")
    for rule in (first, second):
        assert "-m addrtype --dst-type LOCAL" in rule, "what the host only passes on is not its unit's"
        assert "--comment drill-0a1b2c3d-0p-8000-ledger" in rule


def test_in_a_pod_one_rule_leads_everybody() -> None:
    [rule] = (" ".join(one) for one in spot(POD)["redirects"])
    assert rule.startswith("-d 10.244.0.7/32 -p tcp -m tcp --dport 8000")
    assert "--comment drill-0a1b2c3d-0p-ledger" in rule


def test_two_units_of_a_host_share_neither_rules_nor_lists() -> None:
    other = HOST | {"port": 8001}
    assert words.mark(HOST, HOST["tag"]) != words.mark(other, other["tag"])
    assert "/proc/net/xt_recent/drill-0a1b2c3d-0p-8000@0.0.0.0" in words.command(HOST)


def test_whoever_has_no_rule_is_not_let_in_either() -> None:
    """Else the proxy would be a way to the engine past the host's firewall; in a pod everybody has the rule."""

    def let_in(base: Json) -> list[str]:
        return list(parse_options(words.command(base)[2:]).let_in)

    led = [rule[rule.index("-s") + 1].removesuffix("/32") for rule in spot(HOST)["redirects"]]
    assert let_in(HOST) == [*led, "127.0.0.1"], "and whoever asks on the host itself, for a proof"
    assert let_in(POD) == []


def test_nothing_new_comes_before_a_proxy_is_told_to_end_and_a_host_keeps_nothing() -> None:
    steps = list(reversed(words.undo([spot(HOST)])))  # as they are carried out
    assert [one["do"] for one in steps] == ["unrule", "unrule", "remove", "run", "unrule"]
    assert steps[3]["argv"] == [HOST["python"], "-m", words.MODULE, "cleared", HOST["folder"]]
    assert {one["host"] for one in steps} == {"gpu-1"}
    [drained] = [one for one in words.undo([spot(POD)]) if one["do"] == "run"]
    assert drained["argv"][3] == "drained", "it goes with the helper"


@pytest.mark.parametrize(
    ("line", "leads"),
    [
        (DOCKER.format(8000), True),
        (DOCKER.format("7999:8001"), True),
        (DOCKER.format(8080), False),
        ("nat -A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER", False),
        ("nat -A PREROUTING -p tcp -m multiport --dports 80,8000 -j REDIRECT --to-ports 3128", True),
        ("nat -A PREROUTING -j REDIRECT --to-ports 15006", True),
        ("nat -A OUTPUT -p tcp -m tcp --dport 8000 -j REDIRECT --to-ports 1", False),
        ("nat -A KUBE-SEP-X -p tcp -m tcp -j DNAT --to-destination 10.244.0.7:8000", False),
        ("filter -A INPUT -p tcp -m tcp --dport 8000 -j DROP", False),
    ],
)
def test_what_leads_a_units_port_away(line: str, leads: bool) -> None:
    assert bool(places.led_elsewhere(HOST, {"nft": [line]})) is leads


def test_in_a_pod_any_rule_before_routing_may_lead_its_traffic_away() -> None:
    assert "service mesh" in places.led_elsewhere(POD, {"nft": ["nat -A PREROUTING -j ISTIO_INBOUND"]})
    assert places.led_elsewhere(POD, {"nft": ["nat -A OUTPUT -j ISTIO_OUTPUT"]}) == ""


LISTENING = "0A"


@pytest.mark.parametrize(
    ("sockets", "upstream"),
    [
        ([("00000000", 8000, LISTENING)], "127.0.0.1:8000"),
        ([("0" * 32, 8000, LISTENING)], "127.0.0.1:8000"),
        ([("0700000A", 8000, LISTENING)], "10.0.0.7:8000"),
        ([("0700000A", 8000, LISTENING), ("00000000", 8000, LISTENING)], "127.0.0.1:8000"),
    ],
)
def test_an_engine_is_reached_where_it_listens(
    monkeypatch: pytest.MonkeyPatch, sockets: list[tuple[str, int, str]], upstream: str
) -> None:
    monkeypatch.setattr(places, "sockets", lambda spot: iter(sockets))
    assert places.upstream(HOST) == upstream


def test_where_nobody_listens_there_is_nothing_to_stand_in_front_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "sockets", lambda spot: iter([("00000000", 8000, "01"), ("00000000", 9, LISTENING)]))
    with pytest.raises(Exception, match="nobody listens on port 8000 in the host's own network"):
        places.upstream(HOST)


def test_proxies_that_look_for_a_port_at_the_same_time_find_different_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "sockets", lambda spot: iter([("00000000", 21101, LISTENING)]))
    assert [places.free_port(HOST | {"nth": nth}) for nth in range(3)] == [21100, 21102, 21103]
    assert [places.free_port(POD | {"nth": nth}) for nth in range(2)] == [21100, 21100]
