"""drill.yaml: what is drilled, and no secret in it or in any word about it."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from drills import target, windows
from drills.errors import EXIT_USAGE, FileProblem, UsageError
from drills.lab.config import SLA
from drills.model import Bound
from drills.targetfile import Secret

CANARY = "sk-canary-7Q"
SHIPPED = Path(__file__).parents[2] / "drill.yaml"

GOOD = """\
default_target: staging
targets:
  small: {kind: lab, entry: router, startup: 3s, port_base: 19000, sla: {ttft: {p95: 500ms}}}
  staging:
    endpoint: {url: https://llm.staging.example/v1, model: qwen2.5-7b-instruct, api_key: {env: LLM_API_KEY}}
    sla: {ttft: {p99: 1s}, e2e: {p99: 12s}, max_gap: {p99: 2s}, errors: 1%}
    kubernetes: {context: staging, namespace: llm, selector: "app=vllm", container: vllm, port: 8000}
    hosts:
      - {name: gpu-1, address: 10.0.0.7, user: drill, key: ~/.ssh/drill, unit: vllm.service, port: 8000, gpus: all}
    router: {kind: vllm-router, metrics: http://router:29000/metrics}
    degradation: {fallback_models: [qwen2.5-1.5b-instruct], cached: {header: x-cache, value: hit}}
    prometheus: {url: http://prometheus:9090, bearer: {env: PROM_TOKEN}, scrape: 15s, evaluation: 10s, for: 30s}
    alertmanager: {url: http://alertmanager:9093}
    alerts: {mode: page}
    capacity: {per_replica: 12/s}
    limits:
      environment: staging
      min_healthy: 1
      max_victims: 34%
      windows: ["Mon-Fri 10:00-16:00 Asia/Shanghai"]
      freeze: ["2026-12-24..2027-01-02", 2027-05-01]
      protect: ["tier=critical"]
      stop_if: []
"""


def load(tmp_path: Path, text: str) -> target.Targets:
    path = tmp_path / "drill.yaml"
    path.write_text(text)
    return target.load_targets(path)


def problem(tmp_path: Path, text: str) -> str:
    with pytest.raises(FileProblem) as caught:
        load(tmp_path, text)
    assert caught.value.exit_code == EXIT_USAGE
    assert str(caught.value).isprintable()
    return str(caught.value).removeprefix(f"{tmp_path}/")


# ---- the lab ----------------------------------------------------------------------------------------


def test_without_a_file_it_is_the_lab(tmp_path: Path) -> None:
    spec = target.load_target(cwd=tmp_path)
    assert (spec.name, spec.kind, spec.url, spec.model) == ("lab", "lab", "http://127.0.0.1:18000/v1", "lab-chat")
    assert (spec.sla.ttft, spec.sla.e2e, spec.sla.max_gap) == (Bound(0.99, 1), Bound(0.99, 6), Bound(0.99, 2))
    assert spec.sla.errors == 0.01
    assert (spec.limits.environment, spec.limits.allow_route_faults, spec.limits.max_victims) == ("lab", True, 0.34)
    assert spec.abilities() == {"CanDelete", "HasGpus", "HasNetwork", "HasProxies", "NodeAccess"}


def test_the_shipped_file_is_the_built_in_lab() -> None:
    assert target.load_target(path=SHIPPED) == target.lab_target()


def test_the_file_in_the_working_folder_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "drill.yaml").write_text("targets:\n  lab: {kind: lba}\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        FileProblem, match=r"^drill\.yaml:2: targets\.lab\.kind: unknown value 'lba'; did you mean 'lab'"
    ):
        target.load_target()


def test_lab_options(tmp_path: Path) -> None:
    spec = load(tmp_path, GOOD).pick("small")
    assert spec.lab == target.LabOptions(entry="router", startup_s=3.0, port_base=19000)
    assert spec.url == "http://127.0.0.1:19001/v1"
    assert spec.sla.ttft == Bound(0.95, 0.5)
    assert spec.sla.e2e == SLA.e2e
    assert spec.degradation.fallback_models == ()  # the edge degrades, and the load goes past it


def test_the_lab_is_always_there(tmp_path: Path) -> None:
    assert load(tmp_path, GOOD).pick("lab") == target.lab_target()


# ---- other kinds ------------------------------------------------------------------------------------


def test_a_declared_target_is_read_whole(tmp_path: Path) -> None:
    spec = load(tmp_path, GOOD).pick()
    assert (spec.name, spec.kind) == ("staging", "kubernetes")
    assert spec.api_key == Secret(env="LLM_API_KEY")
    assert spec.sla.e2e == Bound(0.99, 12.0)
    assert spec.hosts[0].gpus == "all"
    assert spec.capacity_per_replica == 12.0
    assert spec.alert_latency_s == 55.0
    assert spec.limits.freeze == ("2026-12-24..2027-01-02", "2027-05-01")
    assert spec.expected_replicas is None


def test_hosts_can_be_drilled(tmp_path: Path) -> None:
    spec = load(tmp_path, GOOD.replace("  staging:\n", "  staging:\n    kind: hosts\n")).pick("staging")
    assert (spec.kind, spec.expected_replicas) == ("hosts", 1)
    assert "NodeAccess" in spec.abilities()
    assert not {"CanDelete", "CanEvict"} & spec.abilities()


HOSTS = """
targets:
  metal:
    endpoint: {url: "https://llm.example/v1", model: m}
    sla: {ttft: {p99: 1s}, e2e: {p99: 12s}, max_gap: {p99: 2s}, errors: 1%}
    hosts:
      - {name: gpu-1, address: 10.0.0.7, user: drill, unit: vllm.service}
    ROUTER
"""


def metal(tmp_path: Path, router: str) -> target.TargetSpec:
    return load(tmp_path, HOSTS.replace("ROUTER", router)).pick("metal")


def test_hosts_need_to_know_the_router_before_its_traffic_is_touched(tmp_path: Path) -> None:
    shaped = {"HasNetwork", "HasProxies"}
    assert not shaped & metal(tmp_path, "router: {kind: other}").abilities()
    known = metal(tmp_path, "router: {kind: other, addresses: [10.0.0.5]}\n    ledger: true")
    assert shaped <= known.abilities()
    assert known.ledger
    assert not known.to_json().get("ledger"), "where a proxy stands is no promise to anybody"


@pytest.mark.parametrize(
    ("router", "said"),
    [
        ("router: {kind: other, addresses: [router-1]}", "'router-1' is not an IPv4 address; write for example 10"),
        ("router: {kind: other, selector: app=router}", "selects pods; for hosts write addresses: [10.0.0.5]"),
        ("ledger: true", "needs router.addresses: what the router sends is what it holds"),
    ],
)
def test_a_router_that_does_not_fit(tmp_path: Path, router: str, said: str) -> None:
    assert said in problem(tmp_path, HOSTS.replace("ROUTER", router))


def test_what_is_for_hosts_only(tmp_path: Path) -> None:
    said = problem(tmp_path, GOOD.replace("  staging:\n", "  staging:\n    ledger: true\n"))
    assert "ledger: is for hosts; write kubernetes: {ledger: true}" in said


def test_a_cluster_can_be_drilled(tmp_path: Path) -> None:
    spec = load(tmp_path, GOOD).pick("staging")
    assert {"CanDelete", "CanEvict"} <= spec.abilities()


@pytest.mark.parametrize("name", ["LLM_API_KEY", "PROM_TOKEN"])
def test_a_secret_that_is_not_there_is_said_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    for other in ("LLM_API_KEY", "PROM_TOKEN"):
        monkeypatch.setenv(other, CANARY)
    spec = load(tmp_path, GOOD).pick("staging")
    spec.require_secrets()
    monkeypatch.delenv(name)
    with pytest.raises(UsageError, match=f"^secret: the environment variable {name} is not set$"):
        spec.require_secrets()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "is empty"),
        ("  \n", "is empty"),
        (f"{CANARY} x", "more than one word"),
        (f"{CANARY}\nX: y", "more than one"),
    ],
)
def test_a_secret_that_fits_into_no_header_is_refused_without_being_shown(
    tmp_path: Path, content: str, says: str
) -> None:
    path = tmp_path / "key"
    path.write_text(content)
    with pytest.raises(UsageError, match=says) as caught:
        Secret(file=str(path)).value()
    assert CANARY not in str(caught.value)
    path.write_text(f"{CANARY}\n")
    assert Secret(file=str(path)).value() == CANARY


def test_an_unknown_target_gets_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"^unknown target 'stagin'; did you mean 'staging'\?$"):
        load(tmp_path, GOOD).pick("stagin")


def test_several_targets_and_no_default(tmp_path: Path) -> None:
    text = GOOD.replace("default_target: staging\n", "")
    with pytest.raises(UsageError, match="several targets and no default_target; name one with --target: small, stag"):
        load(tmp_path, text).pick()


BAD: list[tuple[str, str, str]] = [
    ("default_target: staging", "default_target: stagng", "1: default_target: unknown target 'stagng'; did you mean"),
    (
        "default_target: staging",
        "default: staging",
        "1: default: unknown key 'default'; did you mean 'default_target'?",
    ),
    ("kind: lab", "kind: lba", "3: targets.small.kind: unknown value 'lba'; did you mean 'lab'?"),
    ("entry: router", "entry: rooter", "3: targets.small.entry: unknown value 'rooter'; did you mean 'router'?"),
    ("startup: 3s", "startup: 3", "3: targets.small.startup: duration 3 has no unit; write for example 3s"),
    (
        "port_base: 19000",
        "port_base: 80",
        "3: targets.small.port_base: greater than or equal to 1024; found a number 80",
    ),
    ("{p95: 500ms}", "500ms", "3: targets.small.sla.ttft: one quantile and its bound are expected; write for example"),
    ("{p95: 500ms}", "{p100: 500ms}", "3: targets.small.sla.ttft: 'p100' is not a quantile from p1 to below p100;"),
    ("{p95: 500ms}", "{p95: 500}", "3: targets.small.sla.ttft: duration 500 has no unit; write for example 500s"),
    ("entry: router", "endpoint: {url: http://x/v1, model: m}", "3: targets.small.endpoint: the lab brings its own;"),
    (
        "    sla: {ttft: {p99: 1s}, e2e: {p99: 12s}, max_gap: {p99: 2s}, errors: 1%}\n",
        "",
        "4: targets.staging.sla: say",
    ),
    (", errors: 1%", "", "6: targets.staging.sla: say what users were promised; missing: errors"),
    ("errors: 1%", "errors: 101%", "6: targets.staging.sla.errors: percentage '101%' is over 100%"),
    (
        "selector:",
        "selektor:",
        "7: targets.staging.kubernetes.selektor: unknown key 'selektor'; did you mean 'selector'?",
    ),
    ("port: 8000}", "port: 80000}", "7: targets.staging.kubernetes.port: less than or equal to 65535; found a number"),
    ("namespace: llm, ", "", "7: targets.staging.kubernetes: the key 'namespace' is missing"),
    ("unit: vllm.service", "unti: vllm.service", "9: targets.staging.hosts[0].unti: unknown key 'unti'; did you mean"),
    ("kind: vllm-router", "kind: vlm-router", "10: targets.staging.router.kind: unknown value 'vlm-router'; did you"),
    ("for: 30s", "for: 30", "12: targets.staging.prometheus.for: duration 30 has no unit; write for example 30s"),
    ("mode: page", "mode: pages", "14: targets.staging.alerts.mode: unknown value 'pages'; did you mean 'page'?"),
    (
        "per_replica: 12/s",
        "per_replica: 12",
        "15: targets.staging.capacity.per_replica: rate 12 has no unit; write for",
    ),
    (
        "environment: staging",
        "environment: prod",
        "17: targets.staging.limits.environment: unknown value 'prod'; did y",
    ),
    (
        "environment: staging",
        "environment: production",
        "16: targets.staging.limits: environment production needs 'win",
    ),
    (
        "max_victims: 34%",
        "max_victims: 1",
        "19: targets.staging.limits.max_victims: percentage 1 has no unit; write for",
    ),
    (
        "min_healthy: 1",
        "min_healty: 1",
        "18: targets.staging.limits.min_healty: unknown key 'min_healty'; did you mean",
    ),
    ("Mon-Fri", "Mon-Fry", "20: targets.staging.limits.windows[0]: unknown day 'Fry'; did you mean 'Fri'?"),
    ("16:00", "26:00", "20: targets.staging.limits.windows[0]: '26:00' is not a time of day; write for example 10:00"),
    (
        "Asia/Shanghai",
        "Asia/Shanghi",
        "20: targets.staging.limits.windows[0]: unknown time zone 'Asia/Shanghi'; did yo",
    ),
    (
        "2027-01-02",
        "2026-01-02",
        "21: targets.staging.limits.freeze[0]: '2026-12-24..2026-01-02' ends before it begins",
    ),
    (
        "tier=critical",
        "tier",
        "22: targets.staging.limits.protect[0]: 'tier' is not a label; write for example tier=cri",
    ),
]


@pytest.mark.parametrize(("old", "new", "message"), BAD, ids=[(new or old)[:40] for old, new, _ in BAD])
def test_refuses(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in GOOD
    found = problem(tmp_path, GOOD.replace(old, new, 1))
    if "production" in new:
        found = problem(tmp_path, GOOD.replace(old, new, 1).replace("      stop_if: []\n", ""))
    assert found.startswith(f"drill.yaml:{message}"), found


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("targets: {}\n", "1: targets: is empty; at least one is needed"),
        ("targets:\n", "1: targets: a map is expected, found nothing"),
        ("targets:\n  a:\n", "2: targets.a: a map is expected, found nothing"),
        ("targets:\n  a: {}\n", "2: targets.a: needs `kind: lab`, or a section 'kubernetes' or 'hosts'"),
        ("targets:\n  a: {kind: hosts}\n", "2: targets.a.kind: kind hosts needs the section 'hosts'"),
        (
            "targets:\n  a: {kind: kubernetes, kubernetes: {namespace: n, selector: s}}\n",
            "2: targets.a: the key 'endpoint",
        ),
        ("targets:\n  a/b: {kind: lab}\n", "2: targets.a/b: 'a/b' is not a name of a target: letters, digits, . _ -"),
        ("targets:\n  a: {kind: lab}\n  a: {kind: lab}\n", "3: a: is there twice; remove one"),
    ],
)
def test_refuses_the_whole(tmp_path: Path, text: str, message: str) -> None:
    found = problem(tmp_path, text)
    assert found.startswith(f"drill.yaml:{message}"), found


# ---- secrets ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("api_key: {env: LLM_API_KEY}", f"api_key: {CANARY}"),
        ("api_key: {env: LLM_API_KEY}", f"api_key: {{value: {CANARY}}}"),
        ("api_key: {env: LLM_API_KEY}", f"api_key: {{{CANARY}: }}"),
        ("api_key: {env: LLM_API_KEY}", f"api_key: [{CANARY}]"),
        ("api_key: {env: LLM_API_KEY}", f"api_key: {{env: {CANARY}}}"),
        ("api_key: {env: LLM_API_KEY}", f"api_key: {{env: A, file: {CANARY}}}"),
        ("api_key: {env: LLM_API_KEY}", f"api_token: {CANARY}"),
        ("api_key: {env: LLM_API_KEY}", f'api_key: {{file: "{CANARY}\\n"}}'),
        ("bearer: {env: PROM_TOKEN}", f"bearer: Bearer {CANARY}"),
        ("url: https://llm.staging", f"url: https://user:{CANARY}@llm.staging"),
        ("url: https://llm.staging.example/v1", f"url: https://llm.staging.example/v1?key={CANARY}"),
        ("url: https://llm.staging.example/v1", f"url: ftp://{CANARY}"),
        ("url: http://alertmanager:9093", f"url: http://{CANARY}@alertmanager:9093"),
        ("alertmanager: {url: http://alertmanager:9093}", f"alertmanager: http://u:{CANARY}@alertmanager:9093"),
        ("key: ~/.ssh/drill", f'key: "-----BEGIN OPENSSH PRIVATE KEY-----\\n{CANARY}"'),
        ("address: 10.0.0.7", f"address: root:{CANARY}@10.0.0.7"),
        ("user: drill", f"user: drill, password: {CANARY}"),
    ],
)
def test_a_literal_secret_is_refused_and_not_repeated(tmp_path: Path, old: str, new: str) -> None:
    assert old in GOOD
    found = problem(tmp_path, GOOD.replace(old, new, 1))
    assert "canary" not in found
    assert found.startswith(("drill.yaml:5: ", "drill.yaml:9: ", "drill.yaml:12: ", "drill.yaml:13: "))


def test_the_refusal_says_what_to_write(tmp_path: Path) -> None:
    found = problem(tmp_path, GOOD.replace("{env: LLM_API_KEY}", CANARY))
    assert found == (
        "drill.yaml:5: targets.staging.endpoint.api_key: "
        "a secret is never written into this file; write {env: NAME} or {file: PATH}"
    )


def test_a_secret_is_read_from_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRILL_TEST_KEY", CANARY)
    assert Secret(env="DRILL_TEST_KEY").value() == CANARY
    path = tmp_path / "key"
    path.write_text(f"{CANARY}\n")
    assert Secret(file=str(path)).value() == CANARY


def test_a_secret_that_is_not_there_names_the_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DRILL_TEST_KEY", raising=False)
    with pytest.raises(UsageError, match="secret: the environment variable DRILL_TEST_KEY is not set"):
        Secret(env="DRILL_TEST_KEY").value()
    with pytest.raises(UsageError, match=r"secret: .*/key cannot be read: No such file or directory"):
        Secret(file=str(tmp_path / "key")).value()


def test_no_secret_in_the_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLM_API_KEY", CANARY)
    text = json.dumps(load(tmp_path, GOOD).pick().to_json())
    assert CANARY not in text
    assert "LLM_API_KEY" not in text


# ---- windows ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("moment", "inside"),
    [
        ("2026-11-30T02:00:00+00:00", True),  # Monday 10:00 in Shanghai
        ("2026-11-30T01:59:00+00:00", False),
        ("2026-11-30T08:00:00+00:00", False),
        ("2026-11-28T03:00:00+00:00", False),  # Saturday
    ],
)
def test_a_window_is_local_time(moment: str, inside: bool) -> None:
    window = windows.parse_window("Mon-Fri 10:00-16:00 Asia/Shanghai")
    assert window.covers(datetime.fromisoformat(moment)) is inside


@pytest.mark.parametrize(
    ("moment", "inside"),
    [
        ("2026-11-28T23:00:00+00:00", True),  # Saturday night
        ("2026-11-29T03:59:00+00:00", True),  # still its night
        ("2026-11-29T04:00:00+00:00", False),
        ("2026-11-29T23:00:00+00:00", False),  # Sunday night
    ],
)
def test_a_window_may_go_past_midnight(moment: str, inside: bool) -> None:
    window = windows.parse_window("Sat 22:00-04:00 UTC")
    assert window.covers(datetime.fromisoformat(moment)) is inside


def test_refusal_by_window_and_freeze() -> None:
    now = datetime(2026, 12, 25, 12, tzinfo=UTC)
    assert windows.refusal(now, (), ()) is None
    assert windows.refusal(now, (), ("2026-12-24..2027-01-02",)) == (
        "2026-12-25 is frozen (limits.freeze: 2026-12-24..2027-01-02)"
    )
    assert windows.refusal(now, ("Mon 10:00-11:00 UTC", "Fri 11:00-13:00 UTC"), ()) is None
    assert windows.refusal(now, ("Mon 10:00-11:00 UTC",), ()) == (
        "outside every window (limits.windows: Mon 10:00-11:00 UTC)"
    )


# ---- anything at all --------------------------------------------------------------------------------


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=150)
@given(at=st.integers(min_value=0, max_value=len(GOOD) - 1), junk=st.binary(max_size=6), cut=st.integers(0, 20))
def test_any_bytes_in_the_middle_are_one_line(tmp_path: Path, at: int, junk: bytes, cut: int) -> None:
    path = tmp_path / "drill.yaml"
    raw = GOOD.encode()
    path.write_bytes(raw[:at] + junk + raw[at + cut :])
    message = ""
    try:
        target.load_targets(path)
    except FileProblem as exc:
        message = str(exc)
    assert message.isprintable()


@given(text=st.text(max_size=40))
def test_any_text_is_a_window_or_one_line(text: str) -> None:
    message = ""
    for parse in (windows.parse_window, windows.parse_freeze):
        try:
            parse(text)
        except ValueError as exc:
            message = str(exc)
        assert message.isprintable()


@pytest.mark.parametrize(
    ("section", "new", "says"),
    [
        ("prometheus", "      stop_if: ['up == 0']", "limits.stop_if: needs the section 'prometheus'"),
        ("alertmanager", "    alerts: {mode: observe}", "alerts.mode: observe needs the section 'alertmanager'"),
        ("prometheus", "    capacity: {live: 'sum(x)'}", "capacity.live: needs the section 'prometheus'"),
    ],
)
def test_a_safety_that_nobody_could_keep_is_refused(tmp_path: Path, section: str, new: str, says: str) -> None:
    key = new.partition(":")[0] + ":"
    lines = [new if line.startswith(key) else line for line in GOOD.splitlines()]
    with_it = "\n".join(lines) + "\n"
    load(tmp_path, with_it).pick("staging")
    without = "\n".join(line for line in lines if not line.startswith(f"    {section}:")) + "\n"
    assert says in problem(tmp_path, without)


def test_a_ledger_needs_a_place_for_its_proxies(tmp_path: Path) -> None:
    with_it = GOOD.replace("port: 8000}\n    hosts", "port: 8000, ledger: true}\n    hosts")
    assert "needs `helper`" in problem(tmp_path, with_it)
    helped = with_it.replace("ledger: true", 'ledger: true, helper: {image: "drills:1"}')
    assert "HasProxies" in load(tmp_path, helped).pick("staging").abilities()


def test_what_keeps_users_safe_is_taken_in(tmp_path: Path) -> None:
    """In the lab too, which brings its own Prometheus and Alertmanager."""
    text = (
        "targets:\n  lab:\n    kind: lab\n    alerts: {mode: observe, labels: {service: chat}}\n"
        "    limits: {stop_if: ['vector(0)'], accept_power_cycle: true}\n"
    )
    spec = load(tmp_path, text).pick("lab")
    assert (spec.alerts_mode, spec.alerts_labels) == ("observe", {"service": "chat"})
    assert spec.limits.stop_if == ("vector(0)",)
    assert spec.to_json()["alerts"]["labels"] == {"service": "chat"}


@pytest.mark.parametrize(
    ("sla", "said"),
    [
        ("errors: 100%", "sla.errors: promises nothing"),
        ("ttft: {p99: 10s}, e2e: {p99: 2s}", "sla: the e2e bound of 2s is below the ttft bound of 10s"),
        ("ttft: {p99: 10s}", "below the ttft bound of 10s"),
        ("ttft: {p0.001: 1s}", "is not a quantile from p1"),
    ],
)
def test_a_promise_that_cannot_be_kept_or_broken_is_refused(tmp_path: Path, sla: str, said: str) -> None:
    assert said in problem(tmp_path, f"targets:\n  lab: {{kind: lab, sla: {{{sla}}}}}\n")


# ---- hosts ------------------------------------------------------------------------------------------

HOST = "name: gpu-1, address: 10.0.0.7, user: drill, key: ~/.ssh/drill, unit: vllm.service, port: 8000, gpus: all"


def test_how_a_host_is_reached_has_defaults(tmp_path: Path) -> None:
    [host] = (
        load(tmp_path, GOOD.replace(HOST, "name: g, address: 10.0.0.7, user: drill, unit: u")).pick("staging").hosts
    )
    assert (host.key, host.jump, host.known_hosts, host.sudo, host.ssh_port) == (None, None, None, True, 22)
    assert host.state_dir == "/var/lib/drill"
    assert tuple(host.timeouts.model_dump().values()) == (10.0, 10.0, 15.0, 15.0)


def test_how_a_host_is_reached_may_be_said(tmp_path: Path) -> None:
    more = "jump: {address: gate.example, user: ops}, known_hosts: hosts, sudo: false, state_dir: /opt/x/drill"
    text = GOOD.replace(HOST, f"{HOST}, {more}, timeouts: {{connect: 2s, command: 1m}}")
    [host] = load(tmp_path, text).pick("staging").hosts
    assert host.jump is not None
    assert (host.jump.address, host.jump.user, host.jump.key, host.jump.ssh_port) == ("gate.example", "ops", None, 22)
    assert (host.known_hosts, host.sudo, host.state_dir) == ("hosts", False, "/opt/x/drill")
    assert (host.timeouts.connect, host.timeouts.banner, host.timeouts.command) == (2.0, 10.0, 60.0)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("jump: gate.example", "jump: a map is expected"),
        ("jump: {user: ops}", "jump: the key 'address' is missing"),
        ("jump: {address: ops@gate}", "jump.address: is not a host name or IP address"),
        ("state_dir: /", "state_dir: '/' is not a folder of its own; write for example /var/lib/drill"),
        ("state_dir: /drill", "state_dir: '/drill' is not a folder of its own"),
        ("state_dir: /var/../lib", "state_dir: '/var/../lib' is not a folder of its own"),
        ('state_dir: "/var/a b"', "state_dir: '/var/a b' is not a folder of its own"),
        ("timeouts: {connect: 5}", "timeouts.connect: duration 5 has no unit"),
        ("timeouts: {conect: 5s}", "timeouts.conect: unknown key 'conect'; did you mean 'connect'?"),
        ("known_hosts: ''", "known_hosts: is not a path"),
        ("sudo: maybe", "sudo:"),
    ],
)
def test_how_a_host_is_reached_is_checked(tmp_path: Path, more: str, message: str) -> None:
    assert f"targets.staging.hosts[0].{message}" in problem(tmp_path, GOOD.replace(HOST, f"{HOST}, {more}"))


ONE = "name: gpu-1, address: 10.0.0.7, user: drill, unit: vllm.service"


@pytest.mark.parametrize(
    ("second", "said"),
    [
        ("name: gpu-1, address: 10.0.0.8", "name: two hosts are named 'gpu-1'"),
        ("unit: vllm.service, port: 8001", "unit: vllm.service on 10.0.0.7 is 'gpu-1' already"),
        ("unit: vllm, port: 8001", "unit: vllm.service on 10.0.0.7 is 'gpu-1' already"),
        ("unit: vllm-2", "port: port 8000 on 10.0.0.7 is that of 'gpu-1' already"),
        ("user: root", "user: 'gpu-1' says something else, and both are on 10.0.0.7"),
        ("key: ~/.ssh/other", "key: 'gpu-1' says something else"),
        ("known_hosts: other", "known_hosts: 'gpu-1' says something else"),
        ("sudo: false", "sudo: 'gpu-1' says something else"),
        ("state_dir: /data/drill", "state_dir: 'gpu-1' says something else"),
        ("timeouts: {connect: 2s}", "timeouts: 'gpu-1' says something else"),
    ],
)
def test_what_two_replicas_cannot_both_be(tmp_path: Path, second: str, said: str) -> None:
    told = dict(pair.split(": ", 1) for pair in second.split(", "))
    usual = {"name": "gpu-2", "address": "10.0.0.7", "user": "drill", "unit": "vllm-2", "port": "8001"}
    if said.startswith("port"):
        usual["port"] = "8000"
    other = ", ".join(f"{key}: {value}" for key, value in (usual | told).items())
    text = HOSTS.replace("ROUTER", "").replace(f"{{{ONE}}}", f"{{{ONE}}}\n      - {{{other}}}")
    assert f"drill.yaml:8: targets.metal.hosts[1].{said}" in problem(tmp_path, text)


@pytest.mark.parametrize("unit", ["vllm.service", "vllm"])
def test_a_unit_that_serves_is_none_that_may_be_paused(tmp_path: Path, unit: str) -> None:
    other = f"name: gpu-2, address: 10.0.0.7, user: drill, unit: vllm-2, port: 8001, pause: [{unit}]"
    text = HOSTS.replace("ROUTER", "").replace(f"{{{ONE}}}", f"{{{ONE}}}\n      - {{{other}}}")
    assert "drill.yaml:8: targets.metal.hosts[1].pause: vllm.service is the unit of 'gpu-1'" in problem(tmp_path, text)
    elsewhere = text.replace("gpu-2, address: 10.0.0.7", "gpu-2, address: 10.0.0.8")
    assert load(tmp_path, elsewhere).pick("metal").hosts[1].pause == (unit,)


def test_replicas_of_one_machine_differ_in_name_unit_and_port(tmp_path: Path) -> None:
    other = ONE.replace("gpu-1", "gpu-2").replace("vllm.service", "vllm@2.5, port: 8001")
    text = HOSTS.replace("ROUTER", "").replace(f"{{{ONE}}}", f"{{{ONE}}}\n      - {{{other}}}")
    assert load(tmp_path, text).pick("metal").expected_replicas == 2


def test_replicas_behind_different_jump_hosts_are_on_different_machines(tmp_path: Path) -> None:
    other = ONE.replace("gpu-1", "gpu-2") + ", jump: {address: gate.example}"
    text = HOSTS.replace("ROUTER", "").replace(f"{{{ONE}}}", f"{{{ONE}}}\n      - {{{other}}}")
    assert load(tmp_path, text).pick("metal").expected_replicas == 2


@pytest.mark.parametrize(
    ("unit", "said"),
    [
        ("vllm.timer", "unit: 'vllm.timer' is not the name of a service"),
        ("vllm*", "unit: 'vllm*' is not the name of a service"),
        ("-vllm", "unit: '-vllm' is not the name of a service"),
        ("vllm.service, pause: [a b]", "pause[0]: 'a b' is not the name of a unit"),
    ],
)
def test_a_unit_is_named_as_systemd_names_it(tmp_path: Path, unit: str, said: str) -> None:
    assert f"hosts[0].{said}" in problem(tmp_path, GOOD.replace("unit: vllm.service", f"unit: {unit}"))
