"""The words of a proxy that a run puts up: its rules, its command line, and how it is taken away.

A spot says where one stands, as plain data that receipts hold:

    replica, role      whom it stands in front of
    uid                what tells that one from others: of a pod its uid, of a unit on a host its name
    node, python       the machine, and the Python there that knows this package
    ip, port           where the engine listens
    netns              the network it stands in, None for the machine's own
    sources            whose connections are led to it, addresses; None: everybody's, which are for `ip` then. Where
                       there are some it lets in nobody else: it must be no way past the machine's firewall
    stays              whether its folder stays behind, in a helper that ends with all that is in it
    tag, folder, receipt                    of the run
    listen, upstream, iptables, snapshot    found when it was aimed

The redirect is a rule of iptables that matches only while the proxy says that it lives (`drills.proxy_beat`): when it
is killed or hangs, new connections go to the engine itself seconds later, by themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from drills.access.iptables import Rule
from drills.plain import Json
from drills.proxy_beat import VALID_S

TABLE, CHAIN = "nat", "PREROUTING"
MODULE = "drills.fronts.onhost"
#: A proxy that is to end; a little longer than it lets open requests go on (`drills.proxy.DRAIN_S`).
DRAINED_S, KILLED_S = 17.0, 2.0
#: What a proxy says that it lives by, where any address of the machine leads to it.
ANY = "0.0.0.0"  # noqa: S104 - also what it listens on: what is led to it keeps the address it was sent to
#: Who asks a proxy on its own machine, for a proof.
LOOPBACK = "127.0.0.1"
#: An attempt to connect.
FIRST = ("--tcp-flags", "FIN,SYN,RST,ACK", "SYN")


def mark(spot: Json, tag: str) -> str:
    """Return what its rules and its list carry; several proxies may stand in a machine's own network."""
    return tag if spot["netns"] else f"{tag}-{spot['port']}"


def redirects(spot: Json, listen: int, tag: str) -> list[Rule]:
    """Return the redirects in the words of `iptables -S`: one, or one for each source."""
    port = ("-p", "tcp", "-m", "tcp", "--dport", str(spot["port"]), *FIRST)
    lives = ("-m", "recent", "--rcheck", "--seconds", str(VALID_S), "--name", _list(spot, tag))
    comment = ("-m", "comment", "--comment", f"drill-{mark(spot, tag)}-ledger")
    leads = (*comment, "-j", "REDIRECT", "--to-ports", str(listen))
    words: list[tuple[str, ...]]
    if spot.get("sources") is None:
        words = [("-d", f"{spot['ip']}/32", *port, *lives, "--mask", "255.255.255.255", "--rdest", *leads)]
    else:
        here = ("-m", "addrtype", "--dst-type", "LOCAL")
        words = [("-s", f"{one}/32", *port, *here, *lives, "--mask", ANY, "--rdest", *leads) for one in spot["sources"]]
    return [Rule(CHAIN, "jump", one) for one in words]


def keep(spot: Json, tag: str) -> Rule:
    """Return a rule that matches nothing: without any that asks for it, the kernel forgets what it has redirected."""
    to = ("-d", f"{spot['ip']}/32") if spot.get("sources") is None else ()
    words = (
        *(*to, "-p", "tcp", "-m", "tcp", "--dport", str(spot["port"]), "-m", "conntrack", "--ctstate", "INVALID"),
        *("-m", "comment", "--comment", f"drill-{mark(spot, tag)}-keep", "-j", "ACCEPT"),
    )
    return Rule(CHAIN, "jump", words)


def words(spot: Json, tag: str) -> Json:
    """Return the words of all its rules, as a spot holds them."""
    return {
        "redirects": [list(rule.words) for rule in redirects(spot, spot["listen"], tag)],
        "keep": list(keep(spot, tag).words),
    }


def rules(spot: Json) -> list[Rule]:
    """Return its rules, from what the spot holds."""
    return [Rule(CHAIN, "jump", tuple(one)) for one in (spot["keep"], *spot["redirects"])]


def _list(spot: Json, tag: str) -> str:
    return f"drill-{mark(spot, tag)}"


def heard(spot: Json) -> Path:
    """Return the list in which it says that it lives, in its own network."""
    return Path("/proc/net/xt_recent") / _list(spot, spot["tag"])


def command(spot: Json) -> list[str]:
    """Return the words that start it, behind those of its Python."""
    folder, sources = spot["folder"], spot.get("sources")
    address = spot["ip"] if sources is None else ANY
    known = () if sources is None else (*sources, LOOPBACK)
    return [
        *("-m", "drills.proxy", "--listen", f"{ANY}:{spot['listen']}", "--upstream", spot["upstream"]),
        *("--control", f"unix:{folder}/control", "--ledger", f"{folder}/ledger.ndjson"),
        *("--name", spot["replica"], "--role", spot["role"], "--faults-dir", f"{folder}/faults"),
        *("--only", "/v1/", "--while", f"{folder}/lives"),
        *("--seen", f"{heard(spot)}@{address}"),
        *(f"--let-in={one}" for one in known),
    ]


def undo(spots: Sequence[Json]) -> list[Json]:
    """Return the undo steps of some spots, which are carried out from the last to the first.

    Nothing new comes, the proxies answer what is open, and only then the kernel may forget what went through them.
    """
    keeps, waits, lives, leads = [], [], [], []
    for spot in spots:
        where = {"netns": spot["netns"], "iptables": spot["iptables"], "table": TABLE, "chain": CHAIN}
        keeps.append({"do": "unrule", **where, "rule": spot["keep"], "host": spot["node"]})
        leads += [{"do": "unrule", **where, "rule": one, "host": spot["node"]} for one in spot["redirects"]]
        lives.append({"do": "remove", "path": f"{spot['folder']}/lives", "host": spot["node"]})
    for node in sorted({spot["node"] for spot in spots}):
        mine = [spot for spot in spots if spot["node"] == node]
        folders = [spot["folder"] for spot in mine]
        argv = [mine[0]["python"], "-m", MODULE, "drained" if mine[0]["stays"] else "cleared", *folders]
        waits.append({"do": "run", "argv": argv, "timeout_s": DRAINED_S + KILLED_S + 2.0, "host": node})
    return [*keeps, *waits, *lives, *leads]
