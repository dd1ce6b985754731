"""The shape of drill.yaml: pydantic models, one for each section."""

from __future__ import annotations

import ipaddress
import os
import re
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from drills import windows
from drills.errors import UsageError
from drills.model import Bound
from drills.params import Clocks, Duration, DurationOrZero, Line, Params, Rate, Share, Temperature
from drills.unitnames import is_service, is_unit
from drills.units import QUANTILE_MIN, parse_duration, shown
from drills.validate import SECRET

Port = Annotated[int, Field(ge=1, le=65535)]


class Secret(Params):
    """Where a secret is, never the secret."""

    env: str | None = None
    file: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _reference(cls, value: Any) -> Any:
        """Refuse everything but a reference, without a word of what was found."""
        patterns = {"env": r"[A-Za-z_][A-Za-z0-9_]*", "file": r"[^\x00-\x1f]+"}
        if isinstance(value, dict) and len(value) == 1:
            kind, where = next(iter(value.items()))
            if kind in patterns and isinstance(where, str) and re.fullmatch(patterns[kind], where):
                return value
        raise PydanticCustomError(SECRET, "a secret is never written into this file; write {env: NAME} or {file: PATH}")

    def absolute_file(self) -> str | None:
        """Return the whole path of the file that holds it, None where it is not in a file."""
        return None if self.file is None else str(Path(self.file).expanduser().absolute())

    def value(self) -> str:
        """Return the secret itself. Raises UsageError that names the place, not the secret."""
        if self.env is not None:
            found = os.environ.get(self.env)
            if not found:
                raise UsageError(f"secret: the environment variable {self.env} is not set")
            return _one_word(found, f"the environment variable {self.env}")
        path = Path(str(self.file)).expanduser()
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, ValueError) as exc:
            reason = exc.strerror if isinstance(exc, OSError) else "not UTF-8 text"
            raise UsageError(f"secret: {path} cannot be read: {reason}") from None
        return _one_word(text, str(path))


def _one_word(text: str, where: str) -> str:
    """Return a secret that fits into a header; what is wrong with one is said without it."""
    found = text.strip()
    if not found or not all("!" <= char <= "~" for char in found):
        what = "is empty" if not found else "holds more than one word of printable ASCII: is that the right one?"
        raise UsageError(f"secret: {where} {what}")
    return found


def value_of(secret: Secret | None) -> str | None:
    """Return a secret itself, None where none is declared. Raises UsageError that names its place."""
    return None if secret is None else secret.value()


def _url(value: Any) -> Any:
    """Check an address. It may carry a password, so no error shows it."""
    try:
        parts = urlsplit(value) if isinstance(value, str) else None
        good = parts is not None and parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        parts, good = None, False
    if parts is None or not good or not str(value).isprintable() or " " in str(value):
        raise PydanticCustomError(SECRET, "is not an address; write for example http://host:8000/v1")
    if parts.username is not None or parts.password is not None or parts.query or parts.fragment:
        what = "an address takes no user, password, query or fragment; secrets go into {env: NAME} or {file: PATH}"
        raise PydanticCustomError(SECRET, what)
    return str(value).rstrip("/")


def _path(value: Any) -> Any:
    if isinstance(value, str) and (not value.strip() or not value.isprintable() or value.startswith("-----")):
        raise PydanticCustomError(SECRET, "is not a path; name the file that holds the key")
    return value


def _folder(value: Any) -> Any:
    if isinstance(value, str) and not re.fullmatch(r"(/[A-Za-z0-9_][A-Za-z0-9._-]*){2,}", value):
        raise ValueError(f"{shown(value)} is not a folder of its own; write for example /var/lib/drill")
    return value


def _address(value: Any) -> Any:
    if isinstance(value, str) and not re.fullmatch(r"[A-Za-z0-9._:%-]+", value):
        raise PydanticCustomError(SECRET, "is not a host name or IP address (no user, password or port)")
    return value


def _unit(value: str) -> str:
    if not is_unit(value):
        raise ValueError(f"{shown(value)} is not the name of a unit; write for example vllm.service")
    return value


def _service(value: str) -> str:
    if not is_service(value):
        raise ValueError(f"{shown(value)} is not the name of a service; write for example vllm.service")
    return value


def _ipv4(value: str) -> str:
    try:
        return str(ipaddress.IPv4Address(value))
    except ValueError:
        raise ValueError(f"{shown(value)} is not an IPv4 address; write for example 10.0.0.5") from None


def _bound(value: Any) -> Any:
    """Read `{p99: 1s}`."""
    if isinstance(value, Bound):
        return value
    if not isinstance(value, dict) or len(value) != 1:
        raise ValueError("one quantile and its bound are expected; write for example {p99: 1s}")
    name, bound = next(iter(value.items()))
    match = re.fullmatch(r"p([0-9]{1,2}(?:\.[0-9]{1,3})?)", name)
    quantile = float(match[1]) / 100 if match else 0.0
    if not QUANTILE_MIN <= quantile < 1:
        raise ValueError(f"{shown(name)} is not a quantile from p1 to below p100; write for example p99")
    return Bound(round(quantile, 6), parse_duration(bound))


Url = Annotated[str, BeforeValidator(_url)]
KeyPath = Annotated[str, BeforeValidator(_path)]
FolderPath = Annotated[str, BeforeValidator(_folder)]
Address = Annotated[str, BeforeValidator(_address)]
UnitName = Annotated[Line, AfterValidator(_unit)]
QuantileBound = Annotated[Bound, BeforeValidator(_bound)]


def _promises(errors: float) -> float:
    if errors >= 1:
        raise ValueError("promises nothing, so nothing can break it; write for example 1%")
    return errors


class Endpoint(Params):
    """Where the load goes."""

    url: Url
    model: Line
    api_key: Secret | None = None


class SlaFile(Params):
    """What users were promised; the lab fills in what is not said."""

    ttft: QuantileBound | None = None
    e2e: QuantileBound | None = None
    max_gap: QuantileBound | None = None
    errors: Annotated[Share, AfterValidator(_promises)] | None = None


class Helper(Params):
    """The pod that works on a node for a drill: an image with this package, iptables, iproute2 and util-linux."""

    image: Line
    pull_secret: Line | None = None
    service_account: Line | None = None  # for gpu-reset: may get and patch nodes, so that a node can be put back there


class Kubernetes(Params):
    """Where the replicas are in a cluster."""

    context: Line | None = None
    namespace: Line
    selector: Line
    container: Line | None = None
    port: Port = 8000
    fallback_selector: Line | None = None
    fallback_port: Port | None = None  # None: as `port`
    reach: Literal["auto", "direct", "proxy"] = "auto"
    helper: Helper | None = None
    ledger: bool = False  # put a ledger proxy in front of each engine for the time of a run
    nvidia_smi: Line | None = None  # its path on the nodes; None: where drivers, the GPU operator and GKE put it

    @model_validator(mode="after")
    def _ledger_has_a_place(self) -> Self:
        if self.ledger and self.helper is None:
            raise ValueError("ledger: true needs `helper`: the proxies run in it")
        return self


class Jump(Params):
    """The host through which another one is reached; what is not said is as there."""

    address: Address
    user: Line | None = None
    key: KeyPath | None = None
    ssh_port: Port = 22


class SshTimeouts(Params):
    """How long each step may take: to connect, to be greeted, to be let in, and a command that should take no time."""

    connect: Duration = 10.0
    banner: Duration = 10.0
    auth: Duration = 15.0
    command: Duration = 15.0


class GpuHost(Params):
    """A GPU host that is reached over SSH."""

    name: Line
    address: Address
    user: Line
    key: KeyPath | None = None  # None: a key of the SSH agent
    unit: Annotated[Line, AfterValidator(_service)]
    role: Literal["primary", "fallback"] = "primary"
    port: Port = 8000
    ssh_port: Port = 22
    jump: Jump | None = None
    known_hosts: KeyPath | None = None  # None: the user's own file and the machine's
    sudo: bool = True  # use `sudo -n` where the user is not root
    state_dir: FolderPath = "/var/lib/drill"
    timeouts: SshTimeouts = SshTimeouts()
    gpus: Literal["all"] | tuple[Line, ...] = "all"
    clocks: Clocks | None = None  # the lock that the site itself has set on these GPUs; None: nobody said
    pause: tuple[UnitName, ...] = ()  # units that hold GPUs, serve nobody, and may be stopped while one is reset


class Router(Params):
    """The router in front of the replicas."""

    kind: Literal["vllm-router", "other"]
    metrics: Url | None = None
    selector: Line | None = None  # of its pods, in the namespace of the replicas
    addresses: Annotated[tuple[Annotated[Line, AfterValidator(_ipv4)], ...], Field(max_length=50)] = ()  # it sends from


class CachedHeader(Params):
    """The response header that marks an answer from a cache."""

    header: Line
    value: Line


class Degradation(Params):
    """How a degraded answer is told from a full one."""

    fallback_models: tuple[Line, ...] = ()
    cached: CachedHeader | None = None


class Prometheus(Params):
    """Where metrics are, and how long an alert takes to fire at best."""

    url: Url
    bearer: Secret | None = None
    scrape: Duration = 15.0
    ramp: DurationOrZero = 0.0
    evaluation: Duration = 15.0
    for_: Annotated[DurationOrZero, Field(alias="for")] = 0.0


class Alertmanager(Params):
    """Where notifications are, and how long it waits for more alerts of a group before it tells of the first."""

    url: Url
    bearer: Secret | None = None
    group_wait: DurationOrZero = 30.0


class Automation(Params):
    """What is automated for a GPU that gets hot: above which temperature, and by what it acts."""

    hot_above: Temperature
    acts_by: Literal["shed", "move"]


class Alerts(Params):
    """Whether a drill's alerts page people, or are silenced; `labels` tell this service's alerts from others'."""

    mode: Literal["page", "observe"] = "page"
    labels: dict[Line, Line] = Field(default_factory=dict)


def _folder_named(words: tuple[str, ...]) -> tuple[str, ...]:
    """Refuse a command that says nowhere which folder is meant, and one that carries a password."""
    if not any(FOLDER_WORD in word for word in words):
        raise ValueError(f"says nowhere {FOLDER_WORD}, which becomes the folder of the report")
    if any(re.search(r"://[^/\s]*:[^/\s]*@", word) for word in words):
        raise PydanticCustomError(
            SECRET, "a command takes no password; put it into `env`, as {env: NAME} or {file: PATH}"
        )
    return words


#: In a command of `publish`: what stands for the folder of a report, and for its name.
FOLDER_WORD, NAME_WORD = "{folder}", "{name}"


class Publish(Params):
    """A command that takes each report somewhere: words, no shell; `env` are secrets that it alone is given."""

    run: Annotated[tuple[Line, ...], Field(min_length=1), AfterValidator(_folder_named)]
    env: dict[Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")], Secret] = Field(default_factory=dict)
    timeout: Duration = 300.0


class Capacity(Params):
    """What one replica can serve, for the headroom rule; `live` is PromQL for what users send now, per second."""

    per_replica: Rate | None = None
    live: Line | None = None


def _window(value: Any) -> Any:
    if isinstance(value, str):
        windows.parse_window(value)
    return value


def _freeze(value: Any) -> Any:
    if isinstance(value, str):
        windows.parse_freeze(value)
    return value


def _label(value: Any) -> Any:
    if isinstance(value, str) and not re.fullmatch(r"[A-Za-z0-9_./-]+=[A-Za-z0-9_.-]*", value):
        raise ValueError(f"{shown(value)} is not a label; write for example tier=critical")
    return value


class Limits(Params):
    """What a drill may not do at this target."""

    environment: Literal["lab", "development", "test", "staging", "production"] = "staging"
    min_healthy: Annotated[int, Field(ge=0)] = 1
    max_victims: Share = 0.34
    allow_route_faults: bool = False
    windows: tuple[Annotated[Line, BeforeValidator(_window)], ...] = ()
    freeze: tuple[Annotated[Line, BeforeValidator(_freeze)], ...] = ()
    protect: tuple[Annotated[Line, BeforeValidator(_label)], ...] = ()
    stop_if: tuple[Line, ...] = ()
    accept_power_cycle: bool = False  # in production, for gpu-reset: a reset may end in one

    @model_validator(mode="after")
    def _production_can_stop(self) -> Self:
        if self.environment == "production" and not (self.windows and self.stop_if):
            raise ValueError("environment production needs 'windows' and 'stop_if'")
        return self


class TargetFile(Params):
    """One target. Which keys it needs depends on its kind."""

    kind: Literal["lab", "kubernetes", "hosts"] | None = None
    entry: Literal["edge", "router"] | None = None
    startup: DurationOrZero | None = None
    port_base: Annotated[int, Field(ge=1024, le=65000)] | None = None
    endpoint: Endpoint | None = None
    sla: SlaFile | None = None
    kubernetes: Kubernetes | None = None
    hosts: tuple[GpuHost, ...] = ()
    ledger: bool = False  # of hosts: put a ledger proxy in front of each engine for the time of a run
    router: Router | None = None
    degradation: Degradation | None = None
    prometheus: Prometheus | None = None
    alertmanager: Alertmanager | None = None
    alerts: Alerts = Alerts()
    automation: Automation | None = None
    capacity: Capacity | None = None
    limits: Limits | None = None
    publish: Publish | None = None


def _name(value: Any) -> Any:
    if isinstance(value, str) and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", value):
        raise ValueError(f"{shown(value)} is not a name of a target: letters, digits, . _ -")
    return value


class TargetsFile(Params):
    """drill.yaml."""

    default_target: Line | None = None
    targets: Annotated[dict[Annotated[str, BeforeValidator(_name)], Any], Field(min_length=1)]
