"""Ledger proxies in front of engines in pods, as their node does it: `python -m drills.cluster.podproxy COMMAND`.

    aim      look at the pods: where a proxy could listen, what stands there already, what speaks against it
    up       start the proxies, lead new connections to them, let go of those that were there before
    look     what of it is there now, and whether a request from the node goes through
    collect  the attempts that they have seen
    drained FOLDER...  wait until the proxies there have answered what is open; one that does not end in time is killed

It runs in a helper, in the network of the node; it takes {"spots": [...]} as JSON on one line and answers for each of
them in the same order. A spot is {replica, role, netns, ip, port}; later also {listen, folder, tag, rule, iptables}.
The redirect is a rule of iptables in the pod's network that matches only while the proxy says that it lives
(`drills.proxy_beat`): when it is killed or hangs, new connections go to the engine itself seconds later, by themselves.
"""

from __future__ import annotations

import http.client
import json
import secrets
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from drills.access import iptables, ontarget, procs
from drills.access.iptables import Rule
from drills.access.local import LocalHost
from drills.cluster import oldlinks
from drills.errors import DrillError
from drills.model import Json
from drills.proxy_beat import VALID_S
from drills.proxy_link import PROOF

TABLE, CHAIN = "nat", "PREROUTING"
#: Where a proxy listens: below the ports that connections of the pod itself are given.
PORTS = range(21100, 21400)
READY_S, PROOF_S, ASK_S, POLL_S = 15.0, 10.0, 3.0, 0.1
#: A proxy that is to end; a little longer than it lets open requests go on (`drills.proxy.DRAIN_S`).
DRAINED_S, KILLED_S = 17.0, 2.0
#: What every server of the OpenAI API answers; whether it does is not what is proven.
PATH = "/v1/models"
#: What `look` says where nothing of the run is there.
NOTHING: Json = {"lives": False, "rules": 0, "through": False, "beside": 0, "changed": []}
BOOT = Path("/proc/sys/kernel/random/boot_id")
HOST = LocalHost()


def main(argv: list[str] | None = None) -> int:
    """Carry out one command for all spots; prints one JSON object."""
    command, *folders = sys.argv[1:] if argv is None else argv
    if command == "drained":
        return drained([Path(folder) for folder in folders])
    began = time.monotonic()
    work = {"aim": aim, "up": up, "look": look, "collect": collect}[command]
    spots = json.loads(sys.stdin.readline())["spots"]
    with ThreadPoolExecutor(max(1, len(spots))) as pool:
        answers = list(pool.map(lambda spot: _told(work, spot), spots))
    clock = {"boot": BOOT.read_text().strip(), "began": began, "ended": time.monotonic()}
    print(json.dumps({"clock": clock, "spots": answers}))
    return 0


def _told(work: Callable[[Json], Json], spot: Json) -> Json:
    try:
        return work(spot)
    except (DrillError, OSError, ValueError) as error:
        return {"error": str(error) or type(error).__name__}


# ---- the commands --------------------------------------------------------------------------------------


def aim(spot: Json) -> Json:
    """Choose a port and note what stands in the pod's tables; the rule is tried where it harms nobody."""
    prefix = iptables.enter(HOST, spot["netns"])
    programs = iptables.find(HOST)
    if programs.default is None:
        raise DrillError("iptables is not installed in the helper")
    snapshot = iptables.snapshot(HOST, prefix, programs)
    busy = [kind for kind, lines in snapshot.items() if lines]
    kind = busy[0] if len(busy) == 1 else programs.default
    if others := [line for lines in snapshot.values() for line in lines if line.startswith(f"{TABLE} -A {CHAIN}")]:
        raise DrillError(f"its traffic is redirected already, by a service mesh perhaps: {others[0]}")
    used = set(_listening(spot["netns"]["pid"]))
    listen = next(port for port in PORTS if port not in used)
    iptables.restore(
        HOST, ["unshare", "--net"], programs.paths[kind], [keep(spot, "0-0"), rule(spot, listen, "0-0")], table=TABLE
    )
    return {"listen": listen, "iptables": programs.paths[kind], "kind": kind, "snapshot": snapshot}


def up(spot: Json) -> Json:
    """Start the proxy, lead new connections to it, and let go of the older ones once they are idle."""
    folder = Path(spot["folder"])
    (folder / "faults").mkdir(parents=True, exist_ok=True)
    (folder / "lives").write_text("")
    prefix = iptables.enter(HOST, spot["netns"])
    HOST.spawn([*prefix, *_command(spot)], log=str(folder / "proxy.log"))
    status = _until_ready(folder)
    (folder / "proxy.json").write_text(json.dumps({"pid": status["pid"], "start": procs.start(status["pid"])}))
    rules = [Rule(CHAIN, "jump", tuple(spot[name])) for name in ("keep", "rule")]
    iptables.restore(HOST, prefix, spot["iptables"], rules, table=TABLE)
    if _called_off(spot):  # by a recovery, after whoever gave this order had died
        ontarget.carry_out(undo([spot]))
        raise DrillError("it was called off meanwhile")
    _until_through(spot)
    return {"let_go": oldlinks.let_go(prefix, spot["ip"], spot["port"])}


def look(spot: Json) -> Json:
    """Say what is there: rules of the run, the proxy, connections beside it, and whether a request goes through."""
    folder = Path(spot["folder"])
    lives = running(folder)
    found: Json = {**NOTHING, "lives": lives}
    try:
        prefix = iptables.enter(HOST, spot["netns"])
    except DrillError:  # the pod is gone, and its network with it, but for what we keep in it
        return found | {"gone": True}
    snapshot = iptables.snapshot(HOST, prefix, iptables.find(HOST))
    rules = [line for lines in snapshot.values() for line in lines if f"-{spot['tag']}-" in line]
    found |= {"rules": len(rules), "beside": len(oldlinks.beside(prefix, spot["ip"], spot["port"]))}
    found["changed"] = iptables.difference(spot["snapshot"], snapshot)
    return found | {"through": bool(rules) and lives and _goes_through(spot)}


def collect(spot: Json) -> Json:
    """Return the lines of the attempts that began at `since` or later, and of the open ones.

    Those are asked for first, so that none is lost in between. Lines stay text: a long ledger must not fill the helper.
    """
    folder = Path(spot["folder"])
    still_open: list[Json] = []
    lost = 0
    with suppress(OSError, ValueError):
        still_open = ask(folder, "GET", "/ledger/open")
        lost = ask(folder, "POST", "/flush")["lost"]
    since, opened = spot.get("since", 0.0), {(one["id"], one["start"]): one for one in still_open}
    lines = []
    with (folder / "ledger.ndjson").open() as ledger:
        for line in ledger:
            if not line.endswith("\n"):
                break
            attempt = json.loads(line)
            opened.pop((attempt["id"], attempt["start"]), None)
            if attempt["start"] >= since:
                lines.append(line.rstrip("\n"))
    return {"lines": lines + [json.dumps(one) for one in opened.values() if one["start"] >= since], "lost": lost}


# ---- inside --------------------------------------------------------------------------------------------


def _called_off(spot: Json) -> bool:
    receipt = spot.get("receipt")
    return not (Path(spot["folder"]) / "lives").exists() or not (receipt is None or Path(receipt).exists())


def rule(spot: Json, listen: int, tag: str) -> Rule:
    """Return the redirect in the words of `iptables -S`."""
    words = (
        *("-d", f"{spot['ip']}/32", "-p", "tcp", "-m", "tcp", "--dport", str(spot["port"])),
        *("--tcp-flags", "FIN,SYN,RST,ACK", "SYN"),
        *("-m", "recent", "--rcheck", "--seconds", str(VALID_S), "--name", _list(tag)),
        *("--mask", "255.255.255.255", "--rdest", "-m", "comment", "--comment", f"drill-{tag}-ledger"),
        *("-j", "REDIRECT", "--to-ports", str(listen)),
    )
    return Rule(CHAIN, "jump", words)


def keep(spot: Json, tag: str) -> Rule:
    """Return a rule that matches nothing: without any that asks for it, the kernel forgets what it has redirected."""
    words = (
        *("-d", f"{spot['ip']}/32", "-p", "tcp", "-m", "tcp", "--dport", str(spot["port"])),
        *("-m", "conntrack", "--ctstate", "INVALID", "-m", "comment", "--comment", f"drill-{tag}-keep", "-j", "ACCEPT"),
    )
    return Rule(CHAIN, "jump", words)


def words(spot: Json, tag: str) -> Json:
    """Return the words of both rules, as a spot holds them."""
    return {"rule": list(rule(spot, spot["listen"], tag).words), "keep": list(keep(spot, tag).words)}


def _list(tag: str) -> str:
    return f"drill-{tag}"


def _command(spot: Json) -> list[str]:
    folder, here = spot["folder"], f"{spot['ip']}:{spot['port']}"
    return [
        *(sys.executable, "-m", "drills.proxy", "--listen", f"0.0.0.0:{spot['listen']}", "--upstream", here),
        *("--control", f"unix:{folder}/control", "--ledger", f"{folder}/ledger.ndjson"),
        *("--name", spot["replica"], "--role", spot["role"], "--faults-dir", f"{folder}/faults"),
        *("--only", "/v1/", "--while", f"{folder}/lives"),
        *("--seen", f"/proc/net/xt_recent/{_list(spot['tag'])}@{spot['ip']}"),
    ]


def ask(folder: Path, method: str, path: str) -> Any:
    """Ask the proxy's control socket. Raises OSError or ValueError when there is no answer."""
    with closing(socket.socket(socket.AF_UNIX)) as sock:
        sock.settimeout(ASK_S)
        sock.connect(str(folder / "control"))
        sock.sendall(f"{method} {path} HTTP/1.1\r\n\r\n".encode())
        raw = b"".join(iter(lambda: sock.recv(1 << 16), b""))
    return json.loads(raw.partition(b"\r\n\r\n")[2])


def running(folder: Path) -> bool:
    """Whether the proxy that was started there still runs."""
    try:
        return procs.alive(*_process(folder))
    except (OSError, ValueError, LookupError, TypeError):
        return False


def _process(folder: Path) -> tuple[int, int]:
    said = json.loads((folder / "proxy.json").read_text())
    return int(said["pid"]), int(said["start"])


def _until_ready(folder: Path) -> Json:
    deadline = time.monotonic() + READY_S
    while True:
        try:
            status: Json = ask(folder, "GET", "/status")
            return status
        except (OSError, ValueError):
            if time.monotonic() > deadline:
                said = (folder / "proxy.log").read_text(errors="replace").strip().splitlines() or ["it says nothing"]
                raise DrillError(f"its proxy does not start: {said[-1][:200]}") from None
        time.sleep(POLL_S)


def _until_through(spot: Json) -> None:
    deadline = time.monotonic() + PROOF_S
    while not _goes_through(spot):
        if time.monotonic() > deadline:
            raise DrillError("no request from its node goes through the proxy")
        time.sleep(POLL_S)


def _goes_through(spot: Json) -> bool:
    """Whether a new connection from the node leads to the proxy; what the engine answers does not matter."""
    word = secrets.token_hex(8)
    with suppress(OSError, http.client.HTTPException):
        line = http.client.HTTPConnection(spot["ip"], spot["port"], timeout=ASK_S)
        with closing(line):
            line.request("GET", PATH, headers={PROOF: word})
            with suppress(OSError, http.client.HTTPException):
                line.getresponse().read()
    with suppress(OSError, ValueError):
        return word in ask(Path(spot["folder"]), "GET", "/status")["proofs"]
    return False


def _listening(pid: int) -> Iterator[int]:
    """Yield the local ports in use in a process's network."""
    for name in ("tcp", "tcp6"):
        with suppress(OSError):
            lines = (Path("/proc") / str(pid) / "net" / name).read_text().splitlines()[1:]
            yield from (int(line.split()[1].rpartition(":")[2], 16) for line in lines)


def drained(folders: Sequence[Path]) -> int:
    """Wait until no proxy is left, bounded; then end those that hang. Status 1 when one stays."""
    deadline = time.monotonic() + DRAINED_S
    while any(running(folder) for folder in folders) and time.monotonic() < deadline:
        time.sleep(POLL_S)
    for folder in (folder for folder in folders if running(folder)):
        procs.signal(*_process(folder), signal.SIGKILL)
    deadline = time.monotonic() + KILLED_S
    while (left := any(running(folder) for folder in folders)) and time.monotonic() < deadline:
        time.sleep(POLL_S)
    return int(left)


def undo(spots: Sequence[Json]) -> list[Json]:
    """Return the undo steps of some spots, which are carried out from the last to the first.

    Nothing new comes, the proxies answer what is open, and only then the kernel may forget what went through them.
    """
    keeps, waits, lives, redirects = [], [], [], []
    for spot in spots:
        where = {"netns": spot["netns"], "iptables": spot["iptables"], "table": TABLE, "chain": CHAIN}
        keeps.append({"do": "unrule", **where, "rule": spot["keep"], "host": spot["node"]})
        redirects.append({"do": "unrule", **where, "rule": spot["rule"], "host": spot["node"]})
        lives.append({"do": "remove", "path": f"{spot['folder']}/lives", "host": spot["node"]})
    for node in sorted({spot["node"] for spot in spots}):
        folders = [spot["folder"] for spot in spots if spot["node"] == node]
        argv = ["python3", "-m", "drills.cluster.podproxy", "drained", *folders]
        waits.append({"do": "run", "argv": argv, "timeout_s": DRAINED_S + KILLED_S + 2.0, "host": node})
    return [*keeps, *waits, *lives, *redirects]


if __name__ == "__main__":
    sys.exit(main())
