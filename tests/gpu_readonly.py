"""Hold the GPU stand-ins against a real GPU, and only read: `python -m tests.gpu_readonly [--out FOLDER]`.

On a machine with a GPU and nvidia-smi, in at most three minutes: what `drills/probes/gpu.py` tells by NVML and by
nvidia-smi, and where the two differ or say nothing; `drill plan gpu-reset` and `drill plan thermal-throttle`; and each
answer of the real nvidia-smi that has another shape than that of the lab's stand-in. Nothing is reset and no setting is
changed: a command that is not in `READS` is never started. Status 0: read; 1: no GPU; 3: out of time.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from drills.lab.gpu import state
from drills.lab.gpu.smi import write_nvidia_smi
from drills.lab.gpu.smi_query import XML_FIELDS
from drills.probes import gpu as probe

LIMIT_S = 180.0
COMMAND_S = 30.0
MOVING = ("temperature_c", "power_w", "utilisation", "memory_utilisation", "memory_used_mib", "uptime_s",
          "sm_clock_mhz", "memory_clock_mhz", "event_reasons", "processes")  # fmt: skip
CSV = "--format=csv,noheader"
#: Every word that nvidia-smi may be given.
READS = re.compile(
    r"-L|-q|-x|--query-(gpu|compute-apps|supported-clocks)=[a-z._,]+|--format=[a-z,]+|conf-compute|-f|-i|0"
)


class OutOfTimeError(Exception):
    """The three minutes are over."""


class Reader:
    """Runs commands that read, each within its own bound and all within one."""

    def __init__(self, limit_s: float = LIMIT_S) -> None:
        self.deadline = time.monotonic() + limit_s

    def run(self, argv: Sequence[str], stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        """Run a command; raises OutOfTimeError."""
        left_s = self.deadline - time.monotonic()
        if left_s <= 0:
            raise OutOfTimeError
        limit_s = min(COMMAND_S, left_s)
        try:
            return subprocess.run(
                argv, input=stdin, capture_output=True, text=True, errors="replace", timeout=limit_s, check=False
            )
        except subprocess.TimeoutExpired:
            return subprocess.CompletedProcess(argv, 124, "", f"no answer within {limit_s:.0f} s")

    def smi(self, program: str, *words: str) -> subprocess.CompletedProcess[str]:
        """Ask an nvidia-smi; a word that does not read is a ValueError."""
        for word in words:
            if not READS.fullmatch(word):
                raise ValueError(f"{word} is none of the words that only read")
        return self.run([program, *words])


def shape(text: str) -> str:
    """Return what stays of an answer when numbers, ids and names are taken out."""
    text = re.sub(r"GPU-[0-9a-fA-F-]{36}", "<uuid>", text.strip())
    text = re.sub(r"0x[0-9a-fA-F]+", "<hex>", text)
    text = re.sub(r"[0-9a-fA-F]{8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-9]", "<pci>", text)
    return re.sub(r"\d+(\.\d+)*", "<n>", text)


def both_ways(reader: Reader, smi: str) -> Iterator[str]:
    """Yield what the probe tells by NVML and by nvidia-smi, and where the two part."""
    source = Path(str(probe.__file__)).read_text()
    told: dict[str, Any] = {}
    for way, more in (("nvml", []), ("smi", ["--nvml-lib", "/nowhere/libnvidia-ml.so.1"])):
        done = reader.run([sys.executable, "-", *more, "--smi", smi], stdin=source)
        told[way] = json.loads(done.stdout) if done.returncode == 0 else {"gpus": {}, "errors": [done.stderr[-300:]]}
        yield f"probe by {way}: {json.dumps(told[way])}"
    for uuid in sorted(told["nvml"]["gpus"].keys() | told["smi"]["gpus"].keys()):
        one, other = (told[way]["gpus"].get(uuid, {}) for way in ("nvml", "smi"))
        for key in sorted(one.keys() | other.keys()):
            values = one.get(key), other.get(key)
            if None in values:
                yield f"{uuid} {key}: nvml {values[0]!r}, smi {values[1]!r}: one does not tell it"
            elif values[0] != values[1] and key not in MOVING:
                yield f"{uuid} {key}: nvml {values[0]!r}, smi {values[1]!r}: they differ"


def questions() -> Iterator[tuple[str, ...]]:
    """Yield the words of each question that drills ask an nvidia-smi."""
    yield ("-L",)
    for field in probe.SMI_FIELDS:
        if not field.startswith("lab."):
            yield (f"--query-gpu={field}", CSV, "-i", "0")
    for field in ("gpu_uuid", "pid", "used_memory", "process_name"):
        yield (f"--query-compute-apps={field}", CSV, "-i", "0")
    yield ("--query-supported-clocks=gr", CSV, "-i", "0")
    yield ("conf-compute", "-f")


def shapes(reader: Reader, smi: str, stand_in: str) -> Iterator[str]:
    """Yield each question whose answer has another shape at the real one than at the stand-in."""
    same = 0
    for words in questions():
        real, ours = reader.smi(smi, *words), reader.smi(stand_in, *words)
        first = [(done.stdout or done.stderr).strip().splitlines()[:1] or [""] for done in (real, ours)]
        if (real.returncode, shape(first[0][0])) == (ours.returncode, shape(first[1][0])):
            same += 1
        else:
            pair = (f"{done.returncode} {line[0]!r}" for done, line in zip((real, ours), first, strict=True))
            yield f"{' '.join(words)}: real, then stand-in: {', '.join(pair)}"
    yield f"{same} answers have the same status and shape"
    yield from xml_shapes(reader.smi(smi, "-q", "-x").stdout)


def xml_shapes(text: str) -> Iterator[str]:
    """Yield the elements of `-q -x` that the stand-in has and the real one has not."""
    try:
        gpu = ET.fromstring(text).find("gpu")
    except ET.ParseError as error:
        yield f"-q -x: {error}"
        return
    for path in XML_FIELDS:
        if not path.startswith("lab") and (gpu is None or gpu.find(path) is None):
            yield f"-q -x: no element {path}"


def main(argv: Sequence[str] | None = None) -> int:
    """Read, and print what was read."""
    parser = argparse.ArgumentParser(description="hold the GPU stand-ins against a real GPU; only reads")
    parser.add_argument("--smi", default="nvidia-smi", help="the real one")
    parser.add_argument("--out", type=Path, help="write it into this folder too, as gpu-readonly.txt")
    asked = parser.parse_args(argv)
    said: list[str] = []

    def say(line: str) -> None:
        said.append(line)
        print(line, flush=True)

    smi, reader, status = shutil.which(asked.smi), Reader(), 0
    if smi is None or reader.smi(smi, "-L").returncode != 0:
        say(f"{asked.smi}: is not there, or finds no GPU")
        return 1
    try:
        with tempfile.TemporaryDirectory() as folder:
            state.create(Path(folder), count=1)
            stand_in = str(write_nvidia_smi(Path(folder) / "bin", Path(folder) / "state.json"))
            for lines in (both_ways(reader, smi), shapes(reader, smi, stand_in)):
                for line in lines:
                    say(line)
            for name in ("gpu-reset", "thermal-throttle"):
                planned = reader.run([sys.executable, "-m", "drills.cli", "plan", name])
                say(f"drill plan {name}: status {planned.returncode}, {len(planned.stdout.splitlines())} lines")
    except OutOfTimeError:
        say(f"out of time after {LIMIT_S:.0f} s")
        status = 3
    if asked.out:
        (asked.out / "gpu-readonly.txt").write_text("\n".join(said) + "\n")
    return status


if __name__ == "__main__":
    sys.exit(main())
