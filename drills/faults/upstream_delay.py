"""upstream-delay: every primary answers late. The proxy in front of each of them holds traffic back.

first_byte   the answer begins `delay` late
per_request  the request reaches the replica `delay` late
per_chunk    each piece of an answer comes `delay` after the piece before it: the stream is stretched

It aims at the route, not at replicas: nobody is left to take the traffic, so what is shown is the degradation. The
command is a file for each proxy, and the way back is to remove it: that needs neither the data path nor the proxy's
control port, and a proxy that starts again meanwhile finds it as it was.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Annotated, ClassVar, Literal, cast

from pydantic import AfterValidator

from drills import receipts
from drills.access import farlines
from drills.access.farlines import FarLine, any_line
from drills.access.lateness import Line, ask_all
from drills.errors import Refused
from drills.faults.common import bystanders, receipt_of, refuse_others, untouched
from drills.model import Context, HasProxies, Json, Observation, Receipt, Replica, Restored, Target
from drills.params import Duration, Params

MIN_DELAY_S = 0.2
#: A proxy looks for its files every 0.1 s: within so many tries, so far apart, it must have noticed.
TRIES, BETWEEN_S = 4, 0.25


AnyLine = Line | FarLine


def _provable(value: float) -> float:
    if value < MIN_DELAY_S:
        raise ValueError(f"at least {MIN_DELAY_S * 1000:.0f}ms: less cannot be told from noise")
    return value


class UpstreamDelay:
    """A held fault of the whole route."""

    name: ClassVar[str] = "upstream-delay"
    held: ClassVar[bool] = True
    effect: ClassVar[bool] = True
    route: ClassVar[bool] = True

    class Params(Params):
        """mode: what is late; delay: by how much."""

        mode: Literal["first_byte", "per_request", "per_chunk"] = "first_byte"
        delay: Annotated[Duration, AfterValidator(_provable)] = 5.0

    def __init__(self, params: Params, kind: str) -> None:
        self.params, self.kind = params, kind
        self._lines: dict[str, list[AnyLine]] = {}  # by receipt: connections from before the fault, or before the undo

    def needs(self) -> frozenset[str]:
        """Return that there must be proxies."""
        return frozenset({"HasProxies"})

    def preflight(self, target: Target, victims: Sequence[Replica]) -> list[str]:
        """Refuse a proxy that takes no faults as files, or that does not answer in time as it is."""
        proxies = _proxies(target, victims)  # those that a run brings along are proven when they are put up
        deaf = [
            f"{name}: its proxy takes no faults as files (--faults-dir)"
            for name, p in proxies.items()
            if not p["faults_dir"]
        ]
        lines = [any_line(p, target.host, name, "before the fault") for name, p in proxies.items()]
        _ask(lines, self._patience_s)
        slow = [f"{line.name}: its proxy does not answer ({line.error})" for line in lines if line.took_s is None]
        late = [
            f"{line.name}: takes {line.took_s:.1f} s to answer already, {self.params.delay:g} s more would not show"
            for line in lines
            if self._late(line)
        ]
        _close(lines)
        return deaf + slow + late

    def aim(self, target: Target, victims: Sequence[Replica], *, run: str, receipt: str, deadline_s: float) -> Receipt:
        """Name the file for each proxy; they will be the only change."""
        names = {v.name for v in victims}
        proxies = _proxies(target, target.replicas())
        if missing := names - proxies.keys():
            raise Refused(f"{', '.join(sorted(missing))}: no ledger proxy stands in front of it")
        files = {name: f"{p['faults_dir']}/{receipt}.json" for name, p in proxies.items() if name in names}
        hosts = {name: str(proxies[name].get("host") or victims[0].host) for name in files}
        kept = ("listen", "host", "folder", "passing")
        prior = {
            "bystanders": bystanders(target, victims),
            "files": files,
            "hosts": hosts,
            "proxies": {name: {key: p.get(key) for key in kept} for name, p in proxies.items()},
        }
        undo = [{"do": "remove", "path": path, "host": hosts[name]} for name, path in files.items()]
        return receipt_of(
            self, target, victims, run=run, receipt=receipt, deadline_s=deadline_s, prior=prior, undo=undo
        )

    def inject(self, target: Target, receipt: Receipt, ctx: Context) -> None:
        """Open a connection to each proxy for the proof, then write the files."""
        refuse_others(receipt, target.replicas())
        lines = _lines_to(target, receipt, receipt.prior["files"], "opened before the fault")
        _ask(lines, self._patience_s, ctx.stopping)
        self._lines[receipt.id] = lines
        fault = {"id": receipt.id, "mode": self.params.mode, "delay_s": self.params.delay}
        ctx.tell("inject.hit", {"receipt": receipt.id, "victims": [v["name"] for v in receipt.victims]})
        files, hosts = receipt.prior["files"], receipt.prior["hosts"]

        def late(name: str) -> None:
            target.host(hosts[name]).write(files[name], json.dumps(fault), mode=0o644)
            ctx.tell("inject.step", {"receipt": receipt.id, "step": "delay.on", "ok": True, "replica": name})

        mine = [copy_context() for _ in files]  # each order says to which receipt it belongs
        with ThreadPoolExecutor(max(1, len(files))) as pool:  # or they come on one after the other
            list(pool.map(lambda context, name: context.run(late, name), mine, files))

    def observe(self, target: Target, receipt: Receipt, ctx: Context) -> Observation:
        """Time a request through each proxy: late, and by the delay, while its file is there, and else not."""
        files, hosts = receipt.prior["files"], receipt.prior["hosts"]
        with ThreadPoolExecutor(max(1, len(files))) as pool:  # a look may be a command on another machine
            there = pool.map(lambda name: target.host(hosts[name]).read(files[name]) is not None, files)
            ordered = dict(zip(files, there, strict=True))
        lines = self._lines.pop(receipt.id, []) or _lines_to(target, receipt, files, "new")
        others = _lines_to(target, receipt, receipt.prior["proxies"].keys() - files.keys(), "new")
        if any(ordered.values()):
            ctx.sleep(BETWEEN_S)  # else one proxy answers before it has noticed, while the others' are late
        wrong, asked = lines, [*lines, *others]
        for _ in range(TRIES):
            _ask(asked, self._patience_s, ctx.stopping)
            asked = wrong = [line for line in wrong if self._late(line) is not ordered[line.name]]
            if not wrong or (ctx.stopping() and any(ordered.values())):  # a way back is proven even then
                break
            ctx.sleep(BETWEEN_S)
        late = [self._late(line) for line in lines]
        on = None if None in late else True if all(late) else None if any(late) else False
        evidence = [self._seen(line, "victim") for line in lines] + [self._seen(line, "bystander") for line in others]
        well = untouched(receipt.prior["bystanders"], target.replicas())
        quick = [self._late(line) is False for line in others]
        _close([*lines, *others])
        return Observation(on, tuple(evidence), well and all(quick))

    def revert(self, target: Target, receipt: Receipt, ctx: Context) -> Restored:
        """Remove the files. A request is put on its way before that: the proof sees it let go."""
        lines = _lines_to(target, receipt, receipt.prior["files"], "opened before the way back")
        _send(lines)
        self._lines[receipt.id] = lines
        return receipts.revert(target, receipt, ctx)

    @property
    def proof_s(self) -> float:
        """How long the proof takes at least, in seconds: an answer that is late must come within the fault."""
        return self.params.delay

    @property
    def _patience_s(self) -> float:
        return self.params.delay + 3.0

    def _late(self, line: AnyLine) -> bool | None:
        return None if line.took_s is None else line.took_s >= 0.9 * self.params.delay

    def _seen(self, line: AnyLine, who: str) -> Json:
        took = f"no answer: {line.error}" if line.took_s is None else f"{line.took_s:.2f} s"
        return {
            "what": f"request through the proxy of the {who} {line.name}",
            "meaning": f"{took}, on a connection that was {line.since}",
            "replica": line.name,
            "connection": line.since,
            "took_s": line.took_s,
            "late": self._late(line),
            "error": line.error,
        }


def _proxies(target: Target, replicas: Sequence[Replica]) -> dict[str, Json]:
    """Return the proxies there are, by replica."""
    found = {replica.name: cast("HasProxies", target).proxy(replica) for replica in replicas}
    return {name: proxy for name, proxy in found.items() if proxy is not None}


def _lines_to(target: Target, receipt: Receipt, names: Collection[str], since: str) -> list[AnyLine]:
    proxies: dict[str, Json] = receipt.prior["proxies"]
    return [any_line(found, target.host, name, since) for name, found in proxies.items() if name in names]


def _parted(lines: Sequence[AnyLine]) -> tuple[list[Line], list[FarLine]]:
    near = [line for line in lines if isinstance(line, Line)]
    return near, [line for line in lines if isinstance(line, FarLine)]


def _ask(lines: Sequence[AnyLine], patience_s: float, hurry: Callable[[], bool] = lambda: False) -> None:
    near, far = _parted(lines)
    if near:
        ask_all(near, patience_s, hurry)
    farlines.ask_all(far, patience_s, hurry)


def _send(lines: Sequence[AnyLine]) -> None:
    near, far = _parted(lines)
    for line in near:
        line.send()
    farlines.send_all(far)


def _close(lines: Sequence[AnyLine]) -> None:
    near, far = _parted(lines)
    for line in near:
        line.close()
    farlines.close_all(far)
