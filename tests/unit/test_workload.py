"""Chats: one shared prefix, a history per session, nothing that depends on an answer."""

from __future__ import annotations

import collections
import itertools
import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from drills.load.workload import Chat, marker, place, slots
from tests.unit.load_plans import load_plan


def ask(chat: Chat, arrival: int, session: int, turn: int) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(chat.body(arrival, session, turn))
    return body


def words(message: dict[str, str]) -> int:
    return len(message["content"].split())


def test_every_request_begins_with_the_same_prefix_of_512_words() -> None:
    chat = Chat(load_plan())
    systems = {json.dumps(ask(chat, n, *chat.place(n))["messages"][0]) for n in range(300)}
    assert len(systems) == 1
    system = json.loads(systems.pop())
    assert system["role"] == "system"
    assert words(system) == 512


def test_the_request_asks_for_a_fixed_length_and_for_usage() -> None:
    body = ask(Chat(load_plan()), 3, 3, 1)
    assert body["max_tokens"] == body["min_tokens"] == 8
    assert body["ignore_eos"] is True
    assert body["stream"] is True
    assert body["stream_options"] == {"include_usage": True}
    assert body["model"] == "lab-chat"
    assert body["user"] == "drill-0badcafe"


def test_a_turn_carries_the_history_of_its_session() -> None:
    chat = Chat(load_plan())
    first, third = ask(chat, 5, 9, 1)["messages"], ask(chat, 90, 9, 3)["messages"]
    assert [m["role"] for m in third] == ["system", "user", "assistant", "user", "assistant", "user"]
    assert [words(m) for m in third[1:-1]] == [64, 8, 64, 8]
    # The prefix cache must find the earlier turn in the later one, all but the marker.
    assert first[1]["content"] == f"{third[1]['content']} {marker('0badcafe', 5)}"
    assert third[-1]["content"].endswith(marker("0badcafe", 90))
    assert ask(chat, 90, 10, 3)["messages"][1:] != third[1:]


def test_the_same_seed_gives_the_same_bytes() -> None:
    one, two = Chat(load_plan()), Chat(load_plan())
    assert [one.body(n, *one.place(n)) for n in range(50)] == [two.body(n, *two.place(n)) for n in range(50)]
    assert one.body(0, 0, 1) != Chat(load_plan(seed=8)).body(0, 0, 1)


def test_there_are_as_many_sessions_as_keep_the_think_time() -> None:
    assert slots(load_plan()) == 40  # 20/s x 2 s
    assert slots(load_plan(arrivals={"kind": "poisson", "rate": 0.1})) == 1
    assert slots(load_plan(arrivals={"kind": "users", "users": 12, "think_s": 1.0})) == 12


@given(slots=st.integers(1, 60), turns=st.integers(1, 8))
def test_sessions_take_their_turns_in_order_and_none_twice(slots: int, turns: int) -> None:
    seen = collections.defaultdict(list)
    for arrival in range(slots * turns * 4):
        session, turn = place(arrival, slots, turns)
        seen[session].append((arrival, turn))
    for visits in seen.values():
        assert [turn for _, turn in visits] == list(range(1, len(visits) + 1))
        assert len(visits) <= turns
        assert all(b[0] - a[0] == slots for a, b in itertools.pairwise(visits))


def test_the_mix_of_turns_is_steady_after_one_think_time() -> None:
    turns = collections.Counter(place(arrival, 40, 4)[1] for arrival in range(400, 800))
    assert set(turns.values()) == {100}
