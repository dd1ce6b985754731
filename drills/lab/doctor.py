"""What the lab needs of this machine, for the chosen drills."""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING

from drills.doctor.finding import Finding, missing, ok
from drills.errors import DrillError, Refused
from drills.lab import manage, monitoring, network, opening, processes, router
from drills.lab.config import LabConfig
from drills.lab.gpu import shim
from drills.target import TargetSpec

if TYPE_CHECKING:
    from drills.doctor.wanted import Wanted

GROUP = "lab"
#: What shapes a link; the rules are looked for in both kinds.
IPTABLES = ("iptables-nft", "iptables-legacy")


def look(spec: TargetSpec, wanted: Wanted) -> list[Finding]:
    """Return what a lab would find here; where one is up, also whose it is."""
    found = [_platform(), _router(), *_monitoring(wanted), _compiler(), *_network(wanted), _custody(spec)]
    up = manage.find()
    if up is not None:
        return [*found, ok(GROUP, "lab", f"up at {up.url}")]
    return [*found, _ports(spec), ok(GROUP, "lab", opening.absent())]


def _platform() -> Finding:
    if sys.platform == "linux":
        return ok(GROUP, "platform", "Linux")
    return missing(GROUP, "platform", f"the lab needs Linux (this is {sys.platform})", "name a target in drill.yaml",
                   refuses=True)  # fmt: skip


def _router() -> Finding:
    try:
        router.executable()
    except Refused:
        return missing(GROUP, "vllm-router", "not installed", "pip install vllm-router", refuses=True)
    return ok(GROUP, "vllm-router", router.version())


def _monitoring(wanted: Wanted) -> list[Finding]:
    programs = monitoring.binaries()
    lacking = [name for name in ("prometheus", "alertmanager") if getattr(programs, name) is None]
    if not lacking:
        return [
            ok(GROUP, name, monitoring.version(str(getattr(programs, name)))) for name in ("prometheus", "alertmanager")
        ]
    asked = ", ".join(dict.fromkeys(drill for drill, _ in wanted.checks("alert"))) or "no chosen drill"
    what = f"not found; {asked} would not decide its alert"
    return [missing(GROUP, name, what, "apt-get install prometheus prometheus-alertmanager", "or: make setup")
            for name in lacking]  # fmt: skip


def _compiler() -> Finding:
    if (cc := shim.compiler()) is not None:
        return ok(GROUP, "C compiler", f"{cc} builds the NVML of the lab's GPUs")
    return missing(
        GROUP, "C compiler", "none: the lab's GPUs are told by nvidia-smi alone", "apt-get install gcc libc6-dev"
    )


def _network(wanted: Wanted) -> list[Finding]:
    whose = ", ".join(wanted.whose("HasNetwork"))
    if not whose:
        return [ok(GROUP, "network", "no chosen drill shapes a link")]
    if why := network.why_not():
        return [missing(GROUP, "network", f"{why}, so {whose} is refused", "as root: sudo drill run ...", refuses=True)]
    if absent := [
        name for name in IPTABLES if shutil.which(name) is None and shutil.which(name, path="/usr/sbin") is None
    ]:
        return [missing(GROUP, "iptables", f"{', '.join(absent)} not found, so {whose} is refused",
                        "apt-get install iptables", refuses=True)]  # fmt: skip
    return [ok(GROUP, "network", f"root, ip and iptables are there for {whose}")]


def _custody(spec: TargetSpec) -> Finding:
    keeper = opening.custody(spec)
    try:
        opening.refuse_busy(spec)
        left = keeper.found()
        held = keeper.held()
    except DrillError as error:
        return missing("custody", "lock", str(error), refuses=True)
    if left.outstanding or left.unreadable or held is not None:
        return missing("custody", "leftovers", "an earlier run is not put back", "drill recover", refuses=True)
    return ok("custody", "lock", "nobody drills it, and nothing is to be put back")


def _ports(spec: TargetSpec) -> Finding:
    assert spec.lab is not None
    ports = LabConfig(port_base=spec.lab.port_base).all_ports()
    if taken := {port: name for port, name in ports.items() if processes.taken(port)}:
        port, name = next(iter(taken.items()))
        what = f"{len(taken)} of {len(ports)} are taken, such as {port} ({name})"
        return missing(GROUP, "ports", what, "drill run ... --port-base 19000", refuses=True)
    return ok(GROUP, "ports", f"{min(ports)} to {max(ports)}: all {len(ports)} are free")
