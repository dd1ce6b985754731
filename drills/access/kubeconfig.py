"""Which API server, and as whom: a kubeconfig context, or the service account of the pod this runs in.

The official client's loader is used, with its traps closed: it would write refreshed tokens into the user's file, show
parts of the file (tokens too) in its errors, wait for ever for a credential plugin and only log that it failed, and
leave connections without time-outs to retry on their own.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from kubernetes.client import Configuration
from kubernetes.config import incluster_config
from kubernetes.config.config_exception import ConfigException
from kubernetes.config.dateutil import parse_rfc3339
from kubernetes.config.exec_provider import ExecProvider
from kubernetes.config.kube_config import FileOrData, KubeConfigLoader, KubeConfigMerger

from drills.errors import Refused, UsageError, nearest
from drills.model import Json

DEFAULT_FILE: Final = "~/.kube/config"
PLUGIN_TIMEOUT_S: Final = 30.0
IN_CLUSTER: Final = "in-cluster"


def load(context: str | None) -> tuple[Configuration, str]:
    """Return the client's configuration and the name of the context, "in-cluster" for a pod's own service account.

    A context is looked up in the files of $KUBECONFIG, else in ~/.kube/config; without one it is the current context
    there, and where there is no file the pod's service account. Raises UsageError or Refused, one line, no secrets.
    """
    configuration = Configuration()
    configuration.retries = False  # ours to decide, within a deadline
    files = _files()
    if context is None and not files and in_cluster():
        _load_service_account(configuration)
        return configuration, IN_CLUSTER
    where = os.environ.get("KUBECONFIG") or DEFAULT_FILE
    if not files:
        raise UsageError(f"kubernetes: no kubeconfig at {where}; set KUBECONFIG, or run inside the cluster")
    return configuration, _load_file(configuration, files, where, context)


def in_cluster() -> bool:
    """Whether this process runs in a pod that has a service account."""
    told = os.environ.get(incluster_config.SERVICE_HOST_ENV_NAME)
    return bool(told) and Path(incluster_config.SERVICE_TOKEN_FILENAME).is_file()


def _files() -> list[str]:
    paths = (os.environ.get("KUBECONFIG") or DEFAULT_FILE).split(os.pathsep)
    return [path for path in paths if path and Path(path).expanduser().is_file()]


def _load_service_account(configuration: Configuration) -> None:
    try:
        incluster_config.load_incluster_config(configuration)
    except (ConfigException, OSError) as error:
        raise Refused(f"kubernetes: the pod's service account cannot be used: {error}") from None


def _load_file(configuration: Configuration, files: Sequence[str], where: str, context: str | None) -> str:
    try:
        merged = KubeConfigMerger(os.pathsep.join(files)).config
        names = [str(one["name"]) for one in merged.value.get("contexts") or ()]
        chosen = context or merged.value.get("current-context")
    except Exception as error:  # its texts may hold what the file holds
        raise UsageError(f"kubernetes: {where} is not a kubeconfig ({type(error).__name__})") from None
    if not chosen:
        raise UsageError(f"kubernetes: {where} has no current-context; name one in `kubernetes: context:`")
    if chosen not in names:
        raise UsageError(f"kubernetes: {where} has no context {chosen!r}{nearest(chosen, names)}")
    try:
        loader = _Loader(merged, active_context=chosen, config_base_path=None)
        loader.load_and_set(configuration)
    except Refused:
        raise
    except Exception as error:  # its texts may hold what the file holds
        what = "user or cluster of it is missing, or a file that it names"
        raise UsageError(f"kubernetes: context {chosen} of {where}: {what} ({type(error).__name__})") from None
    return str(chosen)


class _Loader(KubeConfigLoader):  # type: ignore[misc, unused-ignore]
    """The official loader with credential plugins that have a deadline and whose failure is told."""

    def _load_from_exec_plugin(self) -> bool | None:
        if "exec" not in self._user:
            return None
        base = self._get_base_path(self._cluster.path)
        status = _ask_plugin(ExecProvider(self._user["exec"], base, self._cluster))
        if "token" in status:
            self.token = f"Bearer {status['token']}"
        elif "clientCertificateData" in status and "clientKeyData" in status:
            self.cert_file = _file(status, "clientCertificateData")
            self.key_file = _file(status, "clientKeyData")
        else:
            raise Refused("kubernetes: the credential plugin gave neither a token nor a certificate with its key")
        if "expirationTimestamp" in status:
            self.expiry = parse_rfc3339(status["expirationTimestamp"])
        return True


def _file(status: Json, key: str) -> str:
    return str(FileOrData(status, None, data_key_name=key, base64_file_content=False).as_file())


def _ask_plugin(provider: ExecProvider) -> Json:
    """Run a credential plugin; what it prints may be secret and is shown nowhere. Raises Refused."""
    name = Path(str(provider.args[0])).name
    spec: Json = {"interactive": False}
    if provider.cluster:
        spec["cluster"] = provider.cluster.value
    info = {"apiVersion": provider.api_version, "kind": "ExecCredential", "spec": spec}
    env = {**provider.env, "KUBERNETES_EXEC_INFO": json.dumps(info)}
    try:
        process = subprocess.Popen(
            provider.args,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=provider.cwd,
            env=env,
            text=True,
            start_new_session=True,
        )
    except OSError as error:
        raise Refused(f"kubernetes: the credential plugin {name} cannot be run: {error.strerror}") from None
    out = _output(process, name)
    try:
        answer: Any = json.loads(out)
        return dict(answer["status"])
    except (ValueError, LookupError, TypeError):
        raise Refused(f"kubernetes: the credential plugin {name} did not answer with an ExecCredential") from None


def _output(process: subprocess.Popen[str], name: str) -> str:
    try:
        out, _ = process.communicate(timeout=PLUGIN_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(timeout=5)
        if process.stdout is not None:
            process.stdout.close()
        raise Refused(f"kubernetes: the credential plugin {name} did not end within {PLUGIN_TIMEOUT_S:g} s") from None
    if process.returncode != 0:
        raise Refused(
            f"kubernetes: the credential plugin {name} failed with status {process.returncode}; run it by hand, "
            "or sign in again"
        )
    return out
