"""Units of systemd that are stopped and started for a reset: by the words of `systemctl show`, and the gate of one."""

from __future__ import annotations

import math
import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from drills.access import gpu_units, gpunodes
from drills.errors import DrillError, Refused
from drills.hosts import gate, restarts
from drills.hosts.gpuhost import ANOTHER, STOP, SystemdHost, span_s
from drills.model import Completed, Json, Replica

UNIT, DCGM, EXPORTER, DEV = "vllm.service", "nvidia-dcgm.service", "dcgm-exporter.service", "jupyter.service"


class Host:
    """A host whose units are a table: name → properties that are not as usual."""

    name, python = "g1", "python3"

    def __init__(self) -> None:
        self.table: dict[str, dict[str, str]] = {UNIT: {}, DCGM: {}, EXPORTER: {}, DEV: {}}
        self.files: dict[str, str] = {}
        self.ran: list[Sequence[str]] = []
        self.rc, self.err = 0, ""

    def run(self, argv: Sequence[str], *, timeout_s: float, stdin: str | None = None) -> Completed:
        self.ran.append(argv)
        if argv[0] != "systemctl":
            return Completed(tuple(argv), self.rc, "", self.err)
        names = argv[argv.index("--") + 1 :]
        blocks = ["".join(f"{key}={value}\n" for key, value in self.shown(name).items()) for name in names]
        return Completed(tuple(argv), self.rc, "\n".join(blocks), self.err)

    def shown(self, name: str) -> dict[str, str]:
        if name not in self.table:
            return {"Id": name, "LoadState": "not-found", "ActiveState": "inactive", "SubState": "dead"}
        usual = {
            "Id": name, "LoadState": "loaded", "ActiveState": "active", "SubState": "running", "Restart": "always",
            "CanStart": "yes", "CanStop": "yes", "TimeoutStopUSec": "1min 30s", "InvocationID": f"run-of-{name}",
        }  # fmt: skip
        return usual | self.table[name]

    def write(self, path: str, text: str, *, mode: int = 0o600) -> None:
        self.files[path] = text

    def remove(self, path: str) -> None:
        self.files.pop(path, None)


@pytest.fixture
def on() -> Host:
    return Host()


def units(on: Any, *declared: str) -> SystemdHost:
    return SystemdHost(on, ["nvidia-smi"], {"g1": "vllm"}, declared)


def replica(uid: str = f"run-of-{UNIT}") -> Replica:
    return Replica(name="g1", uid=uid, role="primary", url="", ready=True, host="g1")


def holding(*names: str) -> Json:
    return {"holders": [{"gpu": "GPU-1", "unit": name} for name in names]}


# ---- why not ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"LoadState": "masked"}, "unit vllm.service is masked"),
        ({"Id": "llm.service"}, "unit vllm.service is another name of llm.service"),
        ({"ActiveState": "activating", "SubState": "auto-restart"}, "is activating (auto-restart), not active"),
        ({"Job": "77"}, "not active and at rest"),
        ({"InvocationID": "other"}, "is another run of it"),
        ({"CanStop": "no"}, "may not be started or stopped by hand"),
        ({"TimeoutStopUSec": "infinity"}, "may take for ever to stop"),
        ({"TimeoutStopUSec": "10min"}, "may take 10min to stop (TimeoutStopSec), and a drill waits 300 s"),
        ({"TimeoutStopUSec": "4min 51s"}, "make it 290 s at most"),
        ({"BoundBy": DEV}, "jupyter.service would be stopped along with it"),
    ],
)
def test_a_unit_that_cannot_be_stopped_and_come_back_is_a_reason(on: Host, said: dict[str, str], words: str) -> None:
    on.table[UNIT] = said
    [reason] = units(on).refusals([replica()], stop=True)
    assert words in reason


def test_a_crash_needs_a_unit_that_is_started_again_after_status_0(on: Host) -> None:
    on.table[UNIT] = {"Restart": "on-failure"}
    [reason] = units(on).refusals([replica()], stop=False)
    assert "Restart=on-failure" in reason
    assert "needs Restart=always" in reason
    assert units(on).refusals([replica()], stop=True) == []


def test_a_crash_needs_one_whose_start_may_run_out_of_time_at_the_gate(on: Host) -> None:
    on.table[UNIT] = {"Restart": "on-success"}
    [reason] = units(on).refusals([replica()], stop=False)
    assert "Restart=on-success: a start that waits at a gate may run out of time; it needs Restart=always" in reason


@pytest.mark.parametrize(
    ("policy", "back"),
    [
        ("always", {"engine", "kill", "crash"}),
        ("on-success", {"engine"}),
        ("on-failure", {"kill"}),
        ("on-abnormal", {"kill"}),
        ("on-abort", {"kill"}),
        ("on-watchdog", set()),
        ("no", set()),
        ("", set()),
    ],
)
def test_what_each_policy_starts_again(on: Host, policy: str, back: set[str]) -> None:
    """As in systemd.service(5), table 2."""
    assert {deed for deed in restarts.ENDS if not restarts.stays_down(policy, deed)} == back
    on.table[UNIT] = {"Restart": policy}
    assert (units(on).stay_down([replica()], "kill") == []) == ("kill" in back)


def test_who_stays_down_is_said_with_what_mends_it(on: Host) -> None:
    on.table[UNIT] = {"Restart": "no"}
    assert units(on).stay_down([replica()], "kill") == [
        "g1: unit vllm.service has Restart=no: a server that is killed ends by a signal, and it would stay down; "
        "it needs Restart=always"
    ]


def test_a_unit_that_is_all_right_is_none(on: Host) -> None:
    assert units(on).refusals([replica()], stop=True) == units(on).refusals([replica()], stop=False) == []


def test_a_unit_that_may_take_as_long_as_the_deed_waits_is_stopped(on: Host) -> None:
    on.table[UNIT] = {"TimeoutStopUSec": "4min 50s"}
    assert units(on).refusals([replica()], stop=True) == []


@pytest.mark.parametrize(
    ("text", "span"),
    [
        ("1min 30s", 90.0),
        ("0", math.inf),
        ("infinity", math.inf),
        ("2h", 7200.0),
        ("1.500s", 1.5),
        ("1s 500ms", 1.5),
        ("1month 2d", 2802600.0),
        ("3 fortnights", math.inf),
    ],
)
def test_a_span_of_time_is_read_as_systemd_writes_it(text: str, span: float) -> None:
    assert span_s(text) == span


def test_a_unit_that_is_not_declared_is_nobodys(on: Host) -> None:
    with pytest.raises(Refused, match="no unit of replica 'g2'"):
        units(on).unit_of("g2")


def test_a_host_without_systemd_says_so(on: Host) -> None:
    on.rc, on.err = 1, "System has not been booted with systemd as init system"
    with pytest.raises(DrillError, match="has not been booted with systemd"):
        units(on).units([UNIT])


# ---- who is paused ---------------------------------------------------------------------------------------


def test_who_watches_and_holds_is_paused_and_nobody_else(on: Host) -> None:
    assert units(on).to_pause(holding(UNIT, EXPORTER, DEV, ""), ["GPU-1"], ["g1"]) == {EXPORTER: f"run-of-{EXPORTER}"}


def test_holders_of_other_gpus_are_not(on: Host) -> None:
    assert units(on).to_pause(holding(EXPORTER), ["GPU-2"], ["g1"]) == {}


def test_who_is_declared_is_paused_where_it_is_active(on: Host) -> None:
    assert units(on, "jupyter").to_pause(holding(), ["GPU-1"], ["g1"]) == {DEV: f"run-of-{DEV}"}
    on.table[DEV] = {"ActiveState": "inactive"}
    assert units(on, "jupyter").to_pause(holding(), ["GPU-1"], ["g1"]) == {}


def test_who_is_stopped_along_comes_before_and_is_told(on: Host) -> None:
    on.table[DCGM] = {"RequiredBy": EXPORTER}
    paused = units(on).to_pause(holding(DCGM), ["GPU-1"], ["g1"])
    assert list(paused) == [EXPORTER, DCGM]


def test_who_would_be_stopped_along_and_may_not_is_a_refusal(on: Host) -> None:
    on.table[DCGM] = {"RequiredBy": EXPORTER}
    on.table[EXPORTER] = {"ConsistsOf": DEV}
    with pytest.raises(Refused, match=DEV):
        units(on).to_pause(holding(DCGM), ["GPU-1"], ["g1"])


# ---- what is changed -------------------------------------------------------------------------------------


def test_the_note_comes_before_the_stop(on: Host) -> None:
    units(on).stop(UNIT, "aa", "/s/note")
    assert on.files == {"/s/note": "vllm.service aa\n"}
    assert on.ran[-1] == ["sh", "-c", STOP, "sh", "/s/note", UNIT, "aa"]


def test_another_run_of_a_unit_is_not_stopped_and_leaves_no_note(on: Host) -> None:
    on.rc = ANOTHER
    with pytest.raises(Refused, match="another run of it by now"):
        units(on).stop(UNIT, "aa", "/s/note")
    assert on.files == {}


def test_a_stop_that_fails_keeps_its_note(on: Host) -> None:
    on.rc, on.err = 1, "Access denied"
    with pytest.raises(DrillError, match="Access denied"):
        units(on).stop(UNIT, "aa", "/s/note")
    assert on.files != {}


@pytest.fixture
def systemctl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A systemctl that writes down what it was told, and shows what its files say."""
    program = tmp_path / "systemctl"
    program.write_text(
        f'#!/bin/sh\necho "$*" >> {tmp_path}/told\ncase "$*" in\n'
        f"*InvocationID*) cat {tmp_path}/uid;;\nshow*) cat {tmp_path}/shown;;\nesac\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    (tmp_path / "told").touch()
    (tmp_path / "uid").write_text("aa\n")
    (tmp_path / "shown").write_text("ActiveState=active\n")
    return tmp_path


@pytest.mark.parametrize(("note", "uid", "rc"), [(True, "aa", 0), (False, "aa", 3), (True, "bb", 4)])
def test_only_that_run_is_stopped_and_only_while_the_note_is_there(
    systemctl: Path, note: bool, uid: str, rc: int
) -> None:
    if note:
        (systemctl / "note").touch()
    done = subprocess.run(["sh", "-c", STOP, "sh", systemctl / "note", UNIT, uid], check=False)
    told = (systemctl / "told").read_text()
    assert (done.returncode, f"--no-block stop -- {UNIT}" in told) == (rc, rc == 0)


def start(systemctl: Path, *words: str) -> int:
    return gpu_units.main(["--note", str(systemctl / "note"), "--unit", UNIT, *words])


def test_what_we_did_not_stop_is_left_alone(systemctl: Path) -> None:
    assert start(systemctl) == 0
    assert (systemctl / "told").read_text() == ""


def test_what_we_stopped_is_started_and_nothing_else_is_done(systemctl: Path) -> None:
    (systemctl / "note").touch()
    assert start(systemctl) == 0
    told = (systemctl / "told").read_text().splitlines()
    assert told == [f"--no-block start {UNIT}", f"show --property=ActiveState,Job {UNIT}"]
    assert not (systemctl / "note").exists()


def test_a_unit_that_is_still_being_stopped_is_on_its_way_up_once_its_start_is_queued(systemctl: Path) -> None:
    (systemctl / "note").touch()
    (systemctl / "shown").write_text("ActiveState=deactivating\nJob=77\n")
    assert start(systemctl) == 0
    assert not (systemctl / "note").exists()


@pytest.mark.parametrize(
    "shown", ["ActiveState=deactivating", "ActiveState=inactive\nJob=77", "ActiveState=active\nJob=77"]
)
def test_a_unit_of_which_nobody_knows_whether_it_comes_up_is_waited_for(
    systemctl: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], shown: str
) -> None:
    monkeypatch.setattr(gpu_units, "UP_TIMEOUT_S", 0.01)
    (systemctl / "note").touch()
    (systemctl / "shown").write_text(f"{shown}\n")
    assert start(systemctl) == 1
    assert "was told to start and is" in capsys.readouterr().err
    assert (systemctl / "note").exists()


def test_a_unit_that_fails_keeps_its_note_and_says_so(systemctl: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (systemctl / "note").touch()
    (systemctl / "shown").write_text("ActiveState=failed\n")
    assert start(systemctl) == 1
    assert f"unit {UNIT}: was told to start and is failed" in capsys.readouterr().err
    assert (systemctl / "note").exists()


@pytest.mark.parametrize(
    ("notes", "words"),
    [
        ({"human": "a person has to look at it: x"}, "a person has to look at it"),
        ({"begun": "r", "pid": "1 2 3 b"}, "ended without a status"),
        ({"begun": "r", "pid": "1 2 3 b", "rc": "255 9"}, "status 255, not judged yet"),
    ],
)
def test_a_gpu_that_is_for_a_person_to_look_at_keeps_the_unit_stopped(
    systemctl: Path, capsys: pytest.CaptureFixture[str], notes: dict[str, str], words: str
) -> None:
    (systemctl / "note").touch()
    for name, text in notes.items():
        (systemctl / f"base.{name}").write_text(text)
    assert start(systemctl, "--unless", str(systemctl / "other"), str(systemctl / "base")) == 1
    said = capsys.readouterr().err
    assert "stays stopped" in said
    assert words in said
    assert (systemctl / "told").read_text() == ""


@pytest.mark.parametrize("notes", [{"begun": "r"}, {"begun": "r", "pid": "1 2 3 b", "rc": "0 9"},
                                   {"begun": "r", "pid": "1 2 3 b", "rc": "255 9", "seen": ""}])  # fmt: skip
def test_a_gpu_of_which_nothing_is_open_does_not(systemctl: Path, notes: dict[str, str]) -> None:
    (systemctl / "note").touch()
    for name, text in notes.items():
        (systemctl / f"base.{name}").write_text(text)
    assert start(systemctl, "--unless", str(systemctl / "base")) == 0


# ---- whose process it is, and the gate -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("groups", "unit"),
    [
        ("0::/system.slice/vllm.service\n", UNIT),
        ("0::/system.slice/system-vllm.slice/vllm@1.service/payload\n", "vllm@1.service"),
        ("12:cpu:/x.service\n1:name=systemd:/system.slice/vllm.service\n0::/\n", UNIT),
        ("0::/user.slice/user-1000.slice/user@1000.service/app.slice/notebook.service\n", ""),
        ("0::/user.slice/user-1000.slice/session-4.scope\n", ""),
        ("0::/system.slice/docker-0123.scope\n", ""),
        ("0::/kubepods.slice/kubepods-pod1.slice/cri-containerd-1.scope\n", ""),
    ],
)
def test_a_process_is_of_the_unit_of_its_control_group(groups: str, unit: str) -> None:
    assert gpunodes.unit_of(groups) == unit


FLOCK = "{{ path=/usr/bin/flock ; argv[]={} ; ignore_errors=yes ; start_time=[n/a] }}"


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("/usr/bin/flock --shared /run/drill-gate/vllm.service /bin/true", "/run/drill-gate/vllm.service"),
        ("/usr/bin/flock -s /run/g /bin/true", "/run/g"),
        ("/usr/bin/flock /run/g /bin/true", None),  # exclusive: two units would wait for each other
        ("/usr/bin/flock --shared g /bin/true", None),
        ("/usr/bin/flock --shared /run/g", None),
        ("/bin/mkdir -p /run/g", None),
    ],
)
def test_the_gate_is_what_a_unit_waits_for_before_it_starts(words: str, found: str | None) -> None:
    assert gate.gate_of(FLOCK.format(words)) == found


def test_the_drop_in_is_one_that_is_recognised_and_keeps_nobody_from_starting() -> None:
    commands = [line for line in gate.DROP_IN.splitlines() if line.startswith("ExecStartPre=")]
    assert all(line.startswith("ExecStartPre=-+/") for line in commands)
    shown = " ".join(FLOCK.format(line.partition("=-+")[2].replace("%n", UNIT)) for line in commands)
    assert gate.gate_of(shown) == f"{gate.FOLDER}/{UNIT}"
    assert gate.DROP_IN.splitlines() == list(gate.how_to(UNIT)[1:-2])


def test_the_lines_are_for_the_very_unit_whatever_a_shell_makes_of_its_name() -> None:
    unit = r"vllm\x2da.service"
    words = shlex.split(gate.how_to(unit)[0].partition(" <<")[0].replace(";", " ;"))
    folder = f"/etc/systemd/system/{unit}.d"
    assert words == ["mkdir", "-p", folder, ";", "cat", ">", f"{folder}/10-drill-gate.conf"]
