"""A node object is put back exactly: only what is ours, whoever comes first, from wherever, as often as one likes."""

from __future__ import annotations

import copy

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


def test_a_mark_that_cannot_be_read_is_of_nobody_we_know() -> None:
    assert [nodemarks.parsed(text)["run"] for text in ("", "{", "[]", '{"run": 3}')] == ["?"] * 4
    assert nodemarks.parsed(None) == {}
