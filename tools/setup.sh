#!/bin/sh
# Makes .venv with pinned versions and fetches the monitoring binaries. Needs Python >= 3.11 and the network.
set -eu
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || {
    echo "setup: $python is not Python 3.11 or newer: name one with PYTHON=/path/to/python3.11 make setup" >&2
    exit 1
}
if [ ! -x .venv/bin/pip ]; then
    rm -rf .venv
    "$python" -m venv .venv >/dev/null 2>&1 && [ -x .venv/bin/pip ] || {
        echo "setup: $python cannot make a virtual environment: install its venv module (Debian: apt-get install python3-venv)" >&2
        exit 1
    }
fi
# The constraints hold for the build's own environment too.
PIP_CONSTRAINT=$PWD/constraints.txt PIP_DISABLE_PIP_VERSION_CHECK=1 \
    .venv/bin/pip install -q --no-input -e '.[dev]'
tools/fetch-monitoring.sh
command -v cc >/dev/null 2>&1 || echo "setup: no C compiler (cc): the lab uses its nvidia-smi stand-in without the NVML library" >&2
touch .venv/.installed
