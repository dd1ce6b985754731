"""Writes down the pods of its namespace for Prometheus's file_sd_configs, labelled as kubernetes_sd_configs would."""

import json
import os
import ssl
import time
import urllib.request
from pathlib import Path
from typing import Any

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
OUT = Path("/discovered/pods.json")
INTERVAL_S, TIMEOUT_S = 0.5, 5.0


def found() -> list[dict[str, Any]]:
    """Return a target group for each port of each container of each pod that has an address."""
    server = f"https://{os.environ['KUBERNETES_SERVICE_HOST']}:{os.environ['KUBERNETES_SERVICE_PORT']}"
    url = f"{server}/api/v1/namespaces/{(ACCOUNT / 'namespace').read_text()}/pods"
    asked = urllib.request.Request(url, headers={"Authorization": f"Bearer {(ACCOUNT / 'token').read_text()}"})
    context = ssl.create_default_context(cafile=str(ACCOUNT / "ca.crt"))
    with urllib.request.urlopen(asked, timeout=TIMEOUT_S, context=context) as answer:
        pods = json.load(answer)["items"]
    return [
        group(pod, port)
        for pod in pods
        if pod["status"].get("podIP")
        for container in pod["spec"]["containers"]
        for port in container.get("ports", ())
    ]


def group(pod: dict[str, Any], port: dict[str, Any]) -> dict[str, Any]:
    """Return the target group of one port."""
    labels = {f"__meta_kubernetes_pod_label_{key}": value for key, value in pod["metadata"].get("labels", {}).items()}
    labels = {key.replace("-", "_").replace(".", "_").replace("/", "_"): value for key, value in labels.items()}
    labels["__meta_kubernetes_pod_name"] = pod["metadata"]["name"]
    labels["__meta_kubernetes_pod_phase"] = pod["status"]["phase"]
    labels["__meta_kubernetes_pod_container_port_name"] = port.get("name", "")
    return {"targets": [f"{pod['status']['podIP']}:{port['containerPort']}"], "labels": labels}


while True:
    try:
        text = json.dumps(found())
    except OSError as error:
        print(error, flush=True)
    else:
        if not OUT.exists() or OUT.read_text() != text:
            OUT.with_suffix(".new").write_text(text)
            OUT.with_suffix(".new").replace(OUT)
    time.sleep(INTERVAL_S)
