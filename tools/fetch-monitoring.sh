#!/bin/sh
# Puts Debian's prometheus, promtool, alertmanager and amtool under .cache/tools without installing them.
# Needs apt-get, not root. Does nothing where they are on the PATH or already unpacked.
set -eu
cd "$(dirname "$0")/.."
dest=$PWD/.cache/tools
have() { command -v "$1" >/dev/null 2>&1 || [ -x "$dest/usr/bin/$1" ]; }

if have prometheus && have promtool && { have prometheus-alertmanager || have alertmanager; }; then
    exit 0
fi
if ! command -v apt-get >/dev/null 2>&1 || ! command -v dpkg >/dev/null 2>&1; then
    echo "monitoring: no prometheus/alertmanager on the PATH and no apt-get: install both to have alerts judged; drills run without" >&2
    exit 0
fi

state=$PWD/.cache/apt
mkdir -p "$dest" "$state/lists/partial" "$state/archives/partial" "$state/debs"
# A private state directory: the machine's own lists need root to refresh and may be missing.
apt() {
    timeout 300 apt-get -q -o "Dir::State::Lists=$state/lists" -o "Dir::Cache=$state" \
        -o "Dir::Cache::Archives=$state/archives" -o "Debug::NoLocking=1" -o "APT::Sandbox::User=" \
        -o "Acquire::Retries=2" "$@"
}
fetch() { (cd "$state/debs" && apt download prometheus prometheus-alertmanager >"$state/log" 2>&1); }
if ! { apt update >"$state/log" 2>&1 && fetch; }; then
    echo "monitoring: apt-get could not download prometheus and prometheus-alertmanager (see .cache/apt/log): install both; drills run without, their alert checks are inconclusive" >&2
    exit 0
fi
for deb in "$state"/debs/*.deb; do dpkg -x "$deb" "$dest"; done
rm -rf "$state/debs"
echo "monitoring: unpacked $("$dest/usr/bin/prometheus" --version 2>&1 | head -n 1)"
