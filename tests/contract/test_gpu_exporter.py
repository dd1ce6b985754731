"""The dcgm-exporter stand-in as a real process, with its model's traps."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import urllib3

from drills.lab.gpu import state
from tests.contract.gpu_bench import Bench, bench

HTTP = urllib3.PoolManager(retries=False, timeout=20)
SAMPLE = re.compile(r"(\w+)\{(.*)\} (\S+)")

DEFAULT_NAMES = [  # dcgm-exporter serves these as it comes
    "SM_CLOCK",
    "MEM_CLOCK",
    "MEMORY_TEMP",
    "GPU_TEMP",
    "POWER_USAGE",
    "TOTAL_ENERGY_CONSUMPTION",
    "PCIE_REPLAY_COUNTER",
    "GPU_UTIL",
    "MEM_COPY_UTIL",
    "ENC_UTIL",
    "DEC_UTIL",
    "FB_FREE",
    "FB_USED",
    "FB_RESERVED",
    "NVLINK_BANDWIDTH_TOTAL",
    "VGPU_LICENSE_STATUS",
    "UNCORRECTABLE_REMAPPED_ROWS",
    "CORRECTABLE_REMAPPED_ROWS",
    "ROW_REMAP_FAILURE",
]


class Served:
    """A running exporter and the bench it tells of."""

    def __init__(self, on: Bench) -> None:
        self.on = on
        process = on.popen([sys.executable, "-m", "drills.lab.gpu.exporter", "--port=0", f"--state={on.state_file}"])
        assert process.stdout is not None
        self.url = process.stdout.readline().split()[-1]

    def status(self) -> int:
        return HTTP.request("GET", f"{self.url}/metrics").status

    def values(self, name: str) -> dict[str, float]:
        """Return the samples of a metric by UUID."""
        answer = HTTP.request("GET", f"{self.url}/metrics")
        assert answer.status == 200
        found = {}
        for line in answer.data.decode().splitlines():
            if (m := SAMPLE.fullmatch(line)) and m[1] == name:
                uuid = re.search(r'UUID="([^"]+)"', m[2])
                assert uuid is not None
                found[uuid[1]] = float(m[3])
        return found


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with bench(tmp_path) as on:
        yield Served(on)


def test_default_names_and_labels_for_every_gpu(served: Served) -> None:
    uuids = {g["uuid"] for g in served.on.gpus}
    for name in DEFAULT_NAMES:
        assert served.values(f"DCGM_FI_DEV_{name}").keys() == uuids, name
    text = HTTP.request("GET", f"{served.url}/metrics").data.decode()
    for label in ("gpu", "UUID", "pci_bus_id", "device", "modelName", "Hostname", "DCGM_FI_DRIVER_VERSION"):
        assert re.search(rf'DCGM_FI_DEV_GPU_TEMP\{{.*\b{label}="[^"]+"', text), label
    assert "# TYPE DCGM_FI_DEV_GPU_TEMP gauge" in text


def test_a_lost_gpu_is_absent_not_a_bad_value(served: Served) -> None:
    served.on.set(1, lost=True)
    lost = served.on.gpus[1]["uuid"]
    assert len(served.values("DCGM_FI_DEV_GPU_TEMP")) == 2
    assert lost not in HTTP.request("GET", f"{served.url}/metrics").data.decode()
    served.on.set(1, lost=False)
    assert lost in served.values("DCGM_FI_DEV_GPU_TEMP")


def test_the_last_xid_is_missing_at_first_and_stays(served: Served) -> None:
    uuid = served.on.gpus[0]["uuid"]
    assert served.values("DCGM_FI_DEV_XID_ERRORS") == {}
    state.inject_xid(served.on.state_file, uuid, 43)
    state.inject_xid(served.on.state_file, uuid, 31)
    assert served.values("DCGM_FI_DEV_XID_ERRORS") == {uuid: 31}
    assert served.on.nvidia("-r", "-i", uuid).returncode == 0
    assert served.values("DCGM_FI_DEV_XID_ERRORS") == {uuid: 31}
    assert Served(served.on).values("DCGM_FI_DEV_XID_ERRORS") == {}  # a restarted exporter has forgotten


def test_paused_every_scrape_fails(served: Served) -> None:
    served.on.set_machine(exporter_paused=True)
    assert served.status() == 503
    served.on.set_machine(exporter_paused=False)
    assert served.status() == 200


def test_memory_follows_the_holders(served: Served) -> None:
    uuid = served.on.gpus[2]["uuid"]
    assert served.values("DCGM_FI_DEV_FB_USED")[uuid] < 100
    holder = served.on.hold(2)
    assert served.values("DCGM_FI_DEV_FB_USED")[uuid] > 70000
    assert served.values("DCGM_FI_DEV_FB_FREE")[uuid] < 10000
    holder.kill()
    holder.wait()
    assert served.values("DCGM_FI_DEV_FB_USED")[uuid] < 100


def test_a_recovery_action_is_told_and_unknown_is_missing(served: Served) -> None:
    uuid = served.on.gpus[0]["uuid"]
    served.on.set(0, recovery_action=2)
    assert served.values("DCGM_FI_DEV_GPU_RECOVERY_ACTION")[uuid] == 2
    served.on.set(0, recovery_action=None)
    assert uuid not in served.values("DCGM_FI_DEV_GPU_RECOVERY_ACTION")
