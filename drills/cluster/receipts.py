"""Receipts in a cluster: ConfigMaps in the target's namespace, found by label when driver and journal are gone."""

from __future__ import annotations

import json
from typing import Final

from drills.access.kubernetes import Api
from drills.access.kubetypes import CONFIGMAPS, ClusterAway, ClusterError
from drills.custody import Unreadable
from drills.errors import Refused
from drills.model import Json, Receipt
from drills.receipts import Damaged, parse, to_json, unreadable

RUN: Final = "drills/run"
LOCK: Final = "drills/lock"
KEY: Final = "receipt"
PREFIX: Final = "drill-receipt-"
MANAGED: Final = {"app.kubernetes.io/managed-by": "drill"}


class ReceiptMaps:
    """The receipts of one target, by the name of its Lease."""

    def __init__(self, api: Api, namespace: str, lease: str) -> None:
        self.api, self.namespace, self.lease = api, namespace, lease

    def found(self) -> tuple[list[Receipt], list[Unreadable]]:
        """Return them, oldest first, and which of them cannot be read."""
        good: list[Receipt] = []
        bad: list[Unreadable] = []
        for _, name, _, text in self._maps():
            own = name.removeprefix(PREFIX)
            try:
                good.append(parse(text, own))
            except Damaged as why:
                remove = f"kubectl --namespace {self.namespace} delete configmap {name}"
                bad.append(unreadable(own, f"configmap {name} in {self.namespace}", why, remove))
        return good, bad

    def runs(self) -> set[str]:
        """Return whose they are, also of those that cannot be read."""
        return {run for _, _, run, _ in self._maps()}

    def _maps(self) -> list[tuple[str, str, str, str]]:
        found, _ = self.api.list_all(CONFIGMAPS, self.namespace, labels=f"{LOCK}={self.lease}", keep=_kept)
        return sorted(found)

    def _ids(self) -> set[str]:
        return {name.removeprefix(PREFIX) for _, name, _, _ in self._maps()}

    def lay_down(self, receipt: Receipt) -> None:
        """Write one down; one that is there already stays as it is."""
        meta: Json = {"name": _name(receipt), "namespace": self.namespace}
        meta["labels"] = {RUN: receipt.run, LOCK: self.lease, **MANAGED}
        body: Json = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "immutable": True}
        body["data"] = {KEY: json.dumps(to_json(receipt), sort_keys=True)}
        try:
            self.api.create(CONFIGMAPS, self.namespace, body)
        except ClusterAway:  # nobody knows whether it was done
            if receipt.id not in self._ids():
                raise
        except ClusterError as error:
            if error.status != 409:
                raise

    def take_away(self, receipt: Receipt) -> None:
        """Remove one; one that is not there is no error."""
        try:
            self.api.delete(CONFIGMAPS, self.namespace, _name(receipt))
        except ClusterAway:
            if receipt.id in self._ids():
                raise
        except ClusterError as error:
            if error.status != 404:
                raise


def _kept(item: Json) -> tuple[str, str, str, str]:
    meta = item["metadata"]
    run = str((meta.get("labels") or {}).get(RUN) or "")
    return str(meta.get("creationTimestamp")), str(meta["name"]), run, str((item.get("data") or {}).get(KEY))


def _name(receipt: Receipt) -> str:
    if not receipt.id.replace("-", "").isalnum() or receipt.id != receipt.id.lower():
        raise Refused(f"receipt {receipt.id}: cannot be the name of an object in a cluster")
    return f"{PREFIX}{receipt.id}"
