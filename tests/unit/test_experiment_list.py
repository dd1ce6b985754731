"""Where experiments are looked for, and what `drill list` says of the files it finds there."""

from __future__ import annotations

from pathlib import Path

import pytest

from drills import experiment
from drills.errors import FileProblem, UsageError
from tests.unit.test_experiment import GOOD, SHIPPED


def write(folder: Path, file: str, name: str, title: str = "A title") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / file
    path.write_text(GOOD.replace("name: tried", f"name: {name}").replace("A replica dies", title))
    return path


def test_the_folder_here_comes_before_the_package(tmp_path: Path) -> None:
    path = write(tmp_path / "experiments", "mine.yaml", "noop", "Mine")
    assert experiment.find_experiment("noop", tmp_path).document.path == path
    assert experiment.find_experiment("pod-kill", tmp_path).document.path == SHIPPED / "pod-kill.yaml"
    listed = {entry.name: entry for entry in experiment.list_experiments(tmp_path)}
    assert listed["noop"].title == "Mine"
    assert {"noop", "pod-kill", "gpu-reset"} <= set(listed)


def test_a_path_names_a_file(tmp_path: Path) -> None:
    path = write(tmp_path, "mine.yaml", "mine")
    assert experiment.find_experiment(str(path)).name == "mine"
    with pytest.raises(FileProblem, match=r"not-there\.yaml: is not there; check the name and the folder"):
        experiment.find_experiment("not-there.yaml")


def test_an_unknown_name_gets_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"^unknown experiment 'pod-kil'; did you mean 'pod-kill'\?$"):
        experiment.find_experiment("pod-kil", tmp_path)


def test_two_of_one_name_are_refused_and_keep_no_other_from_running(tmp_path: Path) -> None:
    first = write(tmp_path / "experiments", "a.yaml", "mine")
    second = write(tmp_path / "experiments", "b.yaml", "mine")
    write(tmp_path / "experiments", "c.yaml", "another")
    with pytest.raises(FileProblem) as caught:
        experiment.find_experiment("mine", tmp_path)
    assert str(caught.value) == f"{second}:2: name: 'mine' is also the name of {first}; rename one"
    assert experiment.find_experiment("another", tmp_path).name == "another"
    assert experiment.find_experiment("pod-kill", tmp_path).name == "pod-kill"
    listed = {entry.path: entry.problem for entry in experiment.list_experiments(tmp_path)}
    assert listed[first] == f"{first}: same name as {second}; rename one"
    assert listed[second] == f"{second}: same name as {first}; rename one"
    assert listed[tmp_path / "experiments" / "c.yaml"] is None


def test_what_a_run_would_refuse_is_not_listed_as_runnable(tmp_path: Path) -> None:
    (folder := tmp_path / "experiments").mkdir()
    (folder / "a.yaml").write_text('drill: 1\nname: "a"\n')
    (folder / "b.yaml").write_text(GOOD.replace("name: tried", "name: b").replace("failover", "failovr"))
    listed = {entry.name: entry for entry in experiment.list_experiments(tmp_path)}
    assert f"{folder}/a.yaml:1: the keys 'title', " in str(listed["a"].problem)
    assert "did you mean 'failover'?" in str(listed["b"].problem)
    assert listed["noop"].problem is None


def test_a_broken_neighbour_keeps_nobody_from_running(tmp_path: Path) -> None:
    write(tmp_path / "experiments", "good.yaml", "good")
    broken = tmp_path / "experiments" / "broken.yaml"
    broken.write_bytes(b"name: \xff\n")
    assert experiment.find_experiment("good", tmp_path).name == "good"
    entry = next(e for e in experiment.list_experiments(tmp_path) if e.path == broken)
    assert entry.problem == f"{broken}:1: byte 0xff is not UTF-8; save the file as UTF-8"
    with pytest.raises(FileProblem, match="is not UTF-8"):
        experiment.find_experiment("broken", tmp_path)
