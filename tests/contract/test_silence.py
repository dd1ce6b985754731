"""`alerts.mode` against a real Alertmanager: what is silenced and what is not, by whom it ends, what is announced."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from drills import beside, lock, silence
from drills import recover as recovering
from drills.access import filecustody
from drills.access.local import LocalHost
from drills.active import ActiveFaults
from drills.announce import ALERT, Announcement
from drills.clock import Clock, utc
from drills.errors import Refused, Unreachable
from drills.model import Context, Json, Receipt, Replica, Restored, Target
from drills.probes.alerts import is_page
from drills.probes.prometheus import Alertmanager
from drills.silence import Silence
from tests.contract import alertmanager
from tests.lab.drilling import eventually

RUN = "0badf00d"
VICTIM = Replica("vllm-0", "u0", "primary", "", ready=True, labels={"drills/pod": "vllm-5d8f-a"}, gpus=("GPU-1",))
LASTS_S = 300.0


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Alertmanager]:
    with alertmanager.running(tmp_path_factory.mktemp("alertmanager")) as manager:
        yield manager


@pytest.fixture
def manager(shared: Alertmanager) -> Iterator[Alertmanager]:
    """An Alertmanager in which nothing is silenced; afterwards neither."""
    yield shared
    assert [one for one in shared.silences() if one["status"]["state"] in silence.OPEN] == []


def plan(mode: str = "observe", labels: Json | None = None, **checks: Json) -> Json:
    """A plan that expects these alerts, by name with their labels."""
    items = [{"check": "alert", "params": {"name": name, "labels": wanted}} for name, wanted in checks.items()]
    alerts = {"mode": mode, "labels": labels or {}}
    target = {"name": "t", "alerts": alerts, "limits": {}}
    return {"run": RUN, "target": target, "experiment": {"name": "pod-kill", "checks": items}}


def target_of(manager: Alertmanager, tmp_path: Path, url: str | None = None) -> Target:
    custody = filecustody.FileCustody(LocalHost(), str(tmp_path / "state"), "t")
    found = SimpleNamespace(
        name="t", kind="kubernetes", alertmanager=url or manager.url, prometheus=None, custody=custody
    )
    return cast("Target", found)


def fires(manager: Alertmanager, **labels: str) -> None:
    manager.tell([{"labels": {"severity": "page", **labels}, "startsAt": utc(time.time())}])


def state_of(manager: Alertmanager, **labels: str) -> str | None:
    """Return what Alertmanager says of an alert: active, suppressed, or None when it has none like that."""
    found = [a for a in manager.alerts() if labels.items() <= a["labels"].items()]
    return str(found[0]["status"]["state"]) if found else None


def active(target: Target, told: list[tuple[str, Json]]) -> ActiveFaults:
    tell = beside.telling(lambda event, data: told.append((event, data)))
    context = Context(tell, lambda _s: None, time.monotonic, lambda: False)
    return ActiveFaults(RUN, target, Clock(), tell=tell, note=tell, context=context)


def put_on(target: Target, wanted: Silence, told: list[tuple[str, Json]] | None = None) -> ActiveFaults:
    on = active(target, [] if told is None else told)
    on.put_on(0, wanted, [VICTIM], fault_s=LASTS_S)
    return on


def silence_of(content: Json, target: Target) -> Silence:
    made = Silence.of(content, target, [VICTIM])
    assert made is not None
    return made


def test_the_expected_alert_of_the_victim_is_silenced_and_nothing_else(manager: Alertmanager, tmp_path: Path) -> None:
    target = target_of(manager, tmp_path)
    for pod in ("vllm-5d8f-a", "vllm-5d8f-b"):
        fires(manager, alertname="Down", pod=pod, namespace="llm")
        fires(manager, alertname="Slow", pod=pod, namespace="llm")
    fires(manager, alertname="Down", pod="vllm-5d8f-a", namespace="other")
    told: list[tuple[str, Json]] = []
    on = put_on(target, silence_of(plan(labels={"namespace": "llm"}, Down={"pod": "{victim}"}), target), told)
    hers = {"alertname": "Down", "pod": "vllm-5d8f-a", "namespace": "llm"}
    eventually(lambda: state_of(manager, **hers) == "suppressed", 10)
    assert state_of(manager, alertname="Down", pod="vllm-5d8f-b") == "active"
    assert state_of(manager, alertname="Slow", pod="vllm-5d8f-a") == "active"
    assert state_of(manager, alertname="Down", namespace="other") == "active"
    [proof] = [data for event, data in told if event == "beside.proof.on"]
    assert proof["ok"] is True
    assert proof["evidence"][0]["state"] == "active"
    on.revert_all()
    assert on.restored is Restored.CLEAN
    eventually(lambda: state_of(manager, **hers) == "active", 10)
    assert target.custody.outstanding() == []
    names = [event for event, _ in told]
    assert names.index("receipt") < names.index("beside.inject.step")
    assert dict(told)["receipt"]["beside"] is True
    assert not any(event.startswith(("inject.", "proof.")) for event in names)  # nothing hit a replica


def test_its_end_is_in_alertmanager_whoever_lives_to_end_it(manager: Alertmanager, tmp_path: Path) -> None:
    target = target_of(manager, tmp_path)
    on = put_on(target, silence_of(plan(Down={"gpu": "{gpu}"}), target))
    [made] = [one for one in manager.silences() if one["createdBy"] == f"drill run {RUN}" and _open(one)]
    assert made["endsAt"][:16] in {utc(time.time() + LASTS_S + late)[:16] for late in (14, 15, 16)}
    assert [m["value"] for m in made["matchers"] if m["name"] == "gpu"] == ["GPU-1"]
    on.revert_all()


def _open(one: Json) -> bool:
    return str(one["status"]["state"]) in silence.OPEN


def test_a_driver_that_is_gone_leaves_what_recover_expires(manager: Alertmanager, tmp_path: Path) -> None:
    target = target_of(manager, tmp_path)
    put_on(target, silence_of(plan(Down={"pod": "{victim}"}), target))
    [left] = target.custody.outstanding()
    assert left.sentence().startswith("alert-silence on vllm-0")
    with pytest.raises(Refused, match="not put back yet: alert-silence"):
        lock.refuse_leftovers("t", [left])
    done = recovering.recover(target.custody, target, None, {}, Clock())
    assert done.restored is Restored.CLEAN
    assert done.lines == [f"run {RUN}: alert-silence on vllm-0: put back"]
    assert not any(_open(one) for one in manager.silences())
    assert recovering.recover(target.custody, target, None, {}, Clock()).lines == []


def test_a_revert_may_be_repeated_and_spares_the_silences_of_others(manager: Alertmanager, tmp_path: Path) -> None:
    target = target_of(manager, tmp_path)
    now = time.time()
    matcher = {"name": "alertname", "value": "Down", "isRegex": False, "isEqual": True}
    ends = utc(now + LASTS_S)
    body = {"matchers": [matcher], "startsAt": utc(now), "endsAt": ends, "createdBy": "ada", "comment": "mine"}
    mine = manager.silence(body)
    on = put_on(target, silence_of(plan(Down={"pod": "{victim}"}), target))
    [(wanted, receipt)] = on.on
    on.revert_all()
    context = Context(lambda *_: None, lambda _s: None, time.monotonic, lambda: False)
    assert wanted.revert(target, receipt, context) is Restored.CLEAN
    assert [one["id"] for one in manager.silences() if _open(one)] == [mine]
    manager.expire(mine)


def receipt_at(url: str, ends: float) -> Receipt:
    prior = {"alertmanager": url, "ends_wall": ends}
    return Receipt("r-0", RUN, Silence.name, "t", "alertmanager", ({"name": "a"},), prior, (), (), 60.0)


def test_an_alertmanager_that_cannot_be_asked_is_said_with_what_to_type(manager: Alertmanager, tmp_path: Path) -> None:
    away = target_of(manager, tmp_path, "http://127.0.0.1:9")
    wanted = silence_of(plan(Down={"pod": "{victim}"}), away)
    [said] = wanted.preflight(away, [])
    assert "Alertmanager http://127.0.0.1:9 cannot be asked (cannot connect)" in said
    context = Context(lambda *_: None, lambda _s: None, time.monotonic, lambda: False)
    with pytest.raises(Unreachable) as caught:
        wanted.revert(away, receipt_at("http://127.0.0.1:9", 1800000000.0), context)
    assert "end by themselves at 2027-01-15T08:00:00" in str(caught.value)
    assert f"query -q --created-by='drill run {RUN}'" in str(caught.value)
    with pytest.raises(Refused, match="no silence could be created"):
        wanted.inject(away, receipt_at("http://127.0.0.1:9", time.time() + 60), context)


def test_alerts_that_page_are_not_silenced(manager: Alertmanager, tmp_path: Path) -> None:
    target = target_of(manager, tmp_path)
    assert beside.wanted(plan("page", Down={}), target, [VICTIM]) == []
    assert beside.wanted(plan("observe"), target, [VICTIM]) == []  # none is expected


# ---- announced -------------------------------------------------------------------------------------------


def announcement(content: Json, target: Target) -> tuple[Announcement, list[tuple[str, Json]]]:
    told: list[tuple[str, Json]] = []
    return Announcement(content, target, Clock(), lambda event, data: told.append((event, data))), told


def test_begin_and_end_are_announced_to_whom_it_may_page(manager: Alertmanager, tmp_path: Path) -> None:
    target = target_of(manager, tmp_path)
    made, told = announcement(plan("page", {"namespace": "llm"}, Down={}), target)
    made.begin(600.0)
    mine: Json = {"alertname": ALERT, "run": RUN, "namespace": "llm"}
    assert state_of(manager, **mine) is not None
    [alert] = [a for a in manager.alerts() if a["labels"]["alertname"] == ALERT]
    assert not is_page(alert["labels"])
    assert "Down" in alert["annotations"]["description"]
    made.end()
    eventually(lambda: state_of(manager, **mine) is None, 10)
    assert [(event, data["what"]) for event, data in told] == [("announced", "begin"), ("announced", "end")]


@pytest.mark.parametrize("mode", ["page", "observe"])
def test_nobody_is_told_where_nobody_is_paged(manager: Alertmanager, tmp_path: Path, mode: str) -> None:
    embedded = {"keep_alive": lambda: None, "load_core": lambda: None} if mode == "page" else {}
    target: Any = target_of(manager, tmp_path)
    target.__dict__.update(embedded)
    made, told = announcement(plan(mode, Down={}), target)
    made.begin(600.0)
    made.end()
    assert told == []


def test_what_cannot_be_announced_is_refused(manager: Alertmanager, tmp_path: Path) -> None:
    made, told = announcement(plan("page", Down={}), target_of(manager, tmp_path, "http://127.0.0.1:9"))
    with pytest.raises(Refused, match=r"cannot be announced: alertmanager http://127\.0\.0\.1:9: cannot connect"):
        made.begin(600.0)
    made.end()
    assert len(told) == 2


# ---- what is matched -------------------------------------------------------------------------------------


def test_matchers_name_the_victims_by_all_their_names() -> None:
    second = replace(VICTIM, name="vllm-1", labels={"drills/pod": "vllm-5d8f-b.c"})
    found = silence.matchers("Down", {"pod": "{victim}", "service": "chat"}, [VICTIM, second])
    assert silence.words(found) == (
        r'alertname="Down", pod=~"vllm\-0|vllm\-5d8f\-a|vllm\-1|vllm\-5d8f\-b\.c", service="chat"'
    )


@pytest.mark.parametrize(("word", "victims"), [("{gpu}", [replace(VICTIM, gpus=())]), ("{victim}", [])])
def test_a_word_that_stands_for_nobody_matches_nobody(word: str, victims: list[Replica]) -> None:
    """Matched by nothing it would be a silence for whoever lacks that label."""
    with pytest.raises(Refused, match=f"alerts.mode observe: Down: what: {word} stands for nobody here"):
        silence.matchers("Down", {"what": word}, victims)


def test_what_is_empty_on_purpose_is_matched_as_it_is() -> None:
    assert silence.words(silence.matchers("Down", {"canary": ""}, [VICTIM])) == 'alertname="Down", canary=""'
