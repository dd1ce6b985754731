"""The manifests and units of a schedule: complete, minimal, and with deadlines that hold what they must."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ruamel.yaml import YAML

from drills import cli, faults, gate, schedule
from drills.access import filecustody
from drills.active import DEADLINE_SLACK_S, REVERT_ATTEMPTS
from drills.cluster import rbac
from drills.errors import DrillError, FileProblem, Refused, UsageError
from drills.model import Json
from drills.options import Options
from drills.plan import total_s
from drills.schedule import Where, manifests, targetyaml, times, units, wanted
from drills.schedule.wanted import Wanted

WINDOWS = '    limits: {windows: ["Mon-Fri 10:00-16:00 Asia/Shanghai"]}\n'
TARGETS = """\
targets:
  staging:
    endpoint: {url: https://llm.staging.example/v1, model: qwen2.5-7b-instruct}
    sla: {ttft: {p99: 1s}, e2e: {p99: 12s}, max_gap: {p99: 2s}, errors: 1%}
    kubernetes: {context: staging, namespace: llm, selector: "app=vllm,tier in (a, b)", helper: {image: "drills:1"}}
WINDOWS  Weird_Name:
    endpoint: {url: https://llm.staging.example/v1, model: qwen2.5-7b-instruct}
    sla: {ttft: {p99: 1s}, e2e: {p99: 12s}, max_gap: {p99: 2s}, errors: 1%}
    kubernetes: {namespace: llm, selector: "app=vllm"}
  lab: {kind: lab}
default_target: staging
""".replace("WINDOWS", WINDOWS)
CONTROL = """\
drill: 1
name: NAME
title: "A title: with a colon"
hypothesis: Nothing happens.
load:
  arrivals: {kind: poisson, rate: 20/s}
phases: {warmup: 5s, baseline: 30s, fault: 25s, recovery: auto}
faults:
  - FAULT
checks:
  - accounted
"""
FAULTS = {"quiet": "noop", "killed": "pod-kill: {how: delete}", "evicted": "pod-kill: {how: evict}"}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work where a target and three drills are."""
    (tmp_path / "drill.yaml").write_text(TARGETS)
    (tmp_path / "experiments").mkdir()
    for name, fault in FAULTS.items():
        text = CONTROL.replace("NAME", name).replace("FAULT", fault)
        (tmp_path / "experiments" / f"{name}.yaml").write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def planned(*names: str, target: str = "staging", schedule: str = "0 10 1 * *", zone: str = "UTC") -> Wanted:
    return wanted.wanted(names, Options(target), schedule=schedule, zone=zone)


def objects(what: Wanted, **more: Any) -> dict[str, Json]:
    found = list(YAML(typ="safe").load_all(manifests.render(what, **more)))
    return {one["kind"]: one for one in found}


def pod(of: dict[str, Json]) -> Json:
    found: Json = of["CronJob"]["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    return found


# ---- in a cluster ----------------------------------------------------------------------------------------


def test_it_is_all_that_a_cluster_needs_and_nothing_on_nodes() -> None:
    found = objects(planned("quiet", "killed"))
    kinds = ["Namespace", "ServiceAccount", "Role", "RoleBinding", "ConfigMap", "PersistentVolumeClaim", "CronJob"]
    assert list(found) == kinds
    assert {one["metadata"]["name"] for kind, one in found.items() if kind != "Namespace"} == {"drill-staging"}
    places = {kind: one["metadata"].get("namespace") for kind, one in found.items()}
    assert places == {**dict.fromkeys(kinds, "drills"), "Namespace": None, "Role": "llm", "RoleBinding": "llm"}
    assert found["RoleBinding"]["subjects"][0]["namespace"] == "drills"


@pytest.mark.parametrize(
    ("names", "faults"), [(["killed"], ["pod-kill delete"]), (["evicted", "quiet"], ["noop", "pod-kill evict"])]
)
def test_the_role_is_that_of_exactly_these_drills(names: list[str], faults: list[str]) -> None:
    needed = rbac.needed(faults, proxy=False)
    assert objects(planned(*names))["Role"]["rules"] == rbac.rules(needed)


def test_what_a_cronjob_must_say_is_said() -> None:
    found = objects(planned("killed", zone="Asia/Shanghai"))
    spec, job = found["CronJob"]["spec"], found["CronJob"]["spec"]["jobTemplate"]["spec"]
    assert (spec["schedule"], spec["timeZone"]) == ("0 10 1 * *", "Asia/Shanghai")
    assert (spec["concurrencyPolicy"], spec["startingDeadlineSeconds"]) == ("Forbid", 3600)
    assert (job["backoffLimit"], pod(found)["restartPolicy"]) == (0, "Never")
    assert pod(found)["serviceAccountName"] == "drill-staging"
    [rather_not] = pod(found)["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    term = rather_not["podAffinityTerm"]
    assert (term["namespaces"], term["topologyKey"]) == (["llm"], "kubernetes.io/hostname")
    assert term["labelSelector"] == {
        "matchLabels": {"app": "vllm"},
        "matchExpressions": [{"key": "tier", "operator": "In", "values": ["a", "b"]}],
    }


def test_the_deadlines_hold_all_drills_and_the_way_back() -> None:
    one, two = planned("killed"), planned("killed", "quiet")
    runs_s = sum(total_s(plan) for plan in two.plans)
    back_s = len(two.plans) * (filecustody.UNDO_TIMEOUT_S + DEADLINE_SLACK_S)
    assert two.times.whole_s > runs_s + back_s + gate.SETTLE_TIMEOUT_S
    assert two.times.whole_s > one.times.whole_s + total_s(two.plans[1])
    assert one.times.undo_s > filecustody.UNDO_TIMEOUT_S
    found = objects(two)
    assert found["CronJob"]["spec"]["jobTemplate"]["spec"]["activeDeadlineSeconds"] == two.times.whole_s
    assert pod(found)["terminationGracePeriodSeconds"] == two.times.undo_s
    assert two.times.undo_s < two.times.whole_s


@pytest.mark.parametrize("name", ["gpu-reset", "thermal-throttle"])
def test_the_way_back_has_the_time_of_its_steps(name: str) -> None:
    fault: Any = faults.FAULTS[name]
    more_s = times.undo_s(fault) - times.undo_s(None)
    assert more_s == REVERT_ATTEMPTS * fault.undo_s
    assert fault.undo_s > filecustody.STEP_TIMEOUT_S


def test_the_pod_asks_for_no_privilege() -> None:
    found = pod(objects(planned("killed")))
    [container] = found["containers"]
    assert found["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def test_the_drills_work_from_the_files_that_are_mounted(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = objects(planned("killed", "quiet"))
    [container] = pod(found)["containers"]
    inside = folder / "inside"
    [volume] = [one for one in pod(found)["volumes"] if "configMap" in one]
    for item in volume["configMap"]["items"]:
        (inside / item["path"]).parent.mkdir(parents=True, exist_ok=True)
        (inside / item["path"]).write_text(found["ConfigMap"]["data"][item["key"]])
    monkeypatch.chdir(inside)
    assert container["command"][:2] == ["drill", "monthly"]
    names = container["command"][2 : container["command"].index("--target")]
    again = planned(*names)
    assert [plan.experiment.to_json() for plan in again.plans] == [
        plan.experiment.to_json() for plan in planned("killed", "quiet").plans
    ]
    assert again.spec.kubernetes is not None
    assert again.spec.kubernetes.context is None, "a pod has no kubeconfig"


def test_a_files_text_is_mounted_as_it_is(folder: Path) -> None:
    text = (folder / "experiments" / "quiet.yaml").read_text()
    assert objects(planned("quiet"))["ConfigMap"]["data"]["quiet.yaml"] == text


def test_playbooks_of_ones_own_are_mounted_too(folder: Path) -> None:
    (folder / "playbooks").mkdir()
    (folder / "playbooks" / "ours.md").write_text("# What we do\n")
    path = folder / "experiments" / "quiet.yaml"
    path.write_text(path.read_text().replace("load:", "playbook: ours\nload:"))
    found = objects(planned("quiet"))
    assert found["ConfigMap"]["data"]["playbook.ours.md"] == "# What we do\n"
    assert {"key": "playbook.ours.md", "path": "playbooks/ours.md"} in pod(found)["volumes"][0]["configMap"]["items"]


def test_secrets_are_referred_to_and_never_in_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STORE_TOKEN", "canary-4f21")
    more = 'publish: {run: [cp, "{folder}", /out], env: {TOKEN: {env: STORE_TOKEN}, KEY: {file: ~/.key}}}\n'
    (folder / "drill.yaml").write_text(TARGETS.replace("    limits:", f"    {more}    limits:", 1))
    text = manifests.render(planned("quiet"))
    assert "canary" not in text
    assert "--from-literal=STORE_TOKEN=... --from-file=.key=..." in text
    found = pod(objects(planned("quiet")))
    [container] = found["containers"]
    from_secret = {"secretKeyRef": {"name": "drill-staging", "key": "STORE_TOKEN"}}
    assert {"name": "STORE_TOKEN", "valueFrom": from_secret} in container["env"]
    mounted = {"name": "secrets", "mountPath": "/tmp/.key", "subPath": ".key", "readOnly": True}
    assert mounted in container["volumeMounts"]


def test_a_name_that_kubernetes_would_not_take_is_changed_and_stays_its_own() -> None:
    assert wanted.name_of("staging") == "drill-staging"
    others = [wanted.name_of(name) for name in ("Weird_Name", "weird-name", "weird.name", "a" * 63, "x-")]
    assert len(set(others)) == len(others)
    assert all(len(name) <= wanted.NAME_MAX and name.strip("-") == name for name in others)
    assert objects(planned("killed", target="Weird_Name"), image="drills:1")["CronJob"]["metadata"]["name"] in others


@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=60).filter(lambda text: text.strip()))
def test_whatever_a_file_holds_it_is_the_same_in_the_manifest(text: str) -> None:
    read = YAML(typ="safe").load(f"data:\n  key: {manifests.block(text, 4)}\n")["data"]["key"]
    assert read.rstrip("\n") == text.rstrip("\n")


@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=30))
def test_whatever_a_value_is_it_is_read_as_that_text(text: str) -> None:
    assert YAML(typ="safe").load(f"{{key: {manifests.scalar(text)}}}") == {"key": text}


# ---- on a host -------------------------------------------------------------------------------------------


def test_a_host_gets_a_timer_and_a_service(folder: Path) -> None:
    said: list[str] = []
    where = Where("30 9 1-7 * Tue", "Asia/Shanghai", systemd=True)
    schedule.render(["killed"], Options("staging"), where, folder / "units", said.append, said.append)
    timer, service = ((folder / "units" / f"drill-staging.{kind}").read_text() for kind in ("timer", "service"))
    lines = [line for line in timer.splitlines() if line.startswith("OnCalendar=")]
    days = ",".join(f"{day:02}" for day in range(1, 8))
    assert lines == [
        f"OnCalendar=*-*-{days} 09:30:00 Asia/Shanghai",
        "OnCalendar=Tue *-*-* 09:30:00 Asia/Shanghai",
    ]
    what = planned("killed")
    assert f"TimeoutStartSec={what.times.whole_s}\n" in service
    assert f"TimeoutStopSec={what.times.undo_s}\n" in service
    assert "KillMode=process\n" in service, "what watches over a fault outlives the driver"
    assert "drill monthly killed --target staging --reports /var/lib/drills\n" in service


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze, which comes with systemd")
def test_systemd_takes_both_to_the_letter(folder: Path) -> None:
    where = Where("*/20 9 1,15 2-4 Mon-Fri", "Asia/Shanghai", systemd=True)
    schedule.render(["killed"], Options("staging"), where, folder / "units", lambda _: None, lambda _: None)
    paths = sorted(map(str, (folder / "units").iterdir()))
    done = subprocess.run(
        ["systemd-analyze", "verify", *paths], capture_output=True, text=True, timeout=60, env=dict(os.environ)
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_what_production_asks_for_is_said_each_month(folder: Path) -> None:
    limits = 'limits: {environment: production, windows: ["Mon-Fri 10:00-16:00 UTC"], stop_if: ["up == 0"]}'
    more = f"    prometheus: {{url: http://prometheus.example:9090}}\n    {limits}\n"
    (folder / "drill.yaml").write_text(TARGETS.replace("  Weird_Name:", f"{more}  Weird_Name:").replace(WINDOWS, ""))
    with pytest.raises(Refused, match="--oncall"):
        planned("killed")
    options = Options("staging", confirm="staging", oncall='Ann "on" duty, 100%')
    what = wanted.wanted(["killed"], options, schedule="0 10 1 * *", zone="UTC")
    command = pod(objects(what))["containers"][0]["command"]
    assert command[command.index("--confirm") :][:4] == ["--confirm", "staging", "--oncall", options.oncall]
    assert (
        '--confirm staging --oncall "Ann \\"on\\" duty, 100%%" --reports' in units.render(what)["drill-staging.service"]
    )


# ---- what is wrong ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"schedule": "0 10 1 *"}, "five fields"),
        ({"schedule": "0 25 1 * *"}, "the hour '25' is not from 0 to 23"),
        ({"schedule": "0 10 31 2 *"}, "never starts"),
        ({"zone": "Asia/Shanghia"}, "did you mean 'Asia/Shanghai'"),
        ({"target": "stagin"}, "did you mean 'staging'"),
    ],
)
def test_what_is_misspelt_is_one_sentence(more: dict[str, str], says: str) -> None:
    with pytest.raises(UsageError, match=says) as caught:
        planned("killed", **more)
    assert "\n" not in str(caught.value)


def test_a_drill_that_cannot_be_done_there_is_refused_before_it_is_scheduled(folder: Path) -> None:
    path = folder / "experiments" / "killed.yaml"
    path.write_text(path.read_text().replace("pod-kill: {how: delete}", "pod-kill: {how: kill-process}"))
    with pytest.raises((FileProblem, Refused), match=r"kubernetes\.helper"):
        planned("killed", target="Weird_Name")
    with pytest.raises(UsageError, match="or name the drills that are to be scheduled"):
        planned(target="staging")


def test_an_image_has_to_be_named_and_a_lab_is_in_no_cluster() -> None:
    with pytest.raises(UsageError, match="--image"):
        manifests.render(planned("killed", target="Weird_Name"))
    with pytest.raises(UsageError, match="--systemd"):
        manifests.render(planned("quiet", target="lab"))


@pytest.mark.parametrize("more", [{"namespace": "Bad_Name"}, {"namespace": ""}, {"image": "a b"}, {"image": ""}])
def test_what_is_no_namespace_or_image_is_one_sentence(more: dict[str, str]) -> None:
    with pytest.raises(UsageError, match=f"--{next(iter(more))} ") as caught:
        manifests.render(planned("killed"), **more)
    assert str(caught.value).isprintable()


def test_a_drill_may_be_asked_for_twice_and_two_of_one_name_may_not(folder: Path) -> None:
    found = objects(planned("killed", "quiet", "killed"))
    assert list(found["ConfigMap"]["data"]) == ["drill.yaml", "killed.yaml", "quiet.yaml"]
    assert pod(found)["containers"][0]["command"][2:5] == ["killed", "quiet", "killed"]
    (folder / "other.yaml").write_text((folder / "experiments" / "killed.yaml").read_text())
    with pytest.raises(UsageError, match="rename one"):
        objects(planned("killed", "./other.yaml"))


def test_starts_outside_the_windows_are_told() -> None:
    now = datetime(2026, 11, 30, tzinfo=UTC)
    [said] = wanted.warnings(planned("killed", zone="Asia/Shanghai"), now)
    assert said.startswith("2 of the next 12 starts will be refused, the first on Sat 2027-05-01 10:00: outside")
    assert not list(wanted.warnings(planned("killed", schedule="0 10 * * Tue", zone="Asia/Shanghai"), now))


def test_a_whole_route_that_may_not_be_harmed_is_told(folder: Path) -> None:
    path = folder / "experiments" / "quiet.yaml"
    path.write_text(path.read_text().replace("noop", "upstream-delay"))
    said = list(wanted.warnings(planned("quiet", target="lab")))
    assert said == []
    (folder / "drill.yaml").write_text(TARGETS.replace("kind: lab", "kind: lab, limits: {allow_route_faults: false}"))
    with pytest.raises(DrillError, match="allow_route_faults"):
        planned("quiet", target="lab")


def test_the_command_line_prints_what_can_be_applied(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.app(["schedule", "render", "killed"], standalone_mode=False) == 0
    seen = capsys.readouterr()
    assert len(list(YAML(typ="safe").load_all(seen.out))) == 7
    assert "starts will be refused" in seen.err


def test_a_target_goes_alone_and_without_its_context() -> None:
    what = planned("killed")
    read = YAML(typ="safe").load(targetyaml.text(what.spec))
    assert list(read["targets"]) == ["staging"]
    assert "context" not in read["targets"]["staging"]["kubernetes"]
    assert json.dumps(read["targets"]["staging"]["limits"]) == json.dumps(
        {"windows": ["Mon-Fri 10:00-16:00 Asia/Shanghai"]}
    )
