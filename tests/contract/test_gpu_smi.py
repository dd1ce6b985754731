"""The nvidia-smi stand-in as a real process: what it tells, what it changes, every way it refuses a reset."""

from __future__ import annotations

import csv
import io
import signal
import subprocess
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path

import pytest

from drills.faults.reset_outcome import classify
from drills.lab.gpu import state
from tests.contract.gpu_bench import Bench, bench, until


@pytest.fixture
def on(tmp_path: Path) -> Iterator[Bench]:
    with bench(tmp_path) as made:
        yield made


def outcome(on: Bench, index: int = 0) -> tuple[str, int, str]:
    gpu = on.gpus[index]
    done = on.nvidia("--gpu-reset", "-i", gpu["uuid"])
    return classify(done.returncode, done.stdout, gpu["pci"]), done.returncode, done.stdout


def uptime(on: Bench, index: int = 0) -> int:
    done = on.nvidia("--query-gpu=lab.uptime", "--format=csv,noheader,nounits", "-i", on.gpus[index]["uuid"])
    return int(done.stdout)


# ---- what a reset does -----------------------------------------------------------------------------------


def test_a_free_gpu_is_reset_and_only_that_one(on: Bench) -> None:
    on.set(0, power_limit_w=500.0, locked_clocks_mhz=[300, 900], ecc_volatile_corrected=3)
    before = uptime(on, 1)
    found, rc, text = outcome(on)
    assert (found, rc) == ("ok", 0)
    assert text == f"GPU {on.gpus[0]['pci']} was successfully reset.\nAll done.\n"
    assert uptime(on) < 30
    assert uptime(on, 1) >= before
    gpu = on.gpu(0)
    assert (gpu["power_limit_w"], gpu["locked_clocks_mhz"], gpu["ecc_volatile_corrected"]) == (700.0, None, 0)
    assert gpu["boot_id"] == state.boot_id()


def test_without_a_choice_every_gpu_is_reset(on: Bench) -> None:
    assert on.nvidia("-r").stdout.count("successfully reset") == 3
    assert max(uptime(on, i) for i in range(3)) < 30


def test_killed_holders_leave_an_xid_and_a_pending_action_goes_back(on: Bench) -> None:
    holder = on.hold(0)
    on.nvidia("--query-compute-apps=pid", "--format=csv")  # somebody saw it
    on.set(0, recovery_action=1)
    holder.kill()
    holder.wait()
    assert outcome(on)[0] == "ok"
    lines = Path(state.read(on.state_file)["kmsg"]).read_text().splitlines()
    assert f"NVRM: Xid (PCI:0000:1a:00): 45, pid={holder.pid}, name=stranger" in lines[0]
    assert "154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)" in lines[1]
    assert on.gpu(0)["recovery_action"] == 0


# ---- how it refuses --------------------------------------------------------------------------------------


def test_a_live_holder_of_the_device_file_is_in_the_way(on: Bench) -> None:
    holder = on.hold(0)
    found, rc, text = outcome(on)
    assert (found, rc) == ("in_use", 255)
    assert "The following GPUs could not be reset:\n  GPU 00000000:1A:00.0: In use by another client" in text
    assert "1 device is currently being used by one or more other processes" in text
    assert holder.poll() is None  # a refused reset does nothing to the holder
    assert uptime(on) > 80000
    holder.kill()
    holder.wait()
    assert outcome(on)[0] == "ok"


def test_persistence_without_its_daemon_is_in_the_way(on: Bench) -> None:
    on.set_machine(persistence_socket=False)
    assert outcome(on)[0] == "in_use"
    assert "Disabled persistence mode" in on.nvidia("-pm", "0", "-i", on.gpus[0]["uuid"]).stdout
    assert outcome(on)[0] == "ok"


def test_not_root(on: Bench) -> None:
    on.set_machine(root=False)
    assert outcome(on)[:2] == ("no_permission", 4)


def test_lost(on: Bench) -> None:
    on.set(0, lost=True)
    found, rc, text = outcome(on)
    assert (found, rc) == ("lost", 15)
    assert "Unable to determine the device handle for GPU 0000:1A:00.0: GPU is lost" in text


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("in_use", "in_use"),
        ("in_use_old", "in_use_old"),
        ("unsupported_a", "unsupported_a"),
        ("unsupported_b", "unsupported_b"),
        ("blocked", "blocked"),
        ("lost", "lost"),
        ("no_permission", "no_permission"),
        ("garbled", "unknown"),
    ],
)
def test_scripted_refusals_leave_the_gpu_alone(on: Bench, mode: str, expected: str) -> None:
    state.script_reset(on.state_file, mode)
    found, rc, _ = outcome(on)
    assert found == expected
    assert rc != 0
    assert uptime(on) > 80000
    state.script_reset(on.state_file, None)
    assert outcome(on)[0] == "ok"


def test_two_gpus_of_which_one_is_held_are_a_partial_reset(on: Bench) -> None:
    on.hold(1)
    done = on.nvidia("--gpu-reset", "-i", f"{on.gpus[0]['uuid']},{on.gpus[1]['uuid']}")
    assert classify(done.returncode, done.stdout, on.gpus[0]["pci"]) == "partial"
    assert uptime(on, 0) < 30 < uptime(on, 1)


def test_a_hang_ignores_term(on: Bench) -> None:
    state.script_reset(on.state_file, "hang")
    done = subprocess.run(
        ["timeout", "-k", "1", "1", on.smi, "--gpu-reset", "-i", on.gpus[0]["uuid"]], timeout=30, check=False
    )
    assert done.returncode in (137, -signal.SIGKILL)
    assert classify(137, "", on.gpus[0]["pci"]) == "timeout"


def test_success_without_effect_says_success(on: Bench) -> None:
    state.script_reset(on.state_file, "no_effect")
    assert outcome(on)[0] == "ok"
    assert uptime(on) > 80000


def test_success_may_come_back_asking_for_more(on: Bench) -> None:
    state.script_reset(on.state_file, "needs_recovery")
    assert outcome(on)[0] == "ok"
    done = on.nvidia("--query-gpu=gpu_recovery_action", "--format=csv,noheader", "-i", on.gpus[0]["uuid"])
    assert done.stdout.strip() == "Reset"


def test_success_may_lose_the_gpu(on: Bench) -> None:
    state.script_reset(on.state_file, "vanishes")
    assert outcome(on)[0] == "ok"
    assert on.nvidia("-L").stdout.count("UUID") == 2


def test_success_may_be_terse(on: Bench) -> None:
    state.script_reset(on.state_file, "terse")
    found, _, text = outcome(on)
    assert (found, "All done." in text) == ("ok", False)


def test_a_second_reset_meanwhile_is_refused(on: Bench) -> None:
    on.set_machine(reset_duration_s=3)
    first = subprocess.Popen([on.smi, "-r", "-i", "0"], stdout=subprocess.PIPE, text=True)
    until(lambda: on.gpu(0)["resetting"] is not None, "the first reset begins")
    assert outcome(on)[0] == "in_use"
    assert "successfully" in first.communicate(timeout=30)[0]


def test_a_mode_that_does_not_exist_is_an_error(on: Bench) -> None:
    with pytest.raises(ValueError, match="no such way"):
        state.script_reset(on.state_file, "explode")


# ---- what it tells and changes ---------------------------------------------------------------------------


def test_a_gpu_can_be_named_in_every_documented_way(on: Bench) -> None:
    gpu = on.gpu(1)
    for name in (gpu["uuid"], "1", gpu["serial"], gpu["pci"], gpu["pci"][4:], gpu["pci"][9:].lower()):
        done = on.nvidia("--query-gpu=uuid", "--format=csv,noheader", "-i", name)
        assert done.stdout.strip() == gpu["uuid"], name
    assert on.nvidia("-r", "-i", "GPU-not-there").returncode == 6


def test_csv_has_units_headers_and_blanks(on: Bench) -> None:
    on.set(0, recovery_action=None)
    fields = "index,power.limit,memory.total,gpu_recovery_action"
    rows = list(csv.reader(io.StringIO(on.nvidia(f"--query-gpu={fields}", "--format=csv").stdout)))
    assert rows[0] == ["index", " power.limit [W]", " memory.total [MiB]", " gpu_recovery_action"]
    assert rows[1] == ["0", " 700.00 W", " 81559 MiB", " [N/A]"]
    done = on.nvidia("--query-gpu=nonsense", "--format=csv")
    assert (done.returncode, done.stdout) == (2, 'Field "nonsense" is not a valid field to query.\n')


def test_xml_tells_the_same_as_csv(on: Bench) -> None:
    holder = on.hold(1)
    root = ET.fromstring(on.nvidia("-q", "-x").stdout)
    assert root.findtext("attached_gpus") == "3"
    nodes = {node.findtext("uuid"): node for node in root.findall("gpu")}
    node = nodes[on.gpus[1]["uuid"]]
    assert node.findtext("gpu_recovery_action") == "None"
    assert node.findtext("processes/process_info/pid") == str(holder.pid)
    assert nodes[on.gpus[0]["uuid"]].find("processes/process_info") is None
    assert int((node.findtext("fb_memory_usage/used") or "").split()[0]) > 70000


def test_holders_show_as_compute_apps(on: Bench) -> None:
    holder = on.hold(2)
    done = on.nvidia("--query-compute-apps=gpu_uuid,pid", "--format=csv,noheader")
    assert done.stdout.strip() == f"{on.gpus[2]['uuid']}, {holder.pid}"


def test_a_lost_gpu_is_named_and_the_others_still_told(on: Bench) -> None:
    on.set(1, lost=True)
    done = on.nvidia("--query-gpu=uuid", "--format=csv,noheader")
    assert done.returncode == 15
    assert done.stdout.splitlines()[:2] == [on.gpus[0]["uuid"], on.gpus[2]["uuid"]]
    assert "GPU is lost" in done.stdout


def test_power_limit_and_clock_lock_lower_the_clock(on: Bench) -> None:
    uuid = on.gpus[0]["uuid"]
    assert "was set to 350.00 W from 700.00 W" in on.nvidia("-pl", "350", "-i", uuid).stdout
    told = on.nvidia("--query-gpu=clocks.sm,clocks_event_reasons.active", "--format=csv,noheader,nounits", "-i", uuid)
    assert told.stdout.strip() == "990, 0x0000000000000005"  # SwPowerCap, no thermal bit
    on.nvidia("-lgc", "300,600", "-i", uuid)
    assert state.sm_clock_mhz(on.gpu(0)) == 600
    on.nvidia("-rgc", "-i", uuid)
    assert state.sm_clock_mhz(on.gpu(0)) == 990
    refused = on.nvidia("-pl", "5", "-i", uuid)
    assert (refused.returncode, on.gpu(0)["power_limit_w"]) == (2, 350.0)


def test_clocks_it_can_be_locked_to(on: Bench) -> None:
    uuid = on.gpus[0]["uuid"]
    ask = ("--query-supported-clocks=gr", "--format=csv,noheader,nounits", "-i", uuid)
    clocks = [int(line) for line in on.nvidia(*ask).stdout.split()]
    assert (clocks[0], clocks[-1], clocks[0] - clocks[1]) == (1980, 210, 15)
    on.set(0, clock_control=False)
    assert on.nvidia(*ask).stdout.split() == ["[N/A]"]
    done = on.nvidia("-lgc", "900,900", "-i", uuid)
    assert (done.returncode, "is not supported" in done.stdout) == (0, True)  # which is why a status proves nothing
    assert state.sm_clock_mhz(on.gpu(0)) == 1980


def test_who_holds_a_gpu_makes_it_work(on: Bench) -> None:
    ask = ("--query-gpu=clocks_event_reasons.active", "--format=csv,noheader", "-i", on.gpus[0]["uuid"])
    assert int(on.nvidia(*ask).stdout, 16) == 0x1
    on.hold(0)
    assert int(on.nvidia(*ask).stdout, 16) == 0x0


def test_settings_need_root(on: Bench) -> None:
    on.set_machine(root=False)
    for change in (("-pl", "350"), ("-pm", "0"), ("-lgc", "300,600"), ("-rgc",)):
        assert on.nvidia(*change, "-i", "0").returncode == 4
    assert (on.gpu(0)["power_limit_w"], on.gpu(0)["persistence"]) == (700.0, True)


def test_updates_from_many_processes_are_not_lost(on: Bench) -> None:
    changes = [subprocess.Popen([on.smi, "-pl", str(300 + i), "-i", str(i)]) for i in range(3)]
    assert [p.wait(30) for p in changes] == [0, 0, 0]
    assert [on.gpu(i)["power_limit_w"] for i in range(3)] == [300.0, 301.0, 302.0]
