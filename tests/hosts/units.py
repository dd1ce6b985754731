"""The units of the test hosts and of the router's machine, as a deployment would have them."""

from __future__ import annotations

import shlex

from drills.lab import router
from drills.lab.config import SLA, SMALL_ENGINE
from tests.hosts import layout
from tests.hosts.layout import Machine
from tests.hosts.unittext import python, service

GPU_UNIT = "gpu-stand-in.service"
#: The one-time drop-in that makes a start of the unit wait while somebody holds the gate.
GATE_DROP_IN = f"[Service]\nExecStartPre=/usr/bin/flock --shared {layout.GATE} /bin/true\n"
LOOPBACK = "127.0.0.1"


def units(machine: Machine) -> dict[str, str]:
    """Return file → text below /etc/systemd/system."""
    return _router() if machine.is_router else _host(machine)


def _host(machine: Machine) -> dict[str, str]:
    engine = python(
        "drills.lab.engine.server",
        "--host=0.0.0.0",
        f"--port={layout.ENGINE_PORT}",
        f"--model={layout.MODEL}",
        f"--name={machine.name}",
        f"--startup-s={layout.STARTUP_S:g}",
        "--gpu-device=/dev/nvidia0",
        f"--gpu-state={layout.GPU_STATE}",
        f"--seed={machine.number}",
    )
    exporter = python(
        "drills.lab.gpu.exporter", "--host=0.0.0.0", f"--port={layout.EXPORTER_PORT}", f"--state={layout.GPU_STATE}"
    )
    # The real one holds the GPUs while it runs, and a GPU that is held cannot be reset.
    holds = " ".join(f"{9 + index}</dev/nvidia{index}" for index in range(layout.GPUS))
    telemetry = ("/bin/bash", "-c", f"exec {holds} && exec {shlex.join(exporter)}")
    return {
        GPU_UNIT: service("GPUs", python("tests.hosts.gpus", str(machine.number)), kind="oneshot"),
        layout.UNIT: service("vLLM", engine, after=GPU_UNIT),
        f"{layout.UNIT}.d/10-drill-gate.conf": GATE_DROP_IN,
        layout.TELEMETRY: service("GPU metrics", telemetry, after=GPU_UNIT),
    }


def _router() -> dict[str, str]:
    engines = [f"http://{m.service}:{layout.ENGINE_PORT}" for m in layout.ALL if not m.is_router]
    small = python(
        "drills.lab.engine.server",
        f"--host={LOOPBACK}",
        f"--port={layout.SMALL_PORT}",
        f"--model={layout.FALLBACK_MODEL}",
        "--name=small-0",
        "--startup-s=1",
        *SMALL_ENGINE,
    )
    edge = python(
        "drills.lab.edge",
        "--host=0.0.0.0",
        f"--port={layout.EDGE_PORT}",
        f"--router=http://{LOOPBACK}:{layout.ROUTER_PORT}",
        f"--model={layout.MODEL}",
        f"--fallback=http://{LOOPBACK}:{layout.SMALL_PORT}",
        f"--fallback-model={layout.FALLBACK_MODEL}",
        f"--sla-ttft-s={SLA.ttft.value_s}",
    )
    argv = router.argv("0.0.0.0", layout.ROUTER_PORT, layout.ROUTER_METRICS_PORT, engines)
    return {
        "vllm-router.service": service("vllm-router", argv),
        "small.service": service("Smaller model", small),
        "edge.service": service("Application", edge),
    }
