"""What users get wrong about a cluster, and what they hear of run and doctor: one sentence, exit code 3 or 64."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from drills.cluster import rbac
from tests.cluster.driving import declare, place, pod_killer, refused, use
from tests.cluster.emulator import Emulator
from tests.lab.drilling import Driller, Ran

SECOND = "other"


@pytest.fixture
def drill(tmp_path: Path, cluster: Path, service: Emulator) -> Driller:
    return pod_killer(tmp_path, cluster, service)


def tell(drill: Driller, experiment: str = "delete") -> tuple[Ran, Ran]:
    """Return how `drill run` and `drill doctor` take it; nothing may be touched by either."""
    path = str(drill.reports.parent / f"{experiment}.yaml")
    where = place(drill)
    return drill("run", path, *where, "--plain"), drill("doctor", *where[:4], "--experiments", path)


def heard(drill: Driller, code: int, says: str, experiment: str = "delete") -> None:
    ran, looked = tell(drill, experiment)
    assert says in refused(ran, code)
    assert ran.events("inject.hit") == [] if ran.folder else True
    assert looked.code == code, looked.out + looked.err
    text = looked.out + looked.err
    assert says in text, text
    assert "Traceback" not in text


@pytest.mark.parametrize(
    ("changes", "code", "says"),
    [
        ({"context": "nowhere"}, 64, "has no context 'nowhere'"),
        ({"namespace": "no-such-namespace"}, 3, "no pod matches app=vllm"),
        ({"selector": '"app=nothing"'}, 3, "no pod matches app=nothing"),
    ],
    ids=["unknown context", "namespace without pods", "selector of nothing"],
)
def test_a_target_that_is_not_there(
    drill: Driller, service: Emulator, changes: dict[str, str], code: int, says: str
) -> None:
    declare(drill.reports.parent, service, **changes)
    heard(drill, code, says)


def test_a_selector_of_two_services(drill: Driller, service: Emulator) -> None:
    container = {"name": "main", "image": "none", "imagePullPolicy": "Never"}
    template = {"metadata": {"labels": {"app": SECOND}}, "spec": {"containers": [container]}}
    spec = {"replicas": 1, "selector": {"matchLabels": {"app": SECOND}}, "template": template}
    service.namespace.apps.create_namespaced_deployment(
        service.namespace.name, {"metadata": {"name": SECOND}, "spec": spec}
    )
    try:
        service.namespace.wait("its pod", lambda: service.namespace.pods(f"app={SECOND}"))
        declare(drill.reports.parent, service, selector=f'"app in (vllm, {SECOND})"')
        heard(drill, 3, "matches pods of several workloads: other, vllm")
    finally:
        service.namespace.apps.delete_namespaced_deployment(SECOND, service.namespace.name)
        service.namespace.wait("its end", lambda: not service.namespace.pods(f"app={SECOND}"))


@pytest.mark.parametrize(
    ("limits", "victims", "says"),
    [
        ('{protect: ["app=vllm"]}', "1", "protected by limits.protect"),
        ("{max_victims: 100%}", "10%", "10% of 3 eligible replicas is none"),
        ("{max_victims: 34%}", "2", "limits.max_victims allows 1 of 3"),
        ("{min_healthy: 3}", "1", "limits.min_healthy is 3"),
    ],
    ids=["protected label", "percentage of nobody", "too many", "too few left"],
)
def test_limits_that_leave_no_victim(drill: Driller, service: Emulator, limits: str, victims: str, says: str) -> None:
    declare(drill.reports.parent, service, more=f"    limits: {limits}\n")
    path = drill.reports.parent / "delete.yaml"
    path.write_text(path.read_text().replace("victims: 1", f"victims: {victims}"))
    heard(drill, 3, says)


def test_a_verb_that_is_forbidden(drill: Driller, service: Emulator, cluster: Path) -> None:
    rights = rbac.needed(["pod-kill delete"], proxy=True) - {("delete", "", "pods")}
    use(drill, cluster, service.token("no-delete", rbac.role("no-delete", service.namespace.name, rights)))
    heard(drill, 3, "delete pods")


def test_a_token_that_has_expired(drill: Driller, service: Emulator, own_node: Path) -> None:
    rights = rbac.needed(["pod-kill delete"], proxy=True)
    token = service.token("expired", rbac.role("expired", service.namespace.name, rights))
    use(drill, own_node, token)
    assert drill("status", *place(drill)).code == 0  # it is good until it expires
    old = resigned(token, own_node.parent / "sa.key", lambda claims: claims.update(exp=int(time.time()) - 60))
    use(drill, own_node, old)
    heard(drill, 3, "the credentials are not accepted (401), they may have expired")
    said = tell(drill)
    assert all(old[-40:] not in ran.out + ran.err for ran in said)


def resigned(token: str, key: Path, change: Callable[[dict[str, object]], None]) -> str:
    """Return the token with other claims, signed as the cluster signs its own."""
    header, payload, _ = token.split(".")
    claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    change(claims)
    signer = serialization.load_pem_private_key(key.read_bytes(), None)
    assert isinstance(signer, rsa.RSAPrivateKey)
    text = f"{header}.{_plain(json.dumps(claims).encode())}"
    return f"{text}.{_plain(signer.sign(text.encode(), padding.PKCS1v15(), hashes.SHA256()))}"


def _plain(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")
