"""The units of the test hosts, as a deployment would have them."""

from __future__ import annotations

import shlex
import sys

from tests.hosts import layout
from tests.hosts.layout import Machine

GPU_UNIT = "gpu-stand-in.service"
#: The one-time drop-in that makes a start of the unit wait while somebody holds the gate.
GATE_DROP_IN = f"[Service]\nExecStartPre=/usr/bin/flock --shared {layout.GATE} /bin/true\n"


def units(machine: Machine) -> dict[str, str]:
    """Return file → text below /etc/systemd/system."""
    return _host(machine)


def wanted(machine: Machine) -> list[str]:
    """Return the units that start at boot."""
    return ["ssh.service", *(name for name in units(machine) if "/" not in name)]


def _host(machine: Machine) -> dict[str, str]:
    engine = python(
        "drills.lab.engine.server",
        "--host=0.0.0.0",
        f"--port={layout.ENGINE_PORT}",
        f"--model={layout.MODEL}",
        f"--name={machine.name}",
        f"--startup-s={layout.STARTUP_S:g}",
        "--gpu-device=/dev/nvidia0",
        f"--seed={machine.number}",
    )
    return {
        GPU_UNIT: service("GPUs", python("tests.hosts.gpus", str(machine.number)), kind="oneshot"),
        layout.UNIT: service("vLLM", engine, after=GPU_UNIT),
        f"{layout.UNIT}.d/10-drill-gate.conf": GATE_DROP_IN,
    }


def python(module: str, *words: str) -> str:
    """Return the command line of a module under this Python."""
    return shlex.join([sys.executable, "-m", module, *words])


def service(what: str, command: str, kind: str = "exec", after: str = "network.target") -> str:
    """Return the text of a unit; what is no one-time job is started again, whatever its end."""
    again = "RemainAfterExit=yes" if kind == "oneshot" else "Restart=always\nRestartSec=1"
    return f"""[Unit]
Description={what}
After={after}
StartLimitIntervalSec=0

[Service]
Type={kind}
ExecStart={command.replace("%", "%%")}
{again}
WorkingDirectory=/
Environment=PYTHONPATH={layout.TREE}
StandardOutput=append:/var/log/%p.log
StandardError=append:/var/log/%p.log

[Install]
WantedBy=multi-user.target
"""
