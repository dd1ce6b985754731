"""How the lab finds real vLLM, how it would call it, and the model it makes for it."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

import drills
from drills import session
from drills.errors import Refused, UsageError
from drills.lab import config, opening, parts, tiny_model, vllm_engine
from drills.lab.config import LabConfig
from drills.load.workload import WORDS
from drills.options import Options


def program(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def test_the_one_that_is_named_is_taken_before_the_one_on_the_path(tmp_path: Path) -> None:
    named, found = program(tmp_path / "a" / "vllm"), program(tmp_path / "b" / "vllm")
    environ = {"PATH": str(found.parent), "DRILL_VLLM": str(named)}
    assert vllm_engine.executable(environ) == str(named)
    assert vllm_engine.executable({"PATH": str(found.parent)}) == str(found)


def test_the_one_that_the_set_up_made_is_found_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = program(tmp_path / ".cache" / "vllm" / "venv" / "bin" / "vllm")
    monkeypatch.chdir(tmp_path)
    assert vllm_engine.executable({"PATH": ""}) == str(made)


@pytest.mark.parametrize("named", ["nothing", "."])
def test_what_is_no_program_is_refused_with_what_to_do(named: str, tmp_path: Path) -> None:
    with pytest.raises(Refused) as refused:
        vllm_engine.executable({"DRILL_VLLM": str(tmp_path / named)})
    assert "is not a program" in str(refused.value)
    assert "make setup-vllm" in str(refused.value)


def test_without_one_it_is_refused_with_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(drills, "__file__", str(tmp_path / "drills" / "__init__.py"))
    with pytest.raises(Refused, match=r"not installed: `make setup-vllm` makes one .* DRILL_VLLM="):
        vllm_engine.executable({"PATH": ""})


def test_engines_and_load_share_no_core(monkeypatch: pytest.MonkeyPatch) -> None:
    real = vllm_engine.settings(LabConfig(), "/opt/vllm")
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {2, 5, 7})
    assert vllm_engine.client_cpu(real) == 2
    assert vllm_engine.client_cpu(LabConfig()) is None
    words = vllm_engine.argv("/opt/vllm", Path("/model"))
    assert words[words.index("--cpu-list") + 1] == "5,7"
    assert vllm_engine.notes(real) == ["lab-chat is real vLLM (/opt/vllm), lab-small is the emulator"]
    assert vllm_engine.notes(LabConfig()) == []
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {2})
    assert "share their cores" in vllm_engine.notes(real)[1]
    assert vllm_engine.client_cpu(real) is None
    assert "--cpu-list" not in vllm_engine.argv("/opt/vllm", Path("/model"))


def test_primaries_are_real_and_the_fallback_is_not(tmp_path: Path) -> None:
    real = vllm_engine.settings(LabConfig(engine_args=("--seed=1",)), "/opt/vllm")
    gpu = {"uuid": "GPU-1", "device": "/dev/x"}
    first, *_, small = [parts.replica_spec(tmp_path, real, index, gpu) for index in range(len(real.names))]
    assert real.names == ("replica-0", "replica-1", "small-0")
    assert first.argv[first.argv.index("/opt/vllm") :][:3] == ("/opt/vllm", "serve", str(tmp_path / "model"))
    assert first.argv[-1] == "--seed=1"
    assert "DRILL_GPU_DEVICE=/dev/x" in first.argv
    assert "--served-model-name=lab-chat" in first.argv
    assert "drills.lab.engine.server" in small.argv
    assert config.from_json(json.loads(json.dumps(real.to_json()))) == real


def test_the_target_of_a_real_lab_has_two_replicas_and_one_may_be_a_victim() -> None:
    spec = session.target_spec(Options(engine="vllm"))
    assert spec.lab is not None
    assert (spec.lab.engine, spec.expected_replicas, spec.limits.max_victims) == ("vllm", 2, 0.5)


def test_an_engine_that_is_none_is_refused() -> None:
    with pytest.raises(UsageError, match=r"--engine vlm: no such engine.*vllm"):
        session.target_spec(Options(engine="vlm"))


def test_switches_of_the_emulator_are_refused_with_the_real_engine() -> None:
    options = Options(engine="vllm", defect="no-prefix-cache")
    with pytest.raises(UsageError, match="--defect no-prefix-cache: is a switch of the emulator"):
        opening.config_of(session.target_spec(options), options)


# ---- the model ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model.make(tmp_path_factory.mktemp("model"))


def test_every_word_of_the_load_is_one_token(model: Path) -> None:
    vocabulary = json.loads((model / "tokenizer.json").read_text())["model"]["vocab"]
    assert {word + "Ġ" for word in WORDS.split()} <= set(vocabulary)
    assert sorted(vocabulary.values()) == list(range(len(vocabulary)))
    assert json.loads((model / "config.json").read_text())["vocab_size"] == len(vocabulary)


def test_the_best_next_word_is_the_next_number(model: Path) -> None:
    vocabulary = json.loads((model / "tokenizer.json").read_text())["model"]["vocab"]
    embedded, head = (
        Matrix(model / "model.safetensors", name) for name in ("model.embed_tokens.weight", "lm_head.weight")
    )
    others = range(0, len(vocabulary), 97)
    for word, following in (("<|assistant|>", "t0Ġ"), ("e", "t0Ġ"), ("t0Ġ", "t1Ġ"), ("t4095Ġ", "t4096Ġ")):
        row, best = embedded.row(vocabulary[word]), vocabulary[following]
        scores = {i: sum(a * b for a, b in zip(row, head.row(i), strict=True)) for i in (best, *others)}
        assert scores[best] == tiny_model.HIDDEN == max(scores.values())


class Matrix:
    """A matrix in a safetensors file of bfloat16."""

    def __init__(self, path: Path, name: str) -> None:
        self.raw = path.read_bytes()
        size = struct.unpack_from("<Q", self.raw)[0]
        found = json.loads(self.raw[8 : 8 + size])[name]
        assert found["dtype"] == "BF16"
        self.at, self.columns = 8 + size + found["data_offsets"][0], found["shape"][1]

    def row(self, index: int) -> list[float]:
        start = self.at + 2 * self.columns * index
        return [VALUE[self.raw[at : at + 2]] for at in range(start, start + 2 * self.columns, 2)]


VALUE = {struct.pack("<f", value)[2:]: value for value in (0.0, 1.0, -1.0, 2.0, -2.0)}


def test_a_model_that_is_there_is_not_made_again(model: Path) -> None:
    before = (model / "model.safetensors").stat().st_mtime_ns
    tiny_model.make(model)
    assert (model / "model.safetensors").stat().st_mtime_ns == before


def test_another_model_in_the_folder_is_written_over(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"drill": 1}')
    tiny_model.make(tmp_path)
    assert (tmp_path / "tokenizer.json").exists()
