"""A node object is put back exactly: only what is ours, whoever comes first, from wherever, as often as one likes."""

from __future__ import annotations

import copy
import http.client
import urllib.error
import urllib.request
from email.message import Message
from pathlib import Path

import pytest

from drills.access import nodemarks
from drills.access.nodemarks import BEGUN, ENDED, HUMAN, JUDGED, MARK, Problem
from drills.model import Json
from tests.unit.gpu_node import DRIVER, PLUGIN, Nodes, node_object, put_back, ticking

STEP: Json = {"node": "n1", "run": "0123abcd", "cordon": True, "labels": {PLUGIN: "true"}}


def without_version(node: Json) -> Json:
    kept = copy.deepcopy(node)
    kept["metadata"].pop("resourceVersion")
    if not kept["metadata"].get("annotations", True):
        kept["metadata"].pop("annotations")
    return kept


def worked_on() -> Nodes:
    return working_on(Nodes(node_object()))


def working_on(nodes: Nodes, step: Json = STEP) -> Nodes:
    nodemarks.change(nodes, "n1", lambda node: nodemarks.put_on(node, step))
    nodemarks.change(nodes, "n1", lambda node: nodemarks.pause(node, step))
    return nodes


def note(nodes: Nodes, **annotations: str) -> None:
    nodes.node["metadata"].setdefault("annotations", {}).update(annotations)
    nodes.touch()


def test_a_node_is_cordoned_and_marked_and_what_watches_is_paused() -> None:
    node = worked_on().node
    assert node["spec"]["unschedulable"] is True
    assert node["metadata"]["labels"] == {PLUGIN: "paused-for-drill-0123abcd", DRIVER: "true"}
    assert nodemarks.mark_of(node) == {"run": "0123abcd", "cordon": True, "labels": {PLUGIN: "true"}, "reset": "none"}


def test_all_of_it_is_put_back_and_twice_is_once() -> None:
    nodes = worked_on()
    assert put_back(nodes, STEP) == ""
    assert without_version(nodes.node) == without_version(node_object())
    patches = nodes.patches
    assert put_back(nodes, STEP) == ""
    assert nodes.patches == patches


def offer(nodes: Nodes, gpus: str) -> None:
    nodes.node["status"]["allocatable"]["nvidia.com/gpu"] = gpus


def test_it_is_uncordoned_only_when_it_offers_its_gpus_again_and_what_it_says_is_not_from_before() -> None:
    """The number may be seconds old: at first it is still the one from before the pause."""
    nodes, step = worked_on(), STEP | {"offers": 2}
    said = iter(["2"] * 5 + ["0"] * 15 + ["2"] * 5)
    seen: list[tuple[str, bool]] = []

    def others() -> None:
        offer(nodes, next(said))
        now = nodes.node["status"]["allocatable"]["nvidia.com/gpu"]
        seen.append((now, nodes.node["spec"].get("unschedulable", False)))
        assert nodes.node["metadata"]["labels"][PLUGIN] == "true"  # they come back first

    assert nodemarks.undo(nodes, step, wait_s=0.0, clock=ticking(others)) == ""
    assert "unschedulable" not in nodes.node["spec"]
    assert seen[-1] == ("2", True)
    assert len(seen) == 21


def test_a_node_that_does_not_offer_them_in_time_is_uncordoned_all_the_same() -> None:
    nodes, step = worked_on(), STEP | {"offers": 2}
    offer(nodes, "0")
    waited: list[float] = []
    assert nodemarks.undo(nodes, step, wait_s=0.0, clock=ticking(lambda: waited.append(1.0))) == ""
    assert "unschedulable" not in nodes.node["spec"]
    assert len(waited) == nodemarks.OFFER_TIMEOUT_S


def test_nobody_waits_for_a_node_that_is_put_back_already_or_must_stay_cordoned() -> None:
    def never() -> None:
        raise AssertionError("it waited")

    step = STEP | {"offers": 2}
    assert nodemarks.undo(Nodes(node_object()), step, wait_s=0.0, clock=ticking(never)) == ""
    ill = worked_on()
    nodemarks.change(ill, "n1", lambda node: nodemarks.progress(node, step, BEGUN, "it is ill"))
    assert "it is ill" in nodemarks.undo(ill, step, wait_s=0.0, clock=ticking(never))


def test_nobody_comes_back_while_a_reset_is_under_way() -> None:
    nodes = worked_on()
    nodemarks.change(nodes, "n1", lambda node: nodemarks.progress(node, STEP, BEGUN))
    paused: list[str] = []

    def ends() -> None:
        paused.append(nodes.node["metadata"]["labels"][PLUGIN])
        note(nodes, **{ENDED: "0"})

    assert nodemarks.undo(nodes, STEP, wait_s=60.0, clock=ticking(ends)) == ""
    assert paused[0] == "paused-for-drill-0123abcd"
    assert "unschedulable" not in nodes.node["spec"]


def test_a_label_that_somebody_else_changed_meanwhile_stays_theirs() -> None:
    nodes = worked_on()
    nodes.node["metadata"]["labels"][PLUGIN] = "false"
    assert put_back(nodes, STEP) == ""
    assert nodes.node["metadata"]["labels"][PLUGIN] == "false"


def test_a_label_that_somebody_else_changed_before_is_not_paused() -> None:
    assert working_on(Nodes(node_object(**{PLUGIN: "false"}))).node["metadata"]["labels"][PLUGIN] == "false"


def test_a_cordon_that_was_there_before_stays() -> None:
    step = STEP | {"cordon": False}
    nodes = Nodes(node_object())
    nodes.node["spec"]["unschedulable"] = True
    nodemarks.change(nodes, "n1", lambda node: nodemarks.put_on(node, step))
    assert put_back(nodes, step) == ""
    assert nodes.node["spec"]["unschedulable"] is True
    assert MARK not in nodes.node["metadata"]["annotations"]


def test_the_mark_of_another_run_is_left_alone() -> None:
    nodes = worked_on()
    assert put_back(nodes, STEP | {"run": "ffffffff"}) == ""
    assert nodes.node["spec"]["unschedulable"] is True


def test_who_is_quicker_is_looked_at_again() -> None:
    nodes = worked_on()

    def others() -> None:
        nodes.node["metadata"]["labels"]["theirs"] = "new"
        nodes.touch()

    nodes.before_patch = others
    assert put_back(nodes, STEP) == ""
    assert nodes.node["metadata"]["labels"] == {PLUGIN: "true", DRIVER: "true", "theirs": "new"}


@pytest.mark.parametrize(("ended", "uncordoned"), [("0", True), ("255", False), (None, False)])
def test_a_reset_that_nobody_judged_keeps_the_cordon_unless_it_said_success(
    ended: str | None, uncordoned: bool
) -> None:
    nodes = worked_on()
    nodemarks.change(nodes, "n1", lambda node: nodemarks.progress(node, STEP, BEGUN))
    if ended is not None:
        note(nodes, **{ENDED: ended})
    why = put_back(nodes, STEP)
    assert (why == "") is uncordoned
    assert ("unschedulable" not in nodes.node["spec"]) is uncordoned
    assert nodes.node["metadata"]["labels"][PLUGIN] == "true"


def test_one_that_was_judged_does_not() -> None:
    nodes = worked_on()
    note(nodes, **{ENDED: "255"})
    nodemarks.change(nodes, "n1", lambda node: nodemarks.progress(node, STEP, JUDGED))
    assert ENDED not in nodes.node["metadata"]["annotations"]  # it is of the attempt before
    assert put_back(nodes, STEP) == ""
    assert nodes.node["metadata"]["annotations"] == {}


def test_a_person_has_to_look_before_anybody_uncordons_it() -> None:
    nodes = worked_on()
    nodemarks.change(nodes, "n1", lambda node: nodemarks.progress(node, STEP, JUDGED, "GPU-1: it is ill"))
    why = put_back(nodes, STEP)
    assert "it is ill" in why
    assert f"kubectl annotate node n1 {HUMAN}-" in why
    assert nodes.node["spec"]["unschedulable"] is True
    assert nodes.node["metadata"]["labels"][PLUGIN] == "true"
    del nodes.node["metadata"]["annotations"][HUMAN]
    assert put_back(nodes, STEP) == ""
    assert "unschedulable" not in nodes.node["spec"]


def test_a_server_that_is_away_is_asked_again_until_the_time_is_over() -> None:
    class Away(Nodes):
        def __init__(self, node: Json, fails: int) -> None:
            super().__init__(node)
            self.fails = fails

        def get(self, node: str) -> Json:
            self.fails -= 1
            if self.fails >= 0:
                raise Problem("away", again=True)
            return super().get(node)

    nodes = Away(worked_on().node, 3)
    assert nodemarks.undo(nodes, STEP, wait_s=10.0, clock=ticking()) == ""
    never = Away(worked_on().node, 99)
    assert nodemarks.undo(never, STEP, wait_s=1.0, clock=ticking()) == "away"


def test_who_always_loses_says_so() -> None:
    class Raced(Nodes):
        def patch(self, node: str, body: Json) -> None:
            raise Problem("HTTP 409", conflict=True)

    assert "changed by others all the time" in put_back(Raced(worked_on().node), STEP)


def test_who_loses_for_a_while_is_tried_again() -> None:
    class Raced(Nodes):
        lost = 0

        def patch(self, node: str, body: Json) -> None:
            self.lost += 1
            if self.lost <= nodemarks.CONFLICTS:
                raise Problem("HTTP 409", conflict=True)
            super().patch(node, body)

    nodes = Raced(worked_on().node)
    assert nodemarks.undo(nodes, STEP, wait_s=10.0, clock=ticking()) == ""
    assert "unschedulable" not in nodes.node["spec"]


def test_a_node_that_is_gone_is_done() -> None:
    class Gone(Nodes):
        def get(self, node: str) -> Json:
            raise Problem("HTTP 404", gone=True)

    assert nodemarks.undo(Gone(node_object()), STEP, wait_s=10.0, clock=ticking()) == ""


@pytest.mark.parametrize(
    ("error", "again", "gone"),
    [
        (http.client.IncompleteRead(b"{"), True, False),
        (http.client.BadStatusLine(""), True, False),
        (urllib.error.HTTPError("", 401, "", Message(), None), True, False),
        (urllib.error.HTTPError("", 403, "", Message(), None), False, False),
        (urllib.error.HTTPError("", 404, "", Message(), None), False, True),
    ],
)
def test_what_the_server_does_is_asked_again_unless_it_means_it(
    error: Exception, again: bool, gone: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def answer(*_: object, **__: object) -> None:
        raise error

    (tmp_path / "token").write_text("t")
    monkeypatch.setattr(nodemarks, "ACCOUNT", tmp_path)
    monkeypatch.setattr("ssl.create_default_context", lambda **_: None)
    monkeypatch.setattr("urllib.request.OpenerDirector.open", answer)
    with pytest.raises(Problem) as said:
        nodemarks.InCluster().get("n1")
    assert (said.value.again, said.value.gone) == (again, gone)


@pytest.mark.parametrize("whose", ["nobody", "another", "uncordoned"])
def test_a_node_that_is_not_ours_any_more_is_not_worked_on(whose: str) -> None:
    nodes = worked_on()
    if whose == "uncordoned":
        del nodes.node["spec"]["unschedulable"]
    else:
        put_back(nodes, STEP)
    if whose == "another":
        working_on(nodes, STEP | {"run": "ffffffff"})
    before = without_version(nodes.node)
    with pytest.raises(Problem, match="somebody has put it back"):
        nodemarks.change(nodes, "n1", lambda node: nodemarks.progress(node, STEP, BEGUN))
    assert without_version(nodes.node) == before


def test_one_with_an_ill_gpu_is_closed_again_whoever_opened_it() -> None:
    nodes = worked_on()
    put_back(nodes, STEP)
    nodemarks.change(nodes, "n1", lambda node: nodemarks.progress(node, STEP, JUDGED, "it is ill"))
    assert nodes.node["spec"]["unschedulable"] is True
    assert "it is ill" in put_back(nodes, STEP)
    other = working_on(Nodes(node_object()), STEP | {"run": "ffffffff"})
    nodemarks.change(other, "n1", lambda node: nodemarks.progress(node, STEP, JUDGED, "it is ill"))
    assert nodemarks.mark_of(other.node)["run"] == "ffffffff"
    assert other.node["metadata"]["annotations"][HUMAN] == "it is ill"


def test_a_mark_that_cannot_be_read_is_of_nobody_we_know() -> None:
    assert [nodemarks.parsed(text)["run"] for text in ("", "{", "[]", '{"run": 3}')] == ["?"] * 4
    assert nodemarks.parsed(None) == {}
