"""drill.yaml → TargetSpec: what is drilled, what was promised to its users, and the limits.

Without a file the target is the embedded lab. Secrets are references, `{env: NAME}` or `{file: PATH}`;
a literal one is refused and never shown. Touches no network.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from drills import yamlfile
from drills.alerttimes import AlertTimes
from drills.errors import UsageError, nearest
from drills.hosts import declared
from drills.lab.config import SLA, LabConfig
from drills.model import Fault, Json, Sla
from drills.targetfile import (
    Alertmanager,
    Automation,
    Degradation,
    GpuHost,
    Kubernetes,
    Limits,
    Prometheus,
    Publish,
    Router,
    Secret,
    TargetFile,
    TargetsFile,
    value_of,
)
from drills.validate import validate
from drills.yamlfile import Document, Key

DEFAULT_FILE: Final = "drill.yaml"
LAB: Final = "lab"

_LAB: Final = LabConfig()
LAB_CACHED: Final = {"header": "x-cache", "value": "hit"}
#: Scrape 1 s, ramp 1 s, evaluation 1 s, `for: 5s`, `group_wait: 0s`.
LAB_ALERT_TIMES: Final = AlertTimes(1.0, 1.0, 1.0, 5.0, 0.0)

_LAB_ONLY = ("entry", "startup", "port_base")
_NOT_LAB = (
    "endpoint",
    "kubernetes",
    "hosts",
    "ledger",
    "router",
    "degradation",
    "prometheus",
    "alertmanager",
    "capacity",
)


@dataclass(frozen=True)
class LabOptions:
    """How the lab is started: where the load enters, an engine's start-up time, the first port, which engine."""

    entry: str = _LAB.entry  # edge | router
    startup_s: float = _LAB.startup_s
    port_base: int = _LAB.port_base
    engine: str = _LAB.engine  # emulator | vllm


@dataclass(frozen=True)
class TargetSpec:
    """A target as it is declared; nothing of it has been contacted."""

    name: str
    kind: str  # lab | kubernetes | hosts
    url: str  # with /v1
    model: str
    sla: Sla
    limits: Limits
    degradation: Degradation
    api_key: Secret | None = None
    alerts_mode: str = "page"
    alerts_labels: Mapping[str, str] = field(default_factory=dict)
    automation: Automation | None = None
    live_load: str | None = None  # PromQL: what users send now, per second; None: by the engines' own counters
    expected_replicas: int | None = None
    capacity_per_replica: float | None = None  # requests per second; the lab measures its own
    alert_times: AlertTimes | None = None  # None: no Prometheus
    lab: LabOptions | None = None
    kubernetes: Kubernetes | None = None
    hosts: tuple[GpuHost, ...] = ()
    ledger: bool = False  # of hosts: a proxy in front of each engine in every run
    router: Router | None = None
    prometheus: Prometheus | None = None
    alertmanager: Alertmanager | None = None
    publish: Publish | None = None
    document: Document | None = field(default=None, compare=False, repr=False)

    @property
    def alert_latency_s(self) -> float | None:
        """Scrape + ramp + evaluation + for; None: no Prometheus."""
        return self.alert_times.latency_s if self.alert_times else None

    @property
    def router_addresses(self) -> list[str]:
        """Return what the router sends from, where that is declared."""
        return list(self.router.addresses) if self.router else []

    def abilities(self) -> frozenset[str]:
        """Return what can be done at this kind of target (names of the protocols in `drills.model`)."""
        found = set()
        if self.kind in (LAB, "kubernetes"):
            found.add("CanDelete")
        if self.kind == "kubernetes":
            found.add("CanEvict")
        if self.kind != "kubernetes":
            found.add("NodeAccess")
        if self.kubernetes and self.kubernetes.helper:
            found |= {"NodeAccess", "HasNetwork", "HasProxies"}
        if self.kubernetes and self.kubernetes.helper and self.kubernetes.helper.service_account:
            found.add("HasGpuNodes")
        if self.kind == LAB:
            found.add("HasProxies")
        if self.kind == LAB or any(host.gpus for host in self.hosts):
            found.add("HasGpus")
        if any(host.gpus for host in self.hosts):
            found.add("HasUnits")
        if self.kind == LAB:
            found.add("HasNetwork")
        if self.kind == "hosts" and self.router_addresses:
            found |= {"HasNetwork", "HasProxies"}
        return frozenset(found)

    def brings_proxies(self, faults: Iterable[Fault]) -> bool:
        """Whether a run puts ledger proxies up: the file asks for them, or a fault needs them; a lab has its own."""
        asked = self.ledger or bool(self.kubernetes and self.kubernetes.ledger)
        return self.kind != LAB and (asked or any("HasProxies" in fault.needs() for fault in faults))

    def service_labels(self) -> dict[str, str]:
        """Return labels of which an alert of this service, if it has them, has these values."""
        if self.kubernetes and not self.alerts_labels:
            return {"namespace": self.kubernetes.namespace}
        return dict(self.alerts_labels)

    def require_secrets(self) -> None:
        """Raise UsageError when a secret that is named cannot be read now: better than in the middle of a run."""
        for secret in (
            self.api_key,
            self.prometheus.bearer if self.prometheus else None,
            self.alertmanager.bearer if self.alertmanager else None,
        ):
            value_of(secret)

    def to_json(self) -> Json:
        """Return the target as plan.json holds it: plain numbers, no secrets."""
        return {
            "name": self.name,
            "kind": self.kind,
            "endpoint": self.url,
            "model": self.model,
            "sla": asdict(self.sla),
            "limits": self.limits.model_dump(mode="json"),
            "degradation": self.degradation.model_dump(mode="json"),
            "expected_replicas": self.expected_replicas,
            "capacity_per_replica": self.capacity_per_replica,
            "live_load": self.live_load,
            "alerts": {
                "mode": self.alerts_mode,
                "latency_s": self.alert_latency_s,
                "labels": dict(self.alerts_labels),
                "service": self.service_labels(),
            }
            | ({"times": asdict(self.alert_times)} if self.alert_times else {}),
            "lab": asdict(self.lab) if self.lab else None,
        } | ({"automation": self.automation.model_dump(mode="json")} if self.automation else {})


@dataclass(frozen=True)
class Targets:
    """All targets of a file, and which one is meant when none is named."""

    specs: Mapping[str, TargetSpec]
    default: str | None

    def pick(self, name: str | None = None) -> TargetSpec:
        """Return the target of that name, or the default. Raises UsageError."""
        wanted = name or self.default
        if wanted is None:
            raise UsageError(f"several targets and no default_target; name one with --target: {', '.join(self.specs)}")
        if wanted not in self.specs:
            raise UsageError(f"unknown target {wanted!r}{nearest(wanted, self.specs)}")
        return self.specs[wanted]


def load_targets(path: Path | None = None, cwd: Path | None = None) -> Targets:
    """Read the targets of that file, else of ./drill.yaml, else the built-in lab. Raises FileProblem."""
    chosen = path or (cwd or Path.cwd()) / DEFAULT_FILE
    if path is None and not chosen.exists():
        return Targets({LAB: lab_target()}, LAB)
    # Relative in error texts, as the user would type it.
    return from_document(yamlfile.read(chosen if path else Path(DEFAULT_FILE) if cwd is None else chosen))


def load_target(name: str | None = None, path: Path | None = None, cwd: Path | None = None) -> TargetSpec:
    """Return one target: by name, or the default one. Raises FileProblem or UsageError (both 64)."""
    return load_targets(path, cwd).pick(name)


def from_document(document: Document) -> Targets:
    """Check a targets file that is already read, every target in it. Raises FileProblem."""
    top = validate(TargetsFile, document.data, document)
    specs = {name: _spec(document, name) for name in top.targets}
    default = top.default_target
    if default is None:
        default = next(iter(specs)) if len(specs) == 1 else LAB if LAB in specs else None
    specs.setdefault(LAB, lab_target())  # always there, as without a file
    if default is not None and default not in specs:
        raise document.problem(("default_target",), f"unknown target '{default}'{nearest(default, specs)}")
    return Targets(specs, default)


def lab_target(file: TargetFile | None = None, name: str = LAB, document: Document | None = None) -> TargetSpec:
    """Return the embedded lab as a target, with a file's options where it has some."""
    file = file or TargetFile(kind="lab")
    base = LabOptions()
    options = LabOptions(
        entry=file.entry or base.entry,
        startup_s=base.startup_s if file.startup is None else file.startup,
        port_base=file.port_base or base.port_base,
    )
    port = options.port_base + (0 if options.entry == "edge" else 1)
    # Straight at the router nothing degrades: the edge does that.
    small: Json = {"fallback_models": (_LAB.fallback_model,), "cached": LAB_CACHED}
    degraded = small if options.entry == "edge" else {}
    limits = file.limits or Limits(environment="lab")
    if "allow_route_faults" not in limits.model_fields_set:
        limits = limits.model_copy(update={"allow_route_faults": True})
    if "environment" not in limits.model_fields_set:
        limits = limits.model_copy(update={"environment": "lab"})
    sla = file.sla
    return TargetSpec(
        name=name,
        kind=LAB,
        url=f"http://127.0.0.1:{port}/v1",
        model=_LAB.model,
        sla=Sla(
            ttft=(sla and sla.ttft) or SLA.ttft,
            e2e=(sla and sla.e2e) or SLA.e2e,
            max_gap=(sla and sla.max_gap) or SLA.max_gap,
            errors=SLA.errors if sla is None or sla.errors is None else sla.errors,
        ),
        limits=limits,
        degradation=Degradation.model_validate(degraded),
        alerts_mode=file.alerts.mode,
        alerts_labels=file.alerts.labels,
        automation=file.automation,
        expected_replicas=_LAB.replicas,
        alert_times=LAB_ALERT_TIMES,
        lab=options,
        publish=file.publish,
        document=document,
    )


def _alert_times(file: TargetFile) -> AlertTimes | None:
    if file.prometheus is None:
        return None
    p, manager = file.prometheus, file.alertmanager
    return AlertTimes(p.scrape, p.ramp, p.evaluation, p.for_, manager.group_wait if manager else None)


def _spec(document: Document, name: str) -> TargetSpec:
    key = ("targets", name)
    file = validate(TargetFile, document.data["targets"][name], document, key)
    if _kind(document, file, key) == LAB:
        _refuse(document, file, key, _NOT_LAB, "the lab brings its own; remove it")
        spec = lab_target(file, name, document)
        _ordered(document, key, spec.sla)
        return spec
    _refuse(document, file, key, _LAB_ONLY, "is for the lab only; remove it")
    _can_be_kept(document, file, key)
    _router_fits(document, file, key)
    for number, word, why in declared.slips(file.hosts):
        raise document.problem((*key, "hosts", number, word), why)
    return _declared(document, file, key, _kind(document, file, key), name)


def _ordered(document: Document, key: Key, sla: Sla) -> Sla:
    """Refuse a promise on the whole answer that is kept no longer than that on its first token."""
    if sla.e2e.value_s < sla.ttft.value_s:
        what = f"the e2e bound of {sla.e2e.value_s:g}s is below the ttft bound of {sla.ttft.value_s:g}s"
        raise document.problem((*key, "sla"), what)
    return sla


def _kind(document: Document, file: TargetFile, key: Key) -> str:
    """Return the declared kind, or the one that its section shows."""
    kind = file.kind or ("kubernetes" if file.kubernetes else "hosts" if file.hosts else None)
    if kind is None:
        raise document.problem(key, "needs `kind: lab`, or a section 'kubernetes' or 'hosts'")
    if kind != LAB and not getattr(file, kind):
        raise document.problem((*key, "kind"), f"kind {kind} needs the section '{kind}'")
    return kind


def _can_be_kept(document: Document, file: TargetFile, key: Key) -> None:
    """Refuse what is asked for and nobody could keep: a safety that does nothing is none."""
    if file.limits and file.limits.stop_if and file.prometheus is None:
        raise document.problem((*key, "limits", "stop_if"), "needs the section 'prometheus', which is asked each time")
    if file.capacity and file.capacity.live and file.prometheus is None:
        raise document.problem((*key, "capacity", "live"), "needs the section 'prometheus', which is asked for it")
    if file.alerts.mode == "observe" and file.alertmanager is None:
        raise document.problem((*key, "alerts", "mode"), "observe needs the section 'alertmanager', which silences")


def _router_fits(document: Document, file: TargetFile, key: Key) -> None:
    """Refuse what tells a router apart at another kind of target, and a ledger of what nobody can tell apart."""
    on_hosts = _kind(document, file, key) == "hosts"
    if on_hosts and file.router and file.router.selector:
        raise document.problem((*key, "router", "selector"), "selects pods; for hosts write addresses: [10.0.0.5]")
    if not on_hosts and file.router and file.router.addresses:
        raise document.problem((*key, "router", "addresses"), "is for hosts; pods of a router are found by selector")
    if not on_hosts and "ledger" in file.model_fields_set:
        raise document.problem((*key, "ledger"), "is for hosts; write kubernetes: {ledger: true}")
    if file.ledger and not (file.router and file.router.addresses):
        raise document.problem((*key, "ledger"), "needs router.addresses: what the router sends is what it holds")


def _refuse(document: Document, file: TargetFile, key: Key, names: tuple[str, ...], why: str) -> None:
    for name in names:
        if name in file.model_fields_set:
            raise document.problem((*key, name), why)


def _declared(document: Document, file: TargetFile, key: Key, kind: str, name: str) -> TargetSpec:
    """Return a target that somebody else runs: endpoint and SLA must be said."""
    endpoint, sla = file.endpoint, file.sla
    if endpoint is None:
        raise document.problem(key, "the key 'endpoint' is missing")
    if sla is None or sla.ttft is None or sla.e2e is None or sla.max_gap is None or sla.errors is None:
        given = sla.model_fields_set if sla else frozenset[str]()
        missing = [word for word in ("ttft", "e2e", "max_gap", "errors") if word not in given]
        raise document.problem((*key, "sla"), f"say what users were promised; missing: {', '.join(missing)}")
    return TargetSpec(
        name=name,
        kind=kind,
        url=endpoint.url,
        model=endpoint.model,
        sla=_ordered(document, key, Sla(sla.ttft, sla.e2e, sla.max_gap, sla.errors)),
        limits=file.limits or Limits(),
        degradation=file.degradation or Degradation(),
        api_key=endpoint.api_key,
        alerts_mode=file.alerts.mode,
        alerts_labels=file.alerts.labels,
        automation=file.automation,
        live_load=file.capacity.live if file.capacity else None,
        expected_replicas=sum(host.role == "primary" for host in file.hosts) if kind == "hosts" else None,
        capacity_per_replica=file.capacity.per_replica if file.capacity else None,
        alert_times=_alert_times(file),
        kubernetes=file.kubernetes,
        hosts=file.hosts,
        ledger=file.ledger,
        router=file.router,
        prometheus=file.prometheus,
        alertmanager=file.alertmanager,
        publish=file.publish,
        document=document,
    )
