"""What became of a reset, by its job and the termination message of its pod; and that it is begun once."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from drills.access.kubetypes import ClusterAway, ClusterError
from drills.cluster import cordon, custody, resetjob
from drills.errors import Refused, Unreachable
from drills.model import Json, Receipt, Restored

SAID = {"rc": 0, "text": "done", "began_s": 10.0, "ended_s": 12.5}


class Clock:
    """Passes by sleeping alone."""

    def __init__(self) -> None:
        self.now, self.on_sleep = 0.0, [lambda: None]

    def mono(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.on_sleep[0]()


class FakeApi:
    """One job, with its pod."""

    def __init__(self, *conditions: Json, message: str | None = None) -> None:
        self.job: Json | None = {"status": {"conditions": list(conditions)}}
        self.message, self.clock = message, Clock()
        self.fails: ClusterError | None = None
        self.deleted: list[str] = []
        self.stays = False

    def find(self, resource: Any, namespace: str, name: str) -> Json | None:
        assert (resource.plural, namespace, name) == ("jobs", "llm", "j")
        return self.job

    def list_all(self, resource: Any, namespace: str, *, labels: str, keep: Callable[[Json], Any]) -> tuple[Any, str]:
        assert (resource.plural, namespace, labels) == ("pods", "llm", "batch.kubernetes.io/job-name=j")
        state = {"running": {}} if self.message is None else {"terminated": {"message": self.message}}
        return [keep({"status": {"containerStatuses": [{"state": state}]}})], "1"

    def create(self, resource: Any, namespace: str, body: Json) -> None:
        assert (resource.plural, namespace, body["metadata"]["name"]) == ("jobs", "llm", "j")
        if self.fails:
            raise self.fails

    def delete(self, resource: Any, namespace: str, name: str, body: Json) -> None:
        assert (resource.plural, namespace) == ("jobs", "llm")
        assert body["propagationPolicy"] == "Background"  # its pod goes with it
        self.deleted.append(name)
        self.job = self.job if self.stays else None
        if self.fails:
            raise self.fails


def look(api: FakeApi) -> Json | None:
    return resetjob.look(api, "llm", "j")  # type: ignore[arg-type] # as much of the API as it takes


def test_one_that_was_not_begun_is_nothing() -> None:
    api = FakeApi()
    api.job = None
    assert look(api) is None


def test_while_it_goes_on_it_has_no_status() -> None:
    assert look(FakeApi()) == {"active": True, "rc": None, "text": "", "began_s": None, "ended_s": None}


def test_its_end_is_told_by_its_pod() -> None:
    assert look(FakeApi(message=json.dumps(SAID))) == {"active": False, **SAID}


@pytest.mark.parametrize("message", ["", "garbled", "[]", '{"rc": "0"}'])
def test_one_that_ended_without_a_word_has_no_status_for_ever(message: str) -> None:
    failed = {"type": "Failed", "status": "True", "message": "Job was active longer than specified deadline"}
    found = look(FakeApi(failed, message=message))
    assert found is not None
    assert (found["active"], found["rc"]) == (False, None)
    assert "longer than specified deadline" in found["text"]


def begin(api: FakeApi) -> None:
    resetjob.begin(api, "llm", {"metadata": {"name": "j"}})  # type: ignore[arg-type] # as above


def test_it_is_never_begun_twice() -> None:
    api = FakeApi()
    api.fails = ClusterError("conflict", status=409)
    with pytest.raises(Refused, match="begun before"):
        begin(api)


def test_an_answer_that_was_lost_is_looked_for() -> None:
    api = FakeApi()
    api.fails = ClusterAway("away")
    begin(api)
    api.job = None
    with pytest.raises(ClusterAway):
        begin(api)


STEP = {"do": "job", "name": "j", "namespace": "llm"}


def test_its_object_is_taken_away_when_it_is_over_and_not_before() -> None:
    api = FakeApi()

    def ends() -> None:
        api.message = json.dumps(SAID)

    api.clock.on_sleep = [ends]
    assert cordon.carry_out(api, STEP) is None  # type: ignore[arg-type] # as above
    assert (api.deleted, api.clock.now) == (["j"], 1.0)
    assert cordon.carry_out(api, STEP) is None  # type: ignore[arg-type] # as above
    assert api.deleted == ["j"]


def test_one_that_does_not_end_is_left_and_said() -> None:
    api = FakeApi()
    why = cordon.carry_out(api, STEP)  # type: ignore[arg-type] # as above
    assert why is not None
    assert "still under way" in why
    assert api.deleted == []


def test_a_server_that_is_away_is_for_others_to_wait_for() -> None:
    api = FakeApi(message=json.dumps(SAID))
    api.fails = ClusterAway("away")
    api.stays = True
    with pytest.raises(ClusterAway):
        cordon.carry_out(api, STEP)  # type: ignore[arg-type] # as above


# ---- the way back ----------------------------------------------------------------------------------------


def undone(monkeypatch: pytest.MonkeyPatch, *, node: str | None = None, there: Exception | None = None) -> Any:
    """Return the steps in the order in which they are undone, and what came of it."""
    steps: tuple[Json, ...] = (
        {"do": "job", "name": "j", "namespace": "llm"},
        {"do": "node", "node": "n1", "run": "r", "cordon": True, "labels": {}, "offers": 1},
        {"do": "run", "argv": ["true"]},
    )
    receipt = Receipt("r-0", "r", "gpu-reset", "t", "n1", (), {}, (), steps, 1.0, {})
    order: list[str] = []

    def here(_: Any, step: Json) -> str | None:
        order.append(step["do"])
        return node if step["do"] == "node" else None

    def on_nodes(rest: Receipt) -> tuple[Restored, list[str]]:
        order.extend(step["do"] for step in rest.undo)
        if there:
            raise there
        return Restored.CLEAN, []

    keeper = custody.ClusterCustody(FakeApi(), "llm", "app=vllm", "t")  # type: ignore[arg-type] # as above
    monkeypatch.setattr(cordon, "carry_out", here)
    monkeypatch.setattr(keeper.nodes, "undo", on_nodes)
    try:
        return order, keeper.undo(receipt)[0]
    except Unreachable as error:
        return order, error


def test_settings_come_back_first_then_the_node_then_the_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    assert undone(monkeypatch) == (["run", "node", "job"], Restored.CLEAN)


def test_jobs_stay_while_the_node_must_for_they_tell_how_a_reset_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    assert undone(monkeypatch, node="stays cordoned") == (["run", "node"], Restored.DIRTY)


def test_a_helper_that_is_silent_does_not_keep_the_node_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    silent = Unreachable("silent")
    assert undone(monkeypatch, there=silent) == (["run", "node", "job"], silent)
