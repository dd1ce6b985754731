"""The GPUs of a node as its kernel and nvidia-smi know them: `python -m drills.access.gpunodes --smi COMMAND...`.

    {"gpus": {UUID: {"device", "architecture", "virtualization"}},
     "holders": [{"pid", "start", "title", "device", "state", "ppid", "parents", "gpu": UUID, "pod": UID or "",
                  "unit": service of systemd or ""}],
     "nvswitch": bool, "fabric_manager": bool, "blind": processes that could not be looked into, "errors": [...]}

A holder is a process that has the device file open; its pod, or its unit, is that of its control group. It needs the
node's process ids (`hostPID`); device files are looked up as the node's first process sees them. Standard library only.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

from drills.access import holders

Json = dict[str, Any]
NODE_ROOT = "/proc/1/root"
TIMEOUT_S = 40.0
COMM_LENGTH = 15  # of a name as the kernel keeps it
_UNIT = re.compile(r"(?:/[^/]+\.slice)*/([^/]+\.service)(?:/|$)")
#: systemd's names have underscores where the UID has dashes.
_POD = re.compile(r"pod([0-9a-f]{8}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{12})(?![0-9a-f])")


def main(argv: list[str] | None = None) -> int:
    """Print what is known; status 0 even when that is little."""
    parser = argparse.ArgumentParser(description="the GPUs of this node and who holds them, as JSON")
    parser.add_argument("--smi", nargs=argparse.REMAINDER, required=True)
    print(json.dumps(look(parser.parse_args(argv).smi)))
    return 0


def look(smi: list[str]) -> Json:
    """Return what is known of the node's GPUs."""
    answer: Json = {"gpus": {}, "holders": [], "blind": 0, "errors": []}
    answer["nvswitch"] = any(Path(f"{NODE_ROOT}/dev").glob("nvidia-nvswitch[0-9]*"))
    answer["fabric_manager"] = _runs("nv-fabricmanager")
    try:
        done = subprocess.run(
            [*smi, "-q", "-x"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TIMEOUT_S,
            check=False,
        )
        answer["gpus"] = parse(done.stdout)
    except (OSError, subprocess.TimeoutExpired) as error:
        answer["errors"].append(f"nvidia-smi -q -x: {type(error).__name__}")
    except ET.ParseError:
        answer["errors"].append(f"nvidia-smi -q -x: status {done.returncode}: {(done.stdout + done.stderr)[:200]}")
    gpu_of = {f"{NODE_ROOT}{gpu['device']}": uuid for uuid, gpu in answer["gpus"].items()}
    found, answer["blind"] = holders.find(gpu_of)
    for holder in found:
        groups = _groups(holder["pid"])
        gpu = gpu_of[holder["device"]]
        whose = {"device": answer["gpus"][gpu]["device"], "pod": pod_of(groups), "unit": unit_of(groups)}
        answer["holders"].append({**holder, "gpu": gpu, **whose})
    return answer


def parse(text: str) -> dict[str, Json]:
    """Return the GPUs of an answer of `nvidia-smi -q -x`, by UUID. Raises ParseError."""
    found: dict[str, Json] = {}
    for gpu in ET.fromstring(text[text.index("<nvidia_smi_log") :] if "<nvidia_smi_log" in text else text):  # noqa: S314 - nvidia-smi's own
        uuid, minor = gpu.findtext("uuid"), gpu.findtext("minor_number")
        if gpu.tag != "gpu" or not uuid or not minor:
            continue
        found[uuid.strip()] = {
            "device": (gpu.findtext("lab_device") or f"/dev/nvidia{minor.strip()}").strip(),
            "architecture": _text(gpu, "product_architecture"),
            "virtualization": _text(gpu, "gpu_virtualization_mode/virtualization_mode"),
        }
    return found


def _text(gpu: ET.Element, path: str) -> str | None:
    text = gpu.findtext(path)
    return text.strip() if text and text.strip() not in ("N/A", "") else None


def pod_of(groups: str) -> str:
    """Return the UID of the pod that a process with these control groups belongs to; "" when it is of none."""
    found = _POD.search(groups)
    return found[1].replace("_", "-") if found else ""


def unit_of(groups: str) -> str:
    """Return the service that a process with these control groups belongs to; "" for sessions, users' own, containers.

    systemd tells processes apart by its own hierarchy: the only one, or the one that carries its name.
    """
    for line in groups.splitlines():
        _, controllers, path = line.split(":", 2)
        found = _UNIT.match(path) if controllers in ("", "name=systemd") else None
        if found and not found[1].startswith("user@"):
            return found[1]
    return ""


def _groups(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cgroup").read_text()
    except OSError:
        return ""


def _runs(program: str) -> bool:
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and (entry / "comm").read_text().strip() == program[:COMM_LENGTH]:
                return True
        except OSError:
            continue
    return False


if __name__ == "__main__":
    sys.exit(main())
