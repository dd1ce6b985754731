"""A host with GPUs on which systemd runs the replicas, by commands that run there.

A unit is stopped by its name, and only the very run of it that was aimed at. Nothing is enabled, masked or loaded anew.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Final

from drills.errors import DrillError, Refused
from drills.hosts.restarts import stays_down
from drills.model import Host, Json, Replica
from drills.nodes import STOP_TIMEOUT_S
from drills.unitnames import whole

COMMAND_TIMEOUT_S: Final = 20.0
SURVEY_TIMEOUT_S: Final = 60.0
#: Units that watch GPUs and serve nobody: they may be paused for a reset without being named in drill.yaml.
WATCHERS: Final = (
    "nvidia-dcgm.service",
    "dcgm.service",
    "dcgm-exporter.service",
    "nvidia-dcgm-exporter.service",
    "nvidia-gpu-exporter.service",
    "nvidia_gpu_exporter.service",
    "nvsm*.service",
)
#: Who is stopped along with a unit.
WITH_IT: Final = ("RequiredBy", "BoundBy", "RequisiteOf", "ConsistsOf", "PropagatesStopTo")
DEAD: Final = ("inactive", "failed")
STOP_SLACK_S: Final = 10.0  # until a unit that was killed in the end is seen to be gone
#: How systemd writes a span of time, `1min 30s`: its units in seconds.
_SPAN: Final = {
    "us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0, "month": 2629800.0,
    "y": 31557600.0,
}  # fmt: skip
_SHOWN: Final = (
    "Id", "LoadState", "ActiveState", "SubState", "InvocationID", "Job", "Restart", "CanStart", "CanStop",
    "TimeoutStopUSec", *WITH_IT,
)  # fmt: skip
ANOTHER: Final = 4
#: $1 the note, $2 the unit, $3 the run of it that is meant. Nothing is stopped once an undo has taken the note away.
STOP: Final = """
[ -e "$1" ] || exit 3
[ "$(systemctl show --property=InvocationID --value -- "$2")" = "$3" ] || exit 4
exec systemctl --no-block stop -- "$2"
"""


def span_s(text: str) -> float:
    """Return a span of time as systemd writes it, in seconds; one that cannot be read may be of any length."""
    words = text.split()
    found = [re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([a-z]+)", word) for word in words]
    if not all(match and match[2] in _SPAN for match in found):
        return math.inf
    return sum(float(match[1]) * _SPAN[match[2]] for match in found if match)


class SystemdHost:
    """Implements `UnitHost`. `unit_by_replica` are those of the target on it, `declared` may be paused as well.

    `expect` is told of a replica that the drill itself starts.
    """

    def __init__(
        self,
        host: Host,
        smi: Sequence[str],
        unit_by_replica: Mapping[str, str],
        declared: Sequence[str] = (),
        expect: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.host, self.name, self.smi = host, host.name, list(smi)
        self._unit_by_replica = {name: whole(unit) for name, unit in unit_by_replica.items()}
        self._declared = [whole(unit) for unit in declared]
        self.expect = expect

    # ---- what it says of itself ------------------------------------------------------------------------

    def refusals(self, victims: Sequence[Replica], *, stop: bool) -> list[str]:
        """Return why these replicas cannot be stopped (else: crashed) and come back."""
        unit_of = {victim.name: self.unit_of(victim.name) for victim in victims}
        found = self._show(list(unit_of.values()))
        reasons = [why for v in victims for why in self._of_unit(v, unit_of[v.name], found[unit_of[v.name]], stop=stop)]
        if not stop:
            return reasons
        for unit in unit_of.values():
            others = [o for o in self._stopped_with(unit) if o not in unit_of.values()]
            reasons += [f"unit {unit}: {other} would be stopped along with it" for other in others]
        return reasons

    def _of_unit(self, victim: Replica, unit: str, said: Mapping[str, str], *, stop: bool) -> Iterator[str]:
        where = f"{self.name}: unit {unit}"
        if said["LoadState"] != "loaded":
            yield f"{where} is {said['LoadState']}"
        elif said["Id"] != unit:  # its processes, and who stops along with it, go by that one
            yield f"{where} is another name of {said['Id']}: name that one in drill.yaml"
        elif said["ActiveState"] != "active" or said["Job"] not in ("", "0"):
            yield f"{where} is {said['ActiveState']} ({said['SubState']}), not active and at rest"
        elif said["InvocationID"] != victim.uid:
            yield f"{where} is another run of it than that of {victim.name} by now"
        elif not stop and (why := stays_down(said["Restart"], "crash")):
            yield f"{where} has Restart={said['Restart']}: {why}; it needs Restart=always"
        elif stop and "no" in (said["CanStart"], said["CanStop"]):
            yield f"{where} may not be started or stopped by hand"
        elif stop and (longest_s := span_s(said["TimeoutStopUSec"])) > STOP_TIMEOUT_S - STOP_SLACK_S:
            how_long = "for ever" if longest_s == math.inf else said["TimeoutStopUSec"]
            yield (
                f"{where} may take {how_long} to stop (TimeoutStopSec), and a drill waits {STOP_TIMEOUT_S:.0f} s: "
                f"make it {STOP_TIMEOUT_S - STOP_SLACK_S:.0f} s at most"
            )

    def stay_down(self, victims: Sequence[Replica], deed: str) -> list[str]:
        """Return which of these replicas systemd does not start again after that deed (`drills.hosts.restarts`)."""
        unit_of = {victim.name: self.unit_of(victim.name) for victim in victims}
        policy_of = {unit: said["Restart"] for unit, said in self._show(list(unit_of.values())).items()}
        return [
            f"{name}: unit {unit} has Restart={policy_of[unit]}: {why}, and it would stay down; it needs Restart=always"
            for name, unit in unit_of.items()
            if (why := stays_down(policy_of[unit], deed))
        ]

    def unit_of(self, victim: str) -> str:
        """Return the unit of the replica of that name (Refused for one that is not of this host)."""
        try:
            return self._unit_by_replica[victim]
        except KeyError:
            raise Refused(f"{self.name}: no unit of replica '{victim}' is declared there") from None

    def units(self, names: Sequence[str]) -> dict[str, Json]:
        """Return how these units are now."""
        found = self._show(names)
        return {
            name: {
                "uid": said["InvocationID"],
                "state": said["ActiveState"],
                "sub": said["SubState"],
                "job": said["Job"] not in ("", "0"),
            }
            for name, said in found.items()
        }

    def to_pause(self, survey: Json, gpus: Sequence[str], victims: Sequence[str]) -> dict[str, str]:
        """Return the active ones of those that hold these GPUs and may be paused, and of those declared.

        Who would be stopped along with one comes before it, and must be one that may be paused, too (Refused).
        """
        ours = [self.unit_of(victim) for victim in victims]
        holding = sorted({h["unit"] for h in survey["holders"] if h["gpu"] in gpus and h["unit"]} - set(ours))
        wanted: list[str] = []
        for unit in (*filter(self.pausable, holding), *self._declared):
            others = [other for other in self._stopped_with(unit) if other not in ours]
            if strangers := [other for other in others if not self.pausable(other)]:
                raise Refused(
                    f"{self.name}: unit {unit} holds a GPU, and {', '.join(strangers)} would be stopped along with it; "
                    "name them under `pause`, if that does no harm"
                )
            wanted += [one for one in (*reversed(others), unit) if one not in wanted and one not in ours]
        now = self.units(wanted)
        return {unit: said["uid"] for unit, said in now.items() if said["state"] not in DEAD}

    def pausable(self, unit: str) -> bool:
        """Whether it only watches, or was declared as one that may be paused."""
        return unit in self._declared or any(fnmatchcase(unit, pattern) for pattern in WATCHERS)

    def _stopped_with(self, unit: str) -> list[str]:
        """Return the active units that systemd would stop along with it, nearest first."""
        found: list[str] = []
        frontier = [unit]
        while frontier:
            shown = self._show(frontier)
            near = {other for said in shown.values() for key in WITH_IT for other in said[key].split()}
            active = self._show(sorted(near - {unit, *found})) if near - {unit, *found} else {}
            frontier = [name for name, said in active.items() if said["ActiveState"] not in DEAD]
            found += frontier
        return found

    def _show(self, names: Sequence[str]) -> dict[str, dict[str, str]]:
        """Return systemd's properties of these units, by the names they were asked by."""
        if not names:
            return {}
        argv = ["systemctl", "show", f"--property={','.join(_SHOWN)}", "--", *names]
        done = self.host.run(argv, timeout_s=COMMAND_TIMEOUT_S)
        blocks = [block for block in done.out.split("\n\n") if block.strip()]
        if done.rc != 0 or done.timed_out or len(blocks) != len(names):
            why = "no answer in time" if done.timed_out else (done.err.strip().splitlines() or ["no output"])[-1][:200]
            raise DrillError(f"{self.name}: systemctl show: status {done.rc}: {why}; does systemd run there?")
        empty = dict.fromkeys(_SHOWN, "")  # what this version does not know it leaves out
        said = [dict(line.partition("=")[::2] for line in block.splitlines()) for block in blocks]
        return {name: {**empty, **one} for name, one in zip(names, said, strict=True)}

    def survey(self) -> Json:
        """Return which GPUs there are and who holds them."""
        argv = [self.host.python, "-m", "drills.access.gpunodes", "--smi", *self.smi]
        done = self.host.run(argv, timeout_s=SURVEY_TIMEOUT_S)
        if done.rc != 0 or done.timed_out:
            why = "no answer in time" if done.timed_out else (done.err.strip().splitlines() or [""])[-1][:200]
            raise DrillError(f"{self.name}: who holds its GPUs: status {done.rc}: {why}")
        found: Json = json.loads(done.out)
        return found

    # ---- what is changed -------------------------------------------------------------------------------

    def stop(self, unit: str, uid: str, note: str) -> None:
        """Write the note and have that run of the unit stopped; it is not waited for."""
        self.host.write(note, f"{unit} {uid}\n")
        done = self.host.run(["sh", "-c", STOP, "sh", note, unit, uid], timeout_s=COMMAND_TIMEOUT_S)
        if done.rc == ANOTHER:
            self.host.remove(note)
            raise Refused(f"{self.name}: unit {unit} is another run of it by now; it was not stopped")
        if done.rc != 0:
            why = (done.err.strip().splitlines() or [f"status {done.rc}"])[-1][:200]
            raise DrillError(f"{self.name}: unit {unit} could not be stopped: {why}")

    def command_of_start(self, unit: str, note: str, bases: Sequence[str] = ()) -> list[str]:
        """Return the command that starts it again if we stopped it, unless a GPU is for a person to look at."""
        argv = [self.host.python, "-m", "drills.access.gpu_units", "--note", note, "--unit", unit]
        return [*argv, *(["--unless", *bases] if bases else [])]
