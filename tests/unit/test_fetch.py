"""Reports that come home: what is copied, what stays as it is, and what a broken stream leaves (nothing)."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from drills.access import kubeexec
from drills.access.kubernetes import Api
from drills.actions import store
from drills.cluster import fetch
from drills.errors import Refused
from drills.model import Completed, Json
from tests.unit.test_actions_follow import STRICT
from tests.unit.test_actions_follow import folder as run_that_failed

RUN = "runs/20261101T020000Z-pod-kill-0a1b2c3d"
OPEN = "runs/20261101T030000Z-noop-0a1b2c3e"
MONTH = "2026-11"


class Volume:
    """A folder as the pod's volume; the commands that would run in the pod run here, on it."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.there, self.here = folder / "there", folder / "here"
        self.here.mkdir()
        self.said: list[str] = []
        self.cut_at: int | None = None  # bytes of a stream that breaks
        monkeypatch.setattr(fetch, "PLACE", str(self.there))
        monkeypatch.setattr(kubeexec, "run", self.run)
        for run in (RUN, OPEN):
            (self.there / run).mkdir(parents=True)
            (self.there / run / "journal.jsonl").write_text("{}\n")
        (self.there / RUN / "verdict.json").write_text('{"verdict": "pass"}\n')
        (self.there / RUN / "requests.ndjson").write_bytes(bytes(range(256)) * 400)
        (self.there / MONTH).mkdir()
        record = {"began": "2026-11-01T02:00:00Z", "target": "t", "drills": [{"drill": "gpu-reset", "why": "no GPU"}]}
        (self.there / MONTH / "20261101T020000Z-t.json").write_text(json.dumps(record))
        (self.there / MONTH / "review.md").write_text("# Of another machine\n")

    def run(self, *where: Any, timeout_s: float, sink: Callable[[bytes], Any] | None = None) -> Completed:
        argv: Sequence[str] = where[-1]
        done = subprocess.run(argv, capture_output=True, timeout=timeout_s, check=False)
        out = done.stdout if self.cut_at is None else done.stdout[: self.cut_at]
        if sink is not None:
            sink(out)
        return Completed(tuple(argv), done.returncode, "" if sink else done.stdout.decode(), done.stderr.decode())

    def fetch(self) -> None:
        self.said.clear()
        fetch._Fetching(cast("Api", None), "drills", "pod", self.here, self.said.append).all()


@pytest.fixture
def volume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Volume:
    return Volume(tmp_path, monkeypatch)


def test_what_has_a_verdict_comes_home_byte_for_byte(volume: Volume) -> None:
    volume.fetch()
    for name in ("journal.jsonl", "verdict.json", "requests.ndjson"):
        assert (volume.here / RUN / name).read_bytes() == (volume.there / RUN / name).read_bytes()
    assert not (volume.here / OPEN).exists()
    assert f"left there, as it has no verdict yet: {OPEN}" in volume.said
    assert volume.said[-1] == "1 of 1 runs fetched, the others were here already"
    assert [path.name for path in volume.here.iterdir() if path.name.startswith(".")] == []


def test_the_review_is_made_from_what_is_here_now(volume: Volume) -> None:
    mine = volume.here / "runs" / "20261102T020000Z-noop-0a1b2c3f"
    mine.mkdir(parents=True)
    (mine / "journal.jsonl").write_text("{}\n")
    volume.fetch()
    text = (volume.here / MONTH / "review.md").read_text()
    assert mine.name in text
    assert RUN.removeprefix("runs/") in text
    assert "**Did not run**: `gpu-reset` at `t`, asked for on 2026-11-01 02:00 UTC: no GPU." in text


def test_runs_that_come_home_carry_the_action_items_forward_that_are_here(volume: Volume) -> None:
    failed = "20261108T100000Z-pod-kill-bbbbbbbb"
    run_that_failed(volume.there, failed, [STRICT])
    (volume.there / "actions.yaml").write_text("actions: [of another machine]\n")
    volume.fetch()
    [item] = store.read(volume.here)
    assert (item.opened.run, item.seen) == ("bbbbbbbb", ("bbbbbbbb",))
    assert "action items: 1 opened; `drill actions list` shows them" in volume.said


def test_what_is_here_already_stays_as_it_is(volume: Volume) -> None:
    volume.fetch()
    (volume.here / RUN / "notes.md").write_text("What we thought of it.\n")
    (volume.here / RUN / "postmortem.md").write_text("made again\n")
    volume.fetch()
    assert (volume.here / RUN / "postmortem.md").read_text() == "made again\n"
    assert (volume.here / RUN / "notes.md").is_file()
    assert volume.said[-1] == "0 of 1 runs fetched, the others were here already"


def test_a_folder_without_a_verdict_here_is_replaced_and_its_notes_stay(volume: Volume) -> None:
    (volume.here / RUN).mkdir(parents=True)
    (volume.here / RUN / "notes.md").write_text("What we thought of it.\n")
    (volume.here / RUN / "half").write_text("")
    volume.fetch()
    assert sorted(p.name for p in (volume.here / RUN).iterdir()) == [
        "journal.jsonl", "notes.md", "requests.ndjson", "verdict.json",
    ]  # fmt: skip


@pytest.mark.parametrize("cut_at", [0, 700, 30_000])
def test_a_stream_that_breaks_leaves_nothing(volume: Volume, cut_at: int) -> None:
    volume.cut_at = cut_at
    with pytest.raises(Refused, match="fetch again"):
        volume.fetch()
    assert not (volume.here / RUN).exists()
    assert [path.name for path in volume.here.iterdir() if path.name != "runs"] == []
    volume.cut_at = None
    volume.fetch()
    assert (volume.here / RUN / "verdict.json").is_file()


def test_nothing_is_written_outside(volume: Volume, tmp_path: Path) -> None:
    (volume.there / RUN / "link").symlink_to(tmp_path)
    with pytest.raises(Refused, match="did not come whole"):
        volume.fetch()


def test_an_empty_volume_is_no_error(volume: Volume, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.setattr(fetch, "PLACE", str(tmp_path / "empty"))
    volume.fetch()
    assert volume.said == ["0 of 0 runs fetched, the others were here already"]


def cronjob(**pod: Any) -> Json:
    mounts = [{"name": "reports", "mountPath": "/reports"}, {"name": "config", "mountPath": "/etc/drills"}]
    container: Json = {
        "name": "drill",
        "image": "i:1",
        "imagePullPolicy": "Never",
        "command": ["drill"],
        "volumeMounts": mounts,
    }
    container |= {"env": [{"name": "SECRET"}], "securityContext": {"readOnlyRootFilesystem": True}}
    claim = {"name": "reports", "persistentVolumeClaim": {"claimName": "drill-t"}}
    spec = {"containers": [container], "volumes": [{"name": "config"}, claim], **pod}
    return {"spec": {"jobTemplate": {"spec": {"template": {"spec": spec}}}}}


def test_its_pod_sees_the_reports_alone_and_may_only_read(monkeypatch: pytest.MonkeyPatch) -> None:
    made = fetch._manifest(cronjob(securityContext={"runAsUser": 10001}, serviceAccountName="drill-t"), "drill-t")
    spec = made["spec"]
    [container] = spec["containers"]
    assert container["volumeMounts"] == [{"name": "reports", "mountPath": "/reports", "readOnly": True}]
    assert [volume["name"] for volume in spec["volumes"]] == ["reports"]
    assert (container["image"], container["imagePullPolicy"]) == ("i:1", "Never")
    assert (spec["securityContext"], spec["automountServiceAccountToken"]) == ({"runAsUser": 10001}, False)
    assert "serviceAccountName" not in spec
    assert "env" not in container
    assert spec["activeDeadlineSeconds"] > 0


def test_containers_that_were_put_beside_it_confuse_nobody() -> None:
    job = cronjob()
    beside = {"name": "backup", "image": "other:1", "volumeMounts": [{"name": "reports", "mountPath": "/backup"}]}
    job["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"].insert(0, beside)
    made = fetch._manifest(job, "drill-t")
    assert made["spec"]["containers"][0]["image"] == "i:1"
    assert made["metadata"]["annotations"]["sidecar.istio.io/inject"] == "false"


def test_a_cronjob_without_reports_is_refused() -> None:
    job = cronjob()
    job["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"] = [{"name": "drill", "image": "i:1"}]
    with pytest.raises(Refused, match="no container of it mounts a volume 'reports'"):
        fetch._manifest(job, "drill-t")
