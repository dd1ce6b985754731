"""packet-loss: the link between the router and a replica fails, by rules of iptables on the replica's side.

reject     what the router sends is answered with a TCP reset: connections break at once, new ones are refused
blackhole  packets vanish: nothing is answered, senders wait
loss       a share of the packets vanishes (`loss: 10%`): TCP hides it, and it shows as latency

`affects` says what happens to connections that are there: with `all` they are hit as well, with `new` only attempts
to connect are. The rules stand in two chains of our own; the first rule of each lets the management path through.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, ClassVar, Literal, Self, cast

from pydantic import AfterValidator, Field, model_validator

from drills import receipts
from drills.access import iptables
from drills.access.iptables import Programs, Rule
from drills.errors import DrillError, nearest
from drills.faults.common import FaultParams, bystanders, receipt_of, refuse_others, untouched
from drills.model import Context, HasNetwork, Host, Json, Observation, Receipt, Replica, Restored, Target
from drills.params import Line, Share
from drills.probes import http
from drills.units import shown

PROOF_TIMEOUT_S = 10.0
#: The one peer that every target knows by name.
ROUTER = "router"
MANAGEMENT_TIMEOUT_S = 3.0
HOOKS = {"in": ("INPUT", "I", "-s", "--dport"), "out": ("OUTPUT", "O", "-d", "--sport")}
#: The first packet of a connection: from the peer a SYN, from the replica its answer to one.
FIRST = {"in": ("--tcp-flags", "FIN,SYN,RST,ACK", "SYN"), "out": ("--tcp-flags", "FIN,SYN,RST,ACK", "SYN,ACK")}
TARGETS = {
    "reject": ("-j", "REJECT", "--reject-with", "tcp-reset"),
    "blackhole": ("-j", "DROP"),
    "loss": ("-j", "DROP"),
}


def _some_loss(value: float) -> float:
    if value <= 0:
        raise ValueError("a share above 0%")
    return value


def _peer(value: str) -> str:
    if value != ROUTER:
        try:
            ipaddress.IPv4Network(value)
        except ValueError:
            raise ValueError(
                f"no peer {shown(value)}{nearest(value, [ROUTER])}, or an IPv4 address or network"
            ) from None
    return value


class PacketLoss:
    """A held fault: the rules stay until they are taken away, by revert, by the timer or by recover."""

    name: ClassVar[str] = "packet-loss"
    held: ClassVar[bool] = True
    effect: ClassVar[bool] = True

    class Params(FaultParams):
        """mode, and for `loss` how much; direction, peers and ports default to all that the router exchanges."""

        mode: Literal["reject", "blackhole", "loss"]
        loss: Annotated[Share, AfterValidator(_some_loss)] | None = None
        direction: Literal["in", "out", "both"] | None = None
        affects: Literal["new", "all"] = "all"
        peers: Annotated[tuple[Annotated[Line, AfterValidator(_peer)], ...], Field(min_length=1, max_length=50)] = (
            ROUTER,
        )
        ports: Annotated[tuple[Annotated[int, Field(ge=1, le=65535)], ...], Field(max_length=50)] = ()
        iptables: Literal["auto", "nft", "legacy"] = "auto"

        @model_validator(mode="after")
        def _fits(self) -> Self:
            if (self.mode == "loss") != (self.loss is not None):
                raise ValueError("mode: loss and a share go together; write `mode: loss, loss: 10%`")
            if self.mode == "reject" and self.direction not in (None, "in"):
                raise ValueError("mode: reject answers what comes in; leave direction out, or use blackhole")
            return self

    def __init__(self, params: Params, kind: str) -> None:
        self.params, self.kind = params, kind

    @property
    def _directions(self) -> tuple[str, ...]:
        chosen = self.params.direction or ("in" if self.params.mode == "reject" else "both")
        return ("in", "out") if chosen == "both" else (chosen,)

    def needs(self) -> frozenset[str]:
        """Return the network that can be shaped, and where that is done."""
        return frozenset({"HasNetwork", "NodeAccess"})

    # ---- before --------------------------------------------------------------------------------------

    def preflight(self, target: Target, victims: Sequence[Replica]) -> list[str]:
        """Refuse what could not be done, or not be undone; the rules are tried in a namespace made for that."""
        refusals = []
        for victim in victims:
            try:
                host, net = target.host(victim.host), cast("HasNetwork", target).network(victim)
                if net is None:
                    raise DrillError(
                        f"{target.name} has no network that can be shaped; a lab has one when root starts it and "
                        "iproute2 is installed"
                    )
                self._try(host, net)
            except DrillError as problem:
                refusals.append(f"{victim.name}: {problem}")
        return refusals

    def _try(self, host: Host, net: Json) -> None:
        """Put the rules into a namespace that ends with the command: program, kernel and rights are then known."""
        programs = iptables.find(host)
        prefix = iptables.enter(host, net["netns"])
        kind = self._kind(host, programs, iptables.snapshot(host, prefix, programs))
        iptables.restore(host, ["unshare", "--net"], programs.paths[kind], self._rules("00000000-0", net))

    def _kind(self, host: Host, programs: Programs, snapshot: Json) -> str:
        """Return which iptables to use: the one that is asked for, that has rules there already, or the plain one."""
        asked = self.params.iptables
        busy = [kind for kind, lines in snapshot.items() if lines]
        kind = programs.default if asked == "auto" else asked
        if asked == "auto" and len(busy) == 1:
            kind = busy[0]
        if kind is None or kind not in programs.paths:
            name = "iptables" if kind is None else f"iptables-{kind}"
            raise DrillError(f"{host.name}: {name} is not installed; packets cannot be dropped without it")
        return kind

    def aim(self, target: Target, victims: Sequence[Replica], *, run: str, receipt: str, deadline_s: float) -> Receipt:
        """Note every rule that is there, and write down how ours will be undone."""
        tag = self._tag(receipt)
        links = [self._link(target, victim, tag) for victim in victims]
        prior = {"bystanders": bystanders(target, victims), "links": links}
        undo = [step for link in links for step in _undo(link)]
        return receipt_of(
            self, target, victims, run=run, receipt=receipt, deadline_s=deadline_s, prior=prior, undo=undo
        )

    def _tag(self, receipt: str) -> str:
        """Return what our rules carry; those of other faults and proxies of the run carry something else."""
        return receipt.removesuffix(f"-{self.name}")

    def _link(self, target: Target, victim: Replica, tag: str) -> Json:
        """Return all that must be known of one victim to put the rules there and to take them away."""
        host, net = target.host(victim.host), cast("HasNetwork", target).network(victim)
        if net is None:
            raise DrillError(f"{victim.name}: its network can no longer be shaped")
        programs = iptables.find(host)
        snapshot = iptables.snapshot(host, iptables.enter(host, net["netns"]), programs)
        kind = self._kind(host, programs, snapshot)
        return {
            "replica": victim.name,
            "host": victim.host,
            "netns": net["netns"],
            "kind": kind,
            "iptables": programs.paths[kind],
            "rules": [{**asdict(rule), "words": list(rule.words)} for rule in self._rules(tag, net)],
            "others": net["bystanders"],
            "snapshot": snapshot,
        }

    # ---- the rules -----------------------------------------------------------------------------------

    def _rules(self, tag: str, net: Json) -> list[Rule]:
        """Return our rules in the order in which they are put: chains are full before anything leads to them."""
        peers = [address for peer in self.params.peers for address in _addresses(peer, net)]
        asked = self.params.ports or (net["port"],)
        if kept := sorted({*asked} & {*net.get("kept_ports", ())}):
            raise DrillError(f"ports: {kept[0]} is that of SSH, by which the drill is put back; leave it out")
        behind = {int(port): to for port, to in net.get("redirected", {}).items()}  # rules see a packet redirected
        ports = sorted({*asked, *(behind[port] for port in asked if port in behind)})
        rules: list[Rule] = []
        for direction in self._directions:
            hook, letter, side, port_side = HOOKS[direction]
            chain = f"DRILL-{tag}-{letter}"
            assert len(chain) <= iptables.CHAIN_MAX
            spared: list[tuple[str, ...]] = [(side, f"{address}/32") for address in net["management"]]
            if self.params.mode == "reject":  # or the resets that we cause would be swallowed themselves
                spared.append(("-p", "tcp", "-m", "tcp", "--tcp-flags", "RST", "RST"))
            rules += [_rule(chain, "spared", tag, words, ("-j", "RETURN")) for words in spared]
            for address in peers:
                for port in ports:
                    packet = (side, address, "-p", "tcp", "-m", "tcp", port_side, str(port))
                    rules += self._losing(chain, direction, tag, packet)
            rules.append(_rule(hook, "jump", tag, (), ("-j", chain)))
        return rules

    def _losing(self, chain: str, direction: str, tag: str, packet: tuple[str, ...]) -> list[Rule]:
        """Return the rules for one address and port; attempts to connect are told from what follows on them.

        `new` counts attempts that come to nothing, each once; `again` the same attempt sent again by a sender that got
        no answer. Where a share is lost an attempt comes through in the end, so none is counted.
        """
        mode, first, target = self.params.mode, FIRST[direction], TARGETS[self.params.mode]
        share: tuple[str, ...] = ()
        if self.params.loss is not None:
            share = ("-m", "statistic", "--mode", "random", "--probability", f"{self.params.loss:.6f}")
        rules = []
        if mode == "blackhole":
            ends = "srcip,srcport" if direction == "in" else "dstip,dstport"
            once = ("--hashlimit-upto", "1/hour", "--hashlimit-burst", "1", "--hashlimit-mode", ends)
            kept = ("--hashlimit-name", f"d{tag}{chain[-1]}", "--hashlimit-htable-expire", "600000")
            rules.append(_rule(chain, "new", tag, (*packet, *first, "-m", "hashlimit", *once, *kept), target))
        what = {"reject": "new", "blackhole": "again", "loss": "handshake"}[mode]
        rules.append(_rule(chain, what, tag, (*packet, *first, *share), target))
        if self.params.affects == "all":
            rules.append(_rule(chain, "rest", tag, (*packet, "!", *first, *share), target))
        return rules

    # ---- the deed ------------------------------------------------------------------------------------

    def inject(self, target: Target, receipt: Receipt, ctx: Context) -> None:
        """Put the rules in place, all of a victim's at once, if all victims are still those that were aimed at."""
        refuse_others(receipt, target.replicas())
        for link in receipt.prior["links"]:
            host = _host(target, receipt, link)
            prefix = iptables.enter(host, link["netns"])
            ctx.tell("inject.hit", {"receipt": receipt.id, "victims": [link["replica"]]})
            iptables.restore(host, prefix, link["iptables"], _rules_of(link))
            step = {"step": "rules.placed", "ok": True, "replica": link["replica"], "iptables": link["kind"]}
            ctx.tell("inject.step", {"receipt": receipt.id, **step})

    def counts(self, target: Target, receipt: Receipt) -> Json | None:
        """Return what was swallowed so far, {new, packets}; None where not all rules are in place."""
        seen = [_count(_host(target, receipt, link), link) for link in receipt.prior["links"]]
        found = [one for one in seen if one is not None]
        return {key: sum(one[key] for one in found) for key in ("new", "packets")} if len(found) == len(seen) else None

    # ---- proof, and the way back ---------------------------------------------------------------------

    def observe(self, target: Target, receipt: Receipt, ctx: Context) -> Observation:
        """Prove by the counters of our rules that packets are swallowed, or that no rule of ours is there."""
        links = receipt.prior["links"]
        deadline = ctx.mono() + PROOF_TIMEOUT_S
        while True:
            seen = [_look(_host(target, receipt, link), link, self._tag(receipt.id)) for link in links]
            waits = all(e["in_place"] for e in seen) and not all(e["packets"] for e in seen)
            if not waits or ctx.mono() > deadline or ctx.stopping():
                break
            ctx.sleep(0.2)
        on: bool | None = None
        if all(e["in_place"] and e["packets"] for e in seen):
            on = True
        elif not any(e["rules"] for e in seen):
            on = False
        others = [_elsewhere(target, receipt, link, self._tag(receipt.id)) for link in links]
        now = target.replicas()
        ways = [_management(target, r) for r in now if r.name in {link["replica"] for link in links}]
        well = untouched(receipt.prior["bystanders"], now)
        clear = not any(e["rules"] for e in others) and all(e["answers"] for e in ways)
        known = not any(e["silent"] for e in others)
        return Observation(on, (*seen, *others, *ways), (well and clear) and (known or None))

    def revert(self, target: Target, receipt: Receipt, ctx: Context) -> Restored:
        """Delete exactly our rules, then compare with what was there before."""
        restored = receipts.revert(target, receipt, ctx)
        links = receipt.prior["links"]
        tag = self._tag(receipt.id)
        changed = [line for link in links for line in _changed(_host(target, receipt, link), link, tag)]
        if restored is Restored.CLEAN and changed:
            ctx.tell("undo.failed", {"receipt": receipt.id, "manual": [f"# {line}" for line in changed]})
            return Restored.DIRTY
        return restored


def _host(target: Target, receipt: Receipt, link: Json) -> Host:
    """Return the host of one victim."""
    return target.host(link.get("host", receipt.host))


def _rule(chain: str, what: str, tag: str, match: tuple[str, ...], target: tuple[str, ...]) -> Rule:
    return Rule(chain, what, (*match, "-m", "comment", "--comment", f"drill-{tag}-{what}", *target))


def _rules_of(link: Json) -> list[Rule]:
    return [Rule(rule["chain"], rule["what"], tuple(rule["words"])) for rule in link["rules"]]


def _addresses(peer: str, net: Json) -> list[str]:
    """Return all addresses of a peer: of a name that the target knows, or an IPv4 address or network itself."""
    if peer in net["peers"] and not net["peers"][peer]:
        raise DrillError(f"peers: no address of the {peer} is known; mend {peer}.selector of the target")
    if peer in net["peers"]:
        return [f"{address}/32" for address in net["peers"][peer]]
    try:
        return [str(ipaddress.IPv4Network(peer))]
    except ValueError:
        raise DrillError(f"peers: no '{peer}'{nearest(peer, net['peers'])}, or an IPv4 address") from None


def _undo(link: Json) -> list[Json]:
    """Return the undo steps of one victim; they are carried out from the last to the first."""
    steps: list[Json] = []
    base = {"netns": link["netns"], "iptables": link["iptables"], "table": iptables.TABLE, "host": link["host"]}
    for rule in _rules_of(link):
        if rule.what == "jump":
            steps.append({"do": "unchain", **base, "chain": rule.words[-1]})
            steps.append({"do": "unrule", **base, "chain": rule.chain, "rule": list(rule.words)})
    return steps


def _look(host: Host, link: Json, tag: str) -> Json:
    """Return how many of our rules stand at a victim, and what they have swallowed."""
    rules = _found(host, link["netns"], tag)
    # A chain has a line of its own in a snapshot.
    wanted = len(link["rules"]) + len({rule["chain"] for rule in link["rules"] if rule["what"] != "jump"})
    evidence: Json = {"what": "rules of this run", "replica": link["replica"], "iptables": link["kind"]}
    evidence |= {"rules": len(rules), "in_place": len(rules) == wanted}
    counted = _count(host, link) if evidence["in_place"] else None
    return evidence | (counted or {"new": 0, "packets": 0})


def _found(host: Host, netns: Json | None, tag: str) -> list[str]:
    """Return the lines of the fault in a namespace, none when it is gone."""
    try:
        prefix = iptables.enter(host, netns)
    except DrillError:
        return []
    return iptables.ours(iptables.snapshot(host, prefix, iptables.find(host)), tag)


def _count(host: Host, link: Json) -> Json | None:
    """Return the packets that our rules have swallowed, None where they are not all there. Raises DrillError."""
    rules, found = _rules_of(link), {"new": 0, "packets": 0}
    listed = iptables.call(host, iptables.enter(host, link["netns"]), link["iptables"], "-v", "-S")
    for chain in sorted({rule.chain for rule in rules if rule.what != "jump"}):
        whats, counted = [rule.what for rule in rules if rule.chain == chain], iptables.counters(listed, chain)
        if len(whats) != len(counted):
            return None
        for what, packets in zip(whats, counted, strict=True):
            found["new"] += packets if what == "new" else 0
            found["packets"] += packets if what != "spared" else 0
    return found


def _elsewhere(target: Target, receipt: Receipt, link: Json, tag: str) -> Json:
    """Look for our rules where none may be: in other networks of the victim's host, on other hosts."""
    links = receipt.prior["links"]
    hit, hosts = {one["replica"] for one in links}, {one.get("host") for one in links}
    found: dict[str, int] = {}
    silent: list[str] = []
    for name, place in link["others"].items():
        away = (place or {}).get("host")
        if name in hit or away in hosts - {None}:
            continue
        try:
            host = target.host(away) if away else _host(target, receipt, link)
            found[name] = len(_found(host, None if away else place, tag))
        except DrillError:
            if not away:
                raise
            silent.append(name)  # it is no victim's, so nobody waits for it
    total = sum(found.values())
    evidence = {"what": "rules of this run elsewhere", "found": total > 0, "rules": total}
    return evidence | {"looked_at": sorted(found), "silent": silent, "replica": link["replica"]}


def _management(target: Target, replica: Replica) -> Json:
    """Ask the replica past the router: that way must stay open."""
    evidence: Json = {"what": "past the router", "replica": replica.name, "url": f"{replica.url}/health"}
    try:
        status, _ = http.request(http.pool_for(target), "GET", evidence["url"], timeout_s=MANAGEMENT_TIMEOUT_S)
    except http.ProbeError as error:
        return evidence | {"answers": False, "error": str(error)}
    return evidence | {"answers": True, "status": status}


def _changed(host: Host, link: Json, tag: str) -> list[str]:
    """Return what differs from before; of a namespace that is gone nothing does.

    A host's own network has others who change it: what differs there and is not ours is theirs.
    """
    try:
        prefix = iptables.enter(host, link["netns"])
    except DrillError:
        return []
    after = iptables.snapshot(host, prefix, iptables.find(host))
    found = iptables.difference(link["snapshot"], after)
    mine = found if link["netns"] else [line for line in found if f"-{tag}-" in line]
    return [f"{link['replica']}: {line}" for line in mine]
