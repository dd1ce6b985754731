"""Ledger proxies in front of engines in pods: in the network of the pod, which ends with it."""

from __future__ import annotations

from typing import Final

from drills.cluster.helpers import STATE_DIR, NodeGone
from drills.errors import Refused
from drills.fronts.fronted import Fronted
from drills.fronts.fronts import Fronts
from drills.model import Json, Replica

#: The node's own network: policies let it reach its pods.
ENTER: Final = ("nsenter", "--net=/proc/1/ns/net")


class FrontedPods(Fronted):
    """What is the same for all kinds of target, for pods. The folder of a proxy goes with the helper it runs in."""

    def _new_fronts(self) -> Fronts:
        return Fronts(
            lambda node: self.host(node),
            lambda replica: self.place(replica),
            machine="node",
            enter=ENTER,
            gone=(NodeGone,),
        )


def placed(replica: Replica, *, ip: str, port: int, netns: Json | None, tcp_probe: bool) -> Json:
    """Return a pod's place. Refused where a proxy would stand in for the engine when it must not."""
    if netns is None or not ip:
        raise Refused(f"{replica.name}: its pod has no network yet")
    if ":" in ip:
        raise Refused(f"{replica.name}: its pod has the address {ip}, and ledger proxies know IPv4 only")
    if tcp_probe:
        raise Refused(
            f"{replica.name}: a probe of its pod only opens a connection to port {port}, which the ledger proxy would "
            "accept for an engine that is gone: make it an httpGet"
        )
    whom = {"uid": replica.uid, "ip": ip, "port": port, "netns": netns}
    return {**whom, "sources": None, "state_dir": STATE_DIR, "stays": True}
