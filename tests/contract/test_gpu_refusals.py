"""Every documented reason not to reset a GPU, and every bad end of a reset, each with its own sentence and consequence.

One table: what the stand-ins are made to be, and the words that name it. A refusal has exit code 3 and touches
nothing; a bad end has exit code 5, is not repeated by anybody, stays `dirty`, and is for a person to look at.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from drills import errors, gate
from drills.errors import NotRestored, Refused
from drills.faults import for_receipt, gpu_deed
from drills.faults.reset_outcome import HARMLESS, NEEDS_HUMAN, OUTCOMES, UNSUPPORTED
from drills.lab.gpu import state
from drills.model import Restored
from tests.contract.gpu_bench import Bench, Drilled, two_replicas


@pytest.fixture(autouse=True)
def _short_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_deed, "QUIET_S", 0.1)


@pytest.fixture
def on(tmp_path: Path) -> Iterator[Bench]:
    with two_replicas(tmp_path) as made:
        yield made


def drilled(on: Bench, timeout_s: float = 20) -> Drilled:
    return Drilled(on, on.rows["replica-0"], timeout_s=timeout_s)


# ---- refused: exit code 3, nothing touched ---------------------------------------------------------------


@dataclass(frozen=True)
class Refusal:
    """What makes it, and the words of its sentence."""

    name: str
    make: Callable[[Bench], object]
    words: tuple[str, ...]
    beside: str = ""  # words of another sentence that is said as well


def daemon_without_its_socket(on: Bench) -> None:
    on.set_machine(persistence_socket=False)
    on.hold(0, "/usr/bin/nvidia-persistenced")


def shared_through_mps(on: Bench) -> None:
    """The server has the GPU open for its clients, the engine is one of them."""
    on.set(0, mps_clients=[on.rows["replica-0"].engine_pid])
    on.hold(0, "nvidia-cuda-mps-server")


def named_by_index(on: Bench) -> None:
    on.rows["replica-0"] = dataclasses.replace(on.rows["replica-0"], gpus=("0",))


def tried_before(mode: str) -> Callable[[Bench], None]:
    """A drill has learnt it the only way there is; the replica is as good as new by then."""

    def make(on: Bench) -> None:
        state.script_reset(on.state_file, mode)
        drill = drilled(on)
        drill.inject()
        assert drill.receipt is not None
        assert drill.fault.revert(on, drill.receipt, drill.ctx) is Restored.CLEAN
        drill.disarm()
        state.script_reset(on.state_file, None)
        on.start_replica("replica-0", 0)

    return make


REFUSALS = [
    Refusal(
        "a holder outside the plan", lambda on: on.hold(0, "dcgm-exporter"), ("(dcgm-exporter", "not the victim's")
    ),
    Refusal(
        "the persistence daemon", daemon_without_its_socket, ("(/usr/bin/nvidia-persistenced", "persistence daemon")
    ),
    Refusal("MIG", lambda on: on.set(0, mig=True), ("MIG is on",)),
    Refusal("MPS", shared_through_mps, ("shared through MPS", "all clients would die"), "(nvidia-cuda-mps-server"),
    Refusal("no fabric manager", lambda on: on.set(0, fabric="not_started"), ("is the fabric manager running?",)),
    Refusal("an old driver", lambda on: on.set(0, recovery_action=None), ("driver 595.45.04 is too old",)),
    Refusal("a lost GPU", lambda on: on.set(0, lost=True), ("is lost", "an incident, not a drill")),
    Refusal("not root", lambda on: on.set_machine(root=False), ("needs root", "would run as not root")),
    Refusal(
        "unsupported, one text",
        tried_before("unsupported_a"),
        ("not supported here", "'Resetting GPU 00000000:1A:00.0 is not supported.'"),
    ),
    Refusal(
        "unsupported, the other text",
        tried_before("unsupported_b"),
        ("not supported here", "could not be reset: GPU 00000000:1A:00.0: Not Supported'"),
    ),
    Refusal("blocked by a hypervisor", tried_before("blocked"), ("not supported here", "Unknown Error'")),
    Refusal(
        "a recovery action", lambda on: on.set(0, recovery_action=1), ("asks for a recovery action already (Reset)",)
    ),
    Refusal("named by index", named_by_index, ("is named '0', not by UUID",)),
]


@pytest.mark.parametrize("case", REFUSALS, ids=lambda case: case.name)
def test_each_reason_is_a_sentence_of_its_own_and_nothing_is_touched(case: Refusal, on: Bench) -> None:
    case.make(on)
    uptime = on.gpu(0)["uptime_start_mono"]
    drill = drilled(on)
    [sentence] = [said for said in drill.preflight() if not case.beside or case.beside not in said]
    assert "\n" not in sentence
    for words in case.words:
        assert words in sentence
    others = [other for other in REFUSALS if all(words in sentence for words in other.words)]
    assert others == [case]
    assert [case.beside in said for said in drill.preflight()].count(True) == 1
    replica = on.rows["replica-0"]
    assert on.control_host().alive(replica.engine_pid or 0, replica.engine_start or 0)
    assert (on.gpu(0)["uptime_start_mono"], drill.events) == (uptime, [])


def test_a_refusal_has_exit_code_3() -> None:
    assert Refused("anything").exit_code == errors.EXIT_REFUSED == 3


def test_what_was_unsupported_may_be_tried_again_after_a_boot_or_with_another_driver(on: Bench) -> None:
    tried_before("unsupported_a")(on)
    assert len(drilled(on).preflight()) == 1
    on.set_machine(driver_version="600.0")
    assert drilled(on).preflight() == []


def test_a_note_that_cannot_be_read_forbids_nothing(on: Bench) -> None:
    tried_before("unsupported_a")(on)
    [note] = (Path(on.state_dir) / "gpu-reset").glob("unsupported-*")
    note.write_text("{")
    assert drilled(on).preflight() == []


def test_an_alert_that_fires_already(on: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same for every fault: the gate looks at alerts before anything is touched."""

    class Server:
        def alerts(self) -> list[dict[str, object]]:
            return [{"labels": {"alertname": "GpuLostOrRecoveryNeeded", "severity": "page"}, "state": "firing"}]

    monkeypatch.setattr(gate, "prometheus_of", lambda _: Server())
    [sentence] = gate.firing(on)
    assert "GpuLostOrRecoveryNeeded" in sentence


# ---- a bad end: exit code 5 ------------------------------------------------------------------------------


@dataclass(frozen=True)
class BadEnd:
    """How the reset misbehaves, how that is classified, and the words for people."""

    mode: str
    outcome: str
    words: str


BAD_ENDS = [
    BadEnd("hang", "timeout", "ended as 'timeout': nvidia-smi did not end in time"),
    BadEnd("garbled", "unknown", "ended as 'unknown'"),
    BadEnd("lost", "lost", "ended as 'lost': the GPU fell off the bus"),
    BadEnd("needs_recovery", "ok", "recovery action is Reset, not None"),
    BadEnd("vanishes", "ok", "2 GPUs are there, 3 were"),
    BadEnd("no_effect", "ok", "said success, but the GPU's uptime went on"),
]


@pytest.mark.parametrize("case", BAD_ENDS, ids=lambda case: case.mode)
def test_a_bad_end_is_not_repeated_not_clean_and_for_a_person(case: BadEnd, on: Bench) -> None:
    state.script_reset(on.state_file, case.mode)
    drill = drilled(on, timeout_s=2 if case.mode == "hang" else 20)
    with pytest.raises(NotRestored, match="Look at it") as caught:
        drill.inject()
    sentence = str(caught.value)
    assert caught.value.exit_code == errors.EXIT_NOT_RESTORED == 5
    for words in (case.words, on.gpus[0]["uuid"], "drill recover"):
        assert words in sentence
    assert "\n" not in sentence
    assert drill.step("reset.end")["outcome"] == case.outcome
    assert drill.steps().count("reset.begin") == 1
    begun = on.gpu(0)["uptime_start_mono"] if case.mode != "vanishes" else None
    assert drill.receipt is not None
    for _ in range(2):  # whoever puts it back neither repeats the reset nor calls it clean
        assert for_receipt(drill.receipt, "lab").revert(on, drill.receipt, drill.ctx) is Restored.DIRTY
    assert begun is None or on.gpu(0)["uptime_start_mono"] == begun


def test_half_of_two_is_not_whole(on: Bench) -> None:
    """Each GPU by a command of its own: one is reset and is well, the other is for a person; neither is tried again."""
    state.script_reset(on.state_file, "garbled", on.gpus[1]["uuid"])
    drill = Drilled(on, on.rows["replica-0"], on.rows["replica-1"])
    with pytest.raises(NotRestored, match=f"GPU {on.gpus[1]['uuid']}: its reset ended as 'unknown'"):
        drill.inject()
    assert [data["outcome"] for _, data in drill.events if data.get("step") == "reset.end"] == ["ok", "unknown"]
    assert state.uptime_s(on.gpu(0)) < 60 < state.uptime_s(on.gpu(1))
    assert drill.receipt is not None
    assert drill.fault.revert(on, drill.receipt, drill.ctx) is Restored.DIRTY
    assert drill.fault.observe(on, drill.receipt, drill.ctx).on is False


def test_success_without_effect_is_caught_and_proves_nothing(on: Bench) -> None:
    """nvidia-smi and the GPU tell two stories: which of them is true is for a person, and nothing is proven."""
    state.script_reset(on.state_file, "no_effect")
    drill = drilled(on)
    with pytest.raises(NotRestored, match="nothing happened"):
        drill.inject()
    assert (drill.step("reset.end")["outcome"], drill.step("device.verified")["outcome"]) == ("ok", "no_effect")
    assert drill.steps().count("reset.begin") == 1
    assert drill.receipt is not None
    seen = drill.fault.observe(on, drill.receipt, drill.ctx)
    assert (seen.on, seen.evidence[0]["meaning"]) == (False, OUTCOMES["no_effect"])


def test_every_outcome_has_one_consequence() -> None:
    assert UNSUPPORTED < HARMLESS
    assert {case.outcome for case in BAD_ENDS} - {"ok"} == NEEDS_HUMAN - {
        "partial",  # one GPU a command: never in part
        "no_effect",  # not nvidia-smi's word, the GPU's
    }
