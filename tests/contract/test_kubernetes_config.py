"""Credentials: contexts, plugins, a pod's service account; what is wrong with them is one line without a secret."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from kubernetes.config import incluster_config

from drills.access import kubeconfig
from drills.access.kubernetes import connect
from drills.errors import DrillError, Refused, UsageError
from tests.contract.kube_talk import TOKEN
from tests.contract.kube_talk import kubeconfig as write

SERVER = "http://127.0.0.1:1"


def one_line(error: DrillError) -> str:
    text = str(error)
    assert len(text.splitlines()) == 1
    assert TOKEN not in text
    return text


def failure(kind: type[DrillError], context: str | None = None) -> str:
    with pytest.raises(kind) as caught:
        connect(context)
    return one_line(caught.value)


def plugin(folder: Path, *argv: str) -> dict[str, object]:
    return {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": argv[0], "args": list(argv[1:])}}


def credential(**status: str) -> str:
    """Return the text of a program that answers as a plugin does."""
    said = {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": status}
    return f"print({json.dumps(json.dumps(said))})"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def test_without_any_credentials_it_says_where_it_looked(home: Path) -> None:
    assert "~/.kube/config" in failure(UsageError)


def test_the_current_context_is_taken(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(write(home, SERVER)))
    api = connect()
    assert (api.name, api.server) == ("test", SERVER)
    assert api.headers() == {"authorization": f"Bearer {TOKEN}"}


def test_the_environment_is_read_when_it_is_asked_and_not_before(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(write(home, SERVER)))
    connect()
    monkeypatch.setenv("KUBECONFIG", str(home / "absent"))
    assert str(home / "absent") in failure(UsageError)


def test_an_unknown_context_names_the_nearest(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(write(home, SERVER, context="staging")))
    assert "did you mean 'staging'?" in failure(UsageError, "stagin")


@pytest.mark.parametrize("text", ["", "- a\n", "a: [", f"users: {TOKEN}\n", '{"contexts": [{"nome": 1}]}'])
def test_a_file_that_is_no_kubeconfig_is_named(home: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    (home / "broken").write_text(text)
    monkeypatch.setenv("KUBECONFIG", str(home / "broken"))
    assert str(home / "broken") in failure(UsageError)


def test_a_context_whose_cluster_is_missing_shows_no_token(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(home, SERVER)
    content = json.loads(path.read_text())
    del content["clusters"][0]["cluster"]
    content["users"][0]["user"]["auth-provider"] = {"name": "gcp"}
    path.write_text(json.dumps(content))
    monkeypatch.setenv("KUBECONFIG", str(path))
    assert "context test" in failure(UsageError)


def test_the_users_file_is_never_written(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(home, SERVER)
    monkeypatch.setenv("KUBECONFIG", str(path))
    path.chmod(0o400)
    before = path.read_bytes()
    connect().headers()
    assert path.read_bytes() == before


# ---- plugins ---------------------------------------------------------------------------------------------


def test_a_plugin_gives_the_token(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    user = plugin(home, sys.executable, "-c", credential(token=TOKEN))
    monkeypatch.setenv("KUBECONFIG", str(write(home, SERVER, user=user)))
    assert connect().headers() == {"authorization": f"Bearer {TOKEN}"}


def test_a_token_that_runs_out_is_asked_for_again(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    count = home / "count"
    program = f"open({str(count)!r}, 'a').write('x'); " + credential(
        token=TOKEN, expirationTimestamp="2001-01-01T00:00:00Z"
    )
    user = plugin(home, sys.executable, "-c", program)
    monkeypatch.setenv("KUBECONFIG", str(write(home, SERVER, user=user)))
    connect().headers()
    assert len(count.read_text()) >= 2


def test_a_plugin_that_fails_is_told_without_what_it_said(home: Path, monkeypatch: pytest.MonkeyPatch,
                                                          capfd: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    user = plugin(home, sys.executable, "-c", f"import sys; sys.exit({TOKEN!r})")
    monkeypatch.setenv("KUBECONFIG", str(write(home, SERVER, user=user)))
    assert "failed with status 1" in failure(Refused)
    out, err = capfd.readouterr()
    assert out + err == ""


def test_a_plugin_that_is_not_there_is_named(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(write(home, SERVER, user=plugin(home, "no-such-plugin-here"))))
    assert "no-such-plugin-here" in failure(Refused)


@pytest.mark.parametrize("program", ["print('hello')", "print('{\"status\": 3}')", credential(other="x")])
def test_a_plugin_that_talks_nonsense_is_told(home: Path, monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    user = plugin(home, sys.executable, "-c", program)
    monkeypatch.setenv("KUBECONFIG", str(write(home, SERVER, user=user)))
    assert "credential plugin" in failure(Refused)


def test_a_plugin_that_does_not_end_is_ended(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kubeconfig, "PLUGIN_TIMEOUT_S", 0.5)
    user = plugin(home, "sh", "-c", "sleep 600 & sleep 600")
    monkeypatch.setenv("KUBECONFIG", str(write(home, SERVER, user=user)))
    assert "did not end within 0.5 s" in failure(Refused)


# ---- in a pod --------------------------------------------------------------------------------------------


@pytest.fixture
def pod(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make this process look as if it ran in a pod; returns the token's file."""
    token, ca = home / "token", home / "ca.crt"
    token.write_text(TOKEN)
    ca.write_text("certificate")
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(token))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(ca))
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    return token


def test_in_a_pod_its_service_account_is_used(pod: Path) -> None:
    configuration, name = kubeconfig.load(None)
    assert (name, configuration.host) == ("in-cluster", "https://10.96.0.1:443")


def test_a_context_that_is_named_is_never_replaced_by_the_service_account(pod: Path) -> None:
    with pytest.raises(UsageError):
        kubeconfig.load("staging")


def test_a_pod_without_a_certificate_says_so(pod: Path) -> None:
    pod.with_name("ca.crt").unlink()
    with pytest.raises(Refused) as caught:
        kubeconfig.load(None)
    assert "service account" in one_line(caught.value)
