"""What is asked: multi-turn chats over one shared system prompt. Pure and seeded.

Every session begins with the same system prompt (a prefix cache should hold it), then has a history of its
own. The assistant's turns in that history are made up and of fixed length, so that what is sent next never
depends on what came back. Answers have a fixed length too: a shorter one is a broken one.
"""

from __future__ import annotations

import json
import random
import zlib

from drills.load.plan import LoadPlan, WorkloadPlan

# Short common words: one token each, or a little more, in any vocabulary; the lab's tiny model has them as whole ones.
WORDS = """
time year people way day man thing woman life child world school state family student group country problem
hand part place case week company system program question work government number night point home water room
mother area money story fact month lot right study book eye job word business issue side kind head house
service friend father power hour game line end member law car city community name president team minute idea
body information back parent face others level office door health person art war history party result change
morning reason research girl guy moment air teacher force education
"""
_TEXT_WORDS = 4096


class Chat:
    """The `chat` workload: which session and turn an arrival is, and the request body for it."""

    def __init__(self, plan: LoadPlan) -> None:
        self._plan: WorkloadPlan = plan.workload
        self._run = plan.run
        self._seed = plan.seed
        draw, words = random.Random(f"workload:{plan.seed}"), WORDS.split()
        self._text = draw.choices(words, k=_TEXT_WORDS)
        prefix = " ".join(draw.choices(words, k=plan.workload.prefix_tokens))
        self._system = json.dumps({"role": "system", "content": prefix})
        self._slots = slots(plan)
        self._tail = json.dumps(_answer_fields(plan))[1:]
        self._head = json.dumps({"model": plan.model})[:-1] + ', "messages": ['

    def place(self, arrival: int) -> tuple[int, int]:
        """Return (session, turn) of an open-loop arrival; turns count from 1."""
        return place(arrival, self._slots, self._plan.turns)

    def body(self, arrival: int, session: int, turn: int) -> bytes:
        """Return the JSON request body of that turn of that session."""
        messages = [self._system]
        for past in range(1, turn):
            messages.append(_message("user", self._say(session, past, "user", self._plan.turn_tokens)))
            messages.append(_message("assistant", self._say(session, past, "assistant", self._plan.answer_tokens)))
        question = self._say(session, turn, "user", self._plan.turn_tokens)
        messages.append(_message("user", f"{question} {marker(self._run, arrival)}"))
        return f"{self._head}{', '.join(messages)}], {self._tail}".encode()

    def _say(self, session: int, turn: int, role: str, words: int) -> str:
        """Return words that only this turn of this session holds; its first word names the session."""
        at = zlib.crc32(f"{self._seed}:{session}:{turn}:{role}".encode()) % _TEXT_WORDS
        said = [f"s{session}.{turn}"]
        while len(said) < words:
            said += self._text[at : at + words - len(said)]
            at = 0
        return " ".join(said[:words])


def marker(run: str, arrival: int) -> str:
    """Return the mark in the prompt by which an arrival can be found where a gateway drops request ids."""
    return f"[drill {run}-{arrival}]"


def slots(plan: LoadPlan) -> int:
    """Return how many sessions take turns, so that one session's turns are about `think_s` apart."""
    if plan.arrivals.closed:
        return plan.arrivals.users
    return max(1, round(plan.arrivals.rate * plan.workload.think_s))


def place(arrival: int, slots: int, turns: int) -> tuple[int, int]:
    """Return (session, turn) of the arrival-th request when `slots` sessions take turns.

    Each slot's first session is cut to a length of its own; otherwise all sessions would start, and miss
    the prefix cache, at the same moment for the whole run.
    """
    slot, visit = arrival % slots, arrival // slots
    first = slot % turns + 1
    if visit < first:
        return slot, visit + 1
    later = visit - first
    return slot + slots * (1 + later // turns), later % turns + 1


def _message(role: str, content: str) -> str:
    # Words, digits and brackets only: nothing in it needs escaping.
    return f'{{"role": "{role}", "content": "{content}"}}'


def _answer_fields(plan: LoadPlan) -> dict[str, object]:
    tokens = plan.workload.answer_tokens
    fields: dict[str, object] = {
        "max_tokens": tokens,
        "min_tokens": tokens,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if plan.user:
        fields["user"] = plan.user
    return fields
