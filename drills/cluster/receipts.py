"""Receipts in a cluster: ConfigMaps in the target's namespace, found by label when driver and journal are gone."""

from __future__ import annotations

import json
from typing import Final

from drills.access.kubernetes import Api
from drills.access.kubetypes import CONFIGMAPS, ClusterAway, ClusterError
from drills.errors import Refused
from drills.model import Json, Receipt
from drills.receipts import parse, to_json

RUN: Final = "drills/run"
LOCK: Final = "drills/lock"
KEY: Final = "receipt"
MANAGED: Final = {"app.kubernetes.io/managed-by": "drill"}


class ReceiptMaps:
    """The receipts of one target, by the name of its Lease."""

    def __init__(self, api: Api, namespace: str, lease: str) -> None:
        self.api, self.namespace, self.lease = api, namespace, lease

    def all(self) -> list[Receipt]:
        """Return them, oldest first. Refused when one of them cannot be read."""
        found, _ = self.api.list_all(CONFIGMAPS, self.namespace, labels=f"{LOCK}={self.lease}", keep=_kept)
        return [parse(text, f"configmap {name} in {self.namespace}") for _, name, text in sorted(found)]

    def lay_down(self, receipt: Receipt) -> None:
        """Write one down; one that is there already stays as it is."""
        meta: Json = {"name": _name(receipt), "namespace": self.namespace}
        meta["labels"] = {RUN: receipt.run, LOCK: self.lease, **MANAGED}
        body: Json = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "immutable": True}
        body["data"] = {KEY: json.dumps(to_json(receipt), sort_keys=True)}
        try:
            self.api.create(CONFIGMAPS, self.namespace, body)
        except ClusterAway:  # nobody knows whether it was done
            if receipt.id not in (known.id for known in self.all()):
                raise
        except ClusterError as error:
            if error.status != 409:
                raise

    def take_away(self, receipt: Receipt) -> None:
        """Remove one; one that is not there is no error."""
        try:
            self.api.delete(CONFIGMAPS, self.namespace, _name(receipt))
        except ClusterAway:
            if receipt.id in (known.id for known in self.all()):
                raise
        except ClusterError as error:
            if error.status != 404:
                raise


def _kept(item: Json) -> tuple[str, str, str]:
    meta = item["metadata"]
    return str(meta.get("creationTimestamp")), str(meta["name"]), str((item.get("data") or {}).get(KEY))


def _name(receipt: Receipt) -> str:
    if not receipt.id.replace("-", "").isalnum() or receipt.id != receipt.id.lower():
        raise Refused(f"receipt {receipt.id}: cannot be the name of an object in a cluster")
    return f"drill-receipt-{receipt.id}"
