"""Ledger proxies in front of engines, as their own machine does it: `python -m drills.fronts.onhost COMMAND`.

    aim      look at the network: where a proxy could listen, what stands there already, what speaks against it
    up       start the proxies, lead new connections to them, let go of those that were there before
    look     what of it is there now, and whether what is sent to the engine goes through
    collect  the attempts that they have seen
    drained FOLDER...  wait until the proxies there have answered what is open; one that does not end in time is killed
    cleared FOLDER...  likewise, and then remove what they wrote

It runs in a helper of a node, in the network of the node, or on a host; it takes {"spots": [...]} as JSON on one line
and answers for each of them in the same order. What a spot is says `drills.fronts.words`.
"""

from __future__ import annotations

import http.client
import json
import secrets
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from drills.access import iptables, ontarget, procs
from drills.access.local import LocalHost
from drills.errors import DrillError
from drills.fronts import oldlinks, places, words
from drills.plain import Json
from drills.proxy_link import PROOF

READY_S, PROOF_S, ASK_S, POLL_S = 15.0, 10.0, 3.0, 0.1
#: What every server of the OpenAI API answers; whether it does is not what is proven.
PATH = "/v1/models"
#: What `look` says where nothing of the run is there.
NOTHING: Json = {"lives": False, "rules": 0, "through": False, "beside": 0, "changed": []}
BOOT = Path("/proc/sys/kernel/random/boot_id")
HOST = LocalHost()


def main(argv: list[str] | None = None) -> int:
    """Carry out one command for all spots; prints one JSON object."""
    command, *folders = sys.argv[1:] if argv is None else argv
    if command in ("drained", "cleared"):
        return drained([Path(folder) for folder in folders], clear=command == "cleared")
    began = time.monotonic()
    work = {"aim": aim, "up": up, "look": look, "collect": collect}[command]
    spots = [{**spot, "nth": nth} for nth, spot in enumerate(json.loads(sys.stdin.readline())["spots"])]
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
    """Choose a port and note what stands in the network's tables; the rules are tried where they harm nobody."""
    prefix = iptables.enter(HOST, spot["netns"])
    programs = iptables.find(HOST)
    if programs.default is None:
        raise DrillError("iptables is not installed" + (" in the helper" if spot["netns"] else ""))
    snapshot = iptables.snapshot(HOST, prefix, programs)
    busy = [kind for kind, lines in snapshot.items() if lines]
    kind = busy[0] if len(busy) == 1 else programs.default
    if why := places.led_elsewhere(spot, snapshot):
        raise DrillError(why)
    listen, upstream = places.free_port(spot), places.upstream(spot)
    trial = [words.keep(spot, "0-0"), *words.redirects(spot, listen, "0-0")]
    iptables.restore(HOST, ["unshare", "--net"], programs.paths[kind], trial, table=words.TABLE)
    found = {"listen": listen, "upstream": upstream, "iptables": programs.paths[kind], "kind": kind}
    return {**found, "snapshot": snapshot}


def up(spot: Json) -> Json:
    """Start the proxy, lead new connections to it, and let go of the older ones once they are idle."""
    folder = Path(spot["folder"])
    (folder / "faults").mkdir(parents=True, exist_ok=True)
    (folder / "lives").write_text("")
    prefix = iptables.enter(HOST, spot["netns"])
    places.start(HOST, spot, [*prefix, spot["python"], *words.command(spot)])
    status = _until_ready(folder)
    (folder / "proxy.json").write_text(json.dumps({"pid": status["pid"], "start": procs.start(status["pid"])}))
    iptables.restore(HOST, prefix, spot["iptables"], words.rules(spot), table=words.TABLE)
    if _called_off(spot):  # by a recovery, after whoever gave this order had died
        ontarget.carry_out(words.undo([spot]))
        raise DrillError("it was called off meanwhile")
    # Where only some are led there, that it leads them shows once they have sent something on a connection that is new.
    _until(_goes_through if spot.get("sources") is None else _is_heard, spot)
    return {"let_go": oldlinks.let_go(prefix, spot)}


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
    mark = f"-{words.mark(spot, spot['tag'])}-"
    rules = [line for lines in snapshot.values() for line in lines if mark in line]
    found |= {"rules": len(rules), "beside": len(oldlinks.beside(prefix, spot))}
    changed = iptables.difference(spot["snapshot"], snapshot)
    found["changed"] = changed if spot["netns"] else [line for line in changed if mark in line]  # others have theirs
    through = bool(rules) and lives and _goes_through(spot)
    why = {"why": _why_not_through(spot)} if rules and lives and not through and spot.get("sources") is not None else {}
    return found | {"through": through, **why}


def collect(spot: Json) -> Json:
    """Return the lines of the attempts that began at `since` or later, and of the open ones.

    Those are asked for first, so that none is lost in between. Lines stay text: a long ledger must not fill the memory.
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
                log = folder / "proxy.log"
                text = log.read_text(errors="replace") if log.exists() else ""
                said = text.strip().splitlines() or ["it says nothing"]
                raise DrillError(f"its proxy does not start: {said[-1][:200]}") from None
        time.sleep(POLL_S)


def _until(holds: Callable[[Json], bool], spot: Json) -> None:
    deadline = time.monotonic() + PROOF_S
    while not holds(spot):
        if time.monotonic() > deadline:
            everybody = spot.get("sources") is None
            why = "no request from its node goes through the proxy" if everybody else "its proxy is not heard of"
            raise DrillError(why)
        time.sleep(POLL_S)


def _is_heard(spot: Json) -> bool:
    """Whether the proxy has said that it lives: until then the redirect leads nobody to it."""
    with suppress(OSError):
        return bool(words.heard(spot).read_text().strip())
    return False


def _why_not_through(spot: Json) -> str:
    listed = iptables.call(HOST, [], spot["iptables"], "-v", "-S", table=words.TABLE)
    mark = f"-{words.mark(spot, spot['tag'])}-ledger"
    lines = "\n".join(line for line in listed.splitlines() if mark in line)
    if any(iptables.counters(lines, words.CHAIN)):
        return f"what the router sends is led to port {spot['listen']}, where this host's firewall must let it in"
    return (
        f"nothing has come from the router ({', '.join(spot['sources'])}) to port {spot['port']} since: "
        "name the addresses that it sends from in router.addresses"
    )


def _goes_through(spot: Json) -> bool:
    """Whether a new connection leads to the proxy; what the engine answers does not matter.

    Where only the router's are led there, one of the router's must have come.
    """
    if spot.get("sources") is not None:
        with suppress(OSError, ValueError):
            return not set(spot["sources"]).isdisjoint(ask(Path(spot["folder"]), "GET", "/status")["clients"])
        return False
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


def drained(folders: Sequence[Path], *, clear: bool = False) -> int:
    """Wait until no proxy is left, bounded; then end those that hang. Status 1 when one stays."""
    deadline = time.monotonic() + words.DRAINED_S
    while any(running(folder) for folder in folders) and time.monotonic() < deadline:
        time.sleep(POLL_S)
    for folder in (folder for folder in folders if running(folder)):
        procs.signal(*_process(folder), signal.SIGKILL)
    deadline = time.monotonic() + words.KILLED_S
    while (left := any(running(folder) for folder in folders)) and time.monotonic() < deadline:
        time.sleep(POLL_S)
    for folder in folders if clear and not left else ():
        shutil.rmtree(folder, ignore_errors=True)
    return int(left)


if __name__ == "__main__":
    sys.exit(main())
