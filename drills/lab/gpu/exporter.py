"""The dcgm-exporter stand-in: `python -m drills.lab.gpu.exporter --port 18004 --state FILE` serves `/metrics`.

Names and labels are dcgm-exporter's, and so are its traps: `DCGM_FI_DEV_XID_ERRORS` is missing before the first Xid,
then holds the last one until this process ends; a lost GPU is absent, not a bad value. While the state
says `exporter_paused` every scrape fails, as when the exporter was stopped for a reset.
"""

from __future__ import annotations

import argparse
import socket
import sys
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from drills.lab.gpu import state
from drills.lab.gpu.state import Json

#: name -> (type, help, value of (gpu, memory used in MiB); None: not served for that GPU)
METRICS: dict[str, tuple[str, str, Callable[[Json, int], float | None]]] = {
    "DCGM_FI_DEV_SM_CLOCK": ("gauge", "SM clock frequency (in MHz).", lambda g, _: state.sm_clock_mhz(g)),
    "DCGM_FI_DEV_MEM_CLOCK": ("gauge", "Memory clock frequency (in MHz).", lambda g, _: g["memory_clock_mhz"]),
    "DCGM_FI_DEV_MEMORY_TEMP": ("gauge", "Memory temperature (in C).", lambda g, _: g["memory_temperature_c"]),
    "DCGM_FI_DEV_GPU_TEMP": ("gauge", "GPU temperature (in C).", lambda g, _: g["temperature_c"]),
    "DCGM_FI_DEV_POWER_USAGE": ("gauge", "Power draw (in W).", lambda g, _: g["power_w"]),
    "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": (
        "counter",
        "Total energy consumption since boot (in mJ).",
        lambda g, _: g["power_w"] * state.uptime_s(g) * 1000,
    ),
    "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": ("counter", "Total number of PCIe retries.", lambda _g, _: 0),
    "DCGM_FI_DEV_GPU_UTIL": ("gauge", "GPU utilization (in %).", lambda g, _: g["utilisation"]),
    "DCGM_FI_DEV_MEM_COPY_UTIL": ("gauge", "Memory utilization (in %).", lambda g, _: g["memory_utilisation"]),
    "DCGM_FI_DEV_ENC_UTIL": ("gauge", "Encoder utilization (in %).", lambda _g, _: 0),
    "DCGM_FI_DEV_DEC_UTIL": ("gauge", "Decoder utilization (in %).", lambda _g, _: 0),
    "DCGM_FI_DEV_FB_FREE": (
        "gauge",
        "Framebuffer memory free (in MiB).",
        lambda g, used: g["memory_total_mib"] - g["memory_reserved_mib"] - used,
    ),
    "DCGM_FI_DEV_FB_USED": ("gauge", "Framebuffer memory used (in MiB).", lambda _g, used: used),
    "DCGM_FI_DEV_FB_RESERVED": (
        "gauge",
        "Framebuffer memory reserved (in MiB).",
        lambda g, _: g["memory_reserved_mib"],
    ),
    "DCGM_FI_DEV_FB_TOTAL": ("gauge", "Framebuffer memory total (in MiB).", lambda g, _: g["memory_total_mib"]),
    "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL": ("counter", "Total number of NVLink bandwidth counters.", lambda _g, _: 0),
    "DCGM_FI_DEV_VGPU_LICENSE_STATUS": ("gauge", "vGPU License status", lambda _g, _: 0),
    "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS": (
        "counter",
        "Number of remapped rows for uncorrectable errors",
        lambda g, _: g["remapped_uncorrectable"],
    ),
    "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS": (
        "counter",
        "Number of remapped rows for correctable errors",
        lambda g, _: g["remapped_correctable"],
    ),
    "DCGM_FI_DEV_ROW_REMAP_FAILURE": (
        "gauge",
        "Whether remapping of rows has failed",
        lambda g, _: float(g["remapped_failure"]),
    ),
    "DCGM_FI_DEV_CLOCKS_EVENT_REASONS": (
        "gauge",
        "Clock event reasons (bitmask).",
        lambda g, used: state.event_reasons(g, held=used > g["memory_idle_mib"]),
    ),
    "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL": (
        "counter",
        "Total number of single-bit volatile ECC errors.",
        lambda g, _: g["ecc_volatile_corrected"],
    ),
    "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": (
        "counter",
        "Total number of double-bit volatile ECC errors.",
        lambda g, _: g["ecc_volatile_uncorrected"],
    ),
    "DCGM_FI_DEV_GPU_RECOVERY_ACTION": ("gauge", "GPU recovery action.", lambda g, _: g["recovery_action"]),
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE": (
        "gauge",
        "Ratio of time the graphics engine is active.",
        lambda g, _: g["utilisation"] / 100,
    ),
    "DCGM_FI_PROF_DRAM_ACTIVE": (
        "gauge",
        "Ratio of cycles the device memory interface is active.",
        lambda g, _: g["memory_utilisation"] / 100,
    ),
}
XID = "DCGM_FI_DEV_XID_ERRORS"


class Exporter:
    """Renders the metrics; remembers the last Xid of each GPU since it began."""

    def __init__(self, state_file: Path) -> None:
        self.state_file = state_file
        self.began_xid = int(state.read(state_file)["xid_count"])
        self.last_xid: dict[str, int] = {}

    def text(self) -> str | None:
        """Return the exposition, None while paused."""
        found = state.read(self.state_file)
        if found["exporter_paused"]:
            return None
        gpus = [gpu for gpu in found["gpus"] if not gpu["lost"]]
        held_by = state.holding(gpus)
        state.remember(self.state_file, found, held_by)
        lines: list[str] = []
        labels = {gpu["uuid"]: _labels(gpu, found["driver_version"]) for gpu in gpus}
        for name, (kind, words, value) in METRICS.items():
            values = [(gpu, value(gpu, state.memory_used_mib(gpu, held_by[gpu["uuid"]]))) for gpu in gpus]
            lines += _series(name, kind, words, [(labels[gpu["uuid"]], v) for gpu, v in values if v is not None])
        xids = [(labels[gpu["uuid"]], float(xid)) for gpu in gpus if (xid := self._xid(gpu)) is not None]
        lines += _series(XID, "gauge", "Value of the last XID error encountered.", xids)
        return "\n".join(lines) + "\n"

    def _xid(self, gpu: Json) -> int | None:
        for entry in gpu["xids"]:
            if entry["n"] > self.began_xid:
                self.last_xid[gpu["uuid"]] = entry["xid"]
        return self.last_xid.get(gpu["uuid"])


def _labels(gpu: Json, driver_version: str) -> str:
    pairs = {
        "gpu": gpu["index"],
        "UUID": gpu["uuid"],
        "pci_bus_id": gpu["pci"],
        "device": f"nvidia{gpu['minor']}",
        "modelName": gpu["name"],
        "Hostname": socket.gethostname(),
        "DCGM_FI_DRIVER_VERSION": driver_version,
    }
    return ",".join(f'{name}="{value}"' for name, value in pairs.items())


def _series(name: str, kind: str, words: str, values: Sequence[tuple[str, float]]) -> list[str]:
    if not values:
        return []
    return [
        f"# HELP {name} {words}",
        f"# TYPE {name} {kind}",
        *(f"{name}{{{labels}}} {v:.15g}" for labels, v in values),
    ]


def _handler(exporter: Exporter) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = 10

        def do_GET(self) -> None:
            known: dict[str, Callable[[], str | None]] = {"/metrics": exporter.text, "/health": lambda: "ok\n"}
            ask = known.get(self.path.split("?")[0])
            text = ask() if ask else "not found\n"
            status = 404 if ask is None else 503 if text is None else 200
            body = (text or "paused\n").encode()
            self.send_response(status)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Keep quiet: one line a second would bury everything else."""

    return Handler


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until ended by a signal."""
    parser = argparse.ArgumentParser(prog="drills.lab.gpu.exporter", description="dcgm-exporter stand-in of the lab")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
    parser.add_argument("--port", type=int, required=True, help="0 takes a free one and prints it")
    parser.add_argument("--state", type=Path, required=True)
    asked = parser.parse_args(argv)
    server = ThreadingHTTPServer((asked.host, asked.port), _handler(Exporter(asked.state)))
    server.daemon_threads = True
    print(f"listening on http://{asked.host}:{server.server_port}", flush=True)
    server.serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main())
