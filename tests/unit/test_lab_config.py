from __future__ import annotations

import json
from pathlib import Path

import pytest

from drills.errors import FileProblem, UsageError
from drills.lab import config, defects, router
from drills.lab.config import LabConfig


def test_config_survives_json() -> None:
    planted = defects.plant("no-retries", LabConfig(port_base=20000, startup_s=2.0, owner="run:x", lives_s=600.0))
    assert config.from_json(json.loads(json.dumps(planted.to_json()))) == planted


def test_unknown_settings_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text('{"startups_s": 1}')
    with pytest.raises(FileProblem, match=r"config\.json: startups_s: no such lab setting; did you mean 'startup_s'\?"):
        config.load(file)
    file.write_text("{")
    with pytest.raises(FileProblem, match="not JSON"):
        config.load(file)


def test_no_two_parts_share_a_port() -> None:
    lab = LabConfig()
    parts = 5 + 2 + 3 * len(lab.names)
    assert len(lab.all_ports()) == parts


def test_the_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRILL_LAB_DIR", "/x/lab")
    assert config.lab_dir() == Path("/x/lab")
    monkeypatch.delenv("DRILL_LAB_DIR")
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    assert config.lab_dir() == Path("/state/drill/lab")


@pytest.mark.parametrize("name", sorted(defects.DEFECTS))
def test_every_defect_changes_the_lab_or_the_client(name: str) -> None:
    planted = defects.plant(name, LabConfig())
    assert planted.defect == name
    changed = {k for k, v in planted.to_json().items() if LabConfig().to_json()[k] != v} - {"defect"}
    assert changed or defects.client_overlay(name)


def test_an_unknown_defect_names_the_nearest() -> None:
    with pytest.raises(UsageError, match="no such defect; did you mean 'no-alert'"):
        defects.plant("no-alerts", LabConfig())
    assert defects.plant(None, LabConfig()) == LabConfig()


def test_extra_router_arguments_come_after_the_healthy_ones() -> None:
    line = router.argv("127.0.0.1", 1, 2, ["http://w"], ["--health-check-interval-secs=86400"])
    settings = [a for a in line if a.startswith("--health-check-interval-secs")]
    assert settings[-1] == "--health-check-interval-secs=86400"
    assert line[-2:] == ["--worker-urls", "http://w"]
