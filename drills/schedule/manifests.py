"""The manifests of a schedule in a cluster, as YAML that people read before they apply it."""

from __future__ import annotations

import json
import re
from pathlib import Path, PurePosixPath
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from drills import files
from drills.access.kubetypes import Right
from drills.cluster import rbac
from drills.cluster import rights as cluster_rights
from drills.errors import FileProblem, UsageError
from drills.model import Json
from drills.schedule import selector, targetyaml
from drills.schedule.wanted import Wanted, own_playbooks
from drills.units import shown

NAMESPACE: Final = "drills"
FOLDER: Final = "/etc/drills"  # where drill.yaml and experiments/ are in the pod, and its working folder
REPORTS: Final = "/reports"
#: What YAML reads as text without quotes.
_PLAIN = re.compile(r"(?:--)?[A-Za-z/][A-Za-z0-9./_-]*(?::[A-Za-z0-9._-]+)*")
_LABEL = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@-]*")
_WORDS: Final = frozenset({"true", "false", "null", "yes", "no", "on", "off", "y", "n"})


def render(what: Wanted, *, image: str | None = None, namespace: str = NAMESPACE) -> str:
    """Return all objects as one YAML file. Raises UsageError for a target that is in no cluster."""
    spec = what.spec
    if spec.kubernetes is None:
        raise UsageError(f"target '{spec.name}': is in no cluster; add --systemd for a timer on a host")
    helper = spec.kubernetes.helper
    if not _LABEL.fullmatch(namespace):
        raise UsageError(f"--namespace {shown(namespace)}: is no name of a namespace: lower-case letters, digits and -")
    chosen = image or (helper.image if helper else None)
    if image is not None and not _IMAGE.fullmatch(image):
        raise UsageError(f"--image {shown(image)}: is no image; write for example drills:0.1.0")
    if chosen is None:
        raise UsageError(f"target '{spec.name}': no image for the drills; add --image, or kubernetes.helper.image")
    try:
        pods = selector.fields(spec.kubernetes.selector)
    except ValueError as error:
        raise UsageError(f"target '{spec.name}': kubernetes.selector: {error}") from None
    role, nodes = rights(what)
    return str(
        template("kubernetes.yaml.j2").render(
            what=what,
            target=spec.name,
            namespace=namespace,
            service=spec.kubernetes.namespace,
            image=chosen,
            pull_secret=helper.pull_secret if helper and helper.image == chosen else None,
            role=[_flow(rule) for rule in rbac.rules(role)],
            nodes=[_flow(rule) for rule in rbac.rules(nodes)],
            helper_account=helper.service_account if helper else None,
            cluster_role=f"{namespace}:{what.name}",  # it has no namespace, so its name says whose it is
            pods=_flow(pods),
            config=config(what),
            secrets=_secrets(what),
            folder=FOLDER,
            reports=REPORTS,
        )
    )


def rights(what: Wanted) -> tuple[frozenset[Right], frozenset[Right]]:
    """Return the rights that exactly these drills need: in the namespace of the pods, and on nodes."""
    where = what.spec.kubernetes
    assert where is not None
    faults = [planned.fault for plan in what.plans for planned in plan.faults]
    needed = cluster_rights.needed(faults, proxy=where.reach == "proxy", ledger=where.ledger)
    return needed - rbac.NODE, needed & rbac.NODE


def config(what: Wanted) -> list[Json]:
    """Return the files in the pod's working folder: key of the ConfigMap, path, content."""
    rows: list[Json] = [{"key": "drill.yaml", "path": "drill.yaml", "text": targetyaml.text(what.spec)}]
    paths: dict[str, Path] = {}
    for one in what.experiments:  # one may be asked for twice
        if paths.setdefault(one.name, one.document.path) != one.document.path:
            raise UsageError(f"{one.document.path}: has the name of {paths[one.name]}, {one.name!r}; rename one")
    for name, path in paths.items():
        rows.append({"key": f"{name}.yaml", "path": f"experiments/{name}.yaml", "text": _read(path)})
    books = own_playbooks(what.experiments)
    return rows + [{"key": f"playbook.{p.name}", "path": f"playbooks/{p.name}", "text": _read(p)} for p in books]


def _secrets(what: Wanted) -> targetyaml.Secrets:
    found = targetyaml.secrets(what.spec)
    for path in found.files:
        if not path.startswith(("/", "~/")):
            raise UsageError(f"target '{what.spec.name}': secret file {path}: in a pod it needs an absolute path")
    return found


def _read(path: Path) -> str:
    try:
        return files.read(path).decode("utf-8")
    except (OSError, ValueError) as error:
        raise FileProblem(path, f"cannot be read: {error}") from None


def template(name: str) -> Any:
    """Return one of the templates here, whose values go through filters."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=False,  # noqa: S701 - YAML, and every value goes through one of the filters
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"scalar": scalar, "flow": _flow, "block": block, "secret_key": secret_key, "in_pod": in_pod}
    return environment.get_template(name)


def scalar(value: object) -> str:
    """Return a value as one YAML scalar: quoted where it would be read as something else."""
    text = str(value)
    if isinstance(value, int) or (_PLAIN.fullmatch(text) and text.lower() not in _WORDS):
        return text
    return quoted(text)


def quoted(text: str) -> str:
    """Return text in double quotes; what cannot be seen is escaped."""
    shown = json.dumps(text, ensure_ascii=False)
    return "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in shown)


def block(text: str, indent: int) -> str:
    """Return text as a literal block, as it is, so that it can be read in the manifest."""
    lines = text.rstrip("\n").split("\n")
    if not all(line.isprintable() for line in lines):
        return quoted(text)
    mark = "2" if lines[0][:1] in ("", " ") else ""
    return "\n".join([f"|{mark}", *(f"{' ' * indent}{line}" if line else "" for line in lines)])


def secret_key(path: str) -> str:
    """Return the key in the Secret that holds the file of that path."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", PurePosixPath(path).name)


def in_pod(path: str) -> str:
    """Return a secret's path as it is in the pod, whose home is /tmp."""
    return f"/tmp/{path[2:]}" if path.startswith("~/") else path  # noqa: S108 - a folder of the pod's own


def _flow(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{scalar(key)}: {_flow(part)}" for key, part in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_flow, value)) + "]"
    return scalar(value)
