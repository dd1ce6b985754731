"""A plan in sentences, in the order in which things will happen: what `drill plan` prints."""

from __future__ import annotations

from drills.model import Json
from drills.units import format_duration, format_rate, format_share


def sentences(plan: Json, *, proxies: bool) -> tuple[str, ...]:
    """Return the steps of a plan, one sentence each, without run id and seed; `proxies`: some are put up."""
    return (
        *_about(plan),
        "take the lock of the target; refuse while another run holds it or left something to put back",
        *_production(plan["target"]),
        "preflight: read only; refuse on limits, too little headroom, others at work, or an alert that fires already",
        "gate: every replica must answer a completion of its own",
        *([_proxies(plan["target"])] if proxies else []),
        f"load on: {_load(plan)}",
        f"warmup for {_s(plan['phases']['warmup_s'])}",
        f"baseline for {_s(plan['phases']['baseline_s'])}: about {_n(plan, 'baseline')} requests to compare with",
        *_silenced(plan),
        *_fault(plan),
        _recovery(plan),
        f"load off{'; take the ledger proxies away' if proxies else ''}; ask every replica for a completion",
        *[f"judge: {_item(check, 'check')}" for check in plan["experiment"]["checks"]],
        *[f"note: {note}" for note in plan["notes"]],
    )


def _proxies(target: Json) -> str:
    """Say what is put up, and what it does to connections; on hosts to the router's alone."""
    what, whose = ("", "") if target["kind"] != "hosts" else (", for what the router sends", "its ")
    return f"ledger proxies in front of the engines{what}: prove them, reset {whose}connections from before"


def _about(plan: Json) -> list[str]:
    experiment, target = plan["experiment"], plan["target"]
    sla = target["sla"]
    promised = [f"{m} p{sla[m]['quantile'] * 100:g} {_s(sla[m]['value_s'])}" for m in ("ttft", "e2e", "max_gap")]
    about = [
        f"drill {experiment['name']}: {experiment['title']}",
        f"hypothesis: {experiment['hypothesis']}",
        f"target {target['name']} (kind {target['kind']}) at {target['endpoint']}, model {target['model']}",
        *_pods(target.get("kubernetes")),
        *_units(target),
        f"SLA: {', '.join(promised)}, errors {format_share(sla['errors'])}",
    ]
    return about + ([f"defect planted in the lab: {plan['defect']}"] if plan["defect"] else [])


def _pods(cluster: Json | None) -> list[str]:
    """Say where the replicas are in a cluster: whoever reads it must see which cluster that is."""
    if not cluster:
        return []
    context = f"context {cluster['context']}" if cluster["context"] else "the current context"
    return [f"pods: {context}, namespace {cluster['namespace']}, selector {cluster['selector']}"]


def _units(target: Json) -> list[str]:
    """Say where the replicas are on hosts, and whose packets are the router's."""
    if not target.get("hosts"):
        return []
    where = [f"{host['name']} (unit {host['unit']} on {host['address']})" for host in target["hosts"]]
    router = target.get("router_addresses")
    return [f"hosts: {', '.join(where)}", *([f"router: sends from {', '.join(router)}"] if router else [])]


def _load(plan: Json) -> str:
    load = plan["experiment"]["load"]
    arrivals, client, retries = load["arrivals"], load["client"], load["client"]["retries"]
    pace = format_rate(arrivals["rate"]) if "rate" in arrivals else f"{arrivals['users']} users (closed loop)"
    tries = f"{retries['max']} retries" if retries["max"] else "no retries"
    budget = f" within {format_share(retries['budget'])}" if "budget" in retries and retries["max"] else ""
    if "profile" in retries:
        tries += f" (profile {retries['profile']})"
    return (
        f"{arrivals['kind']} {pace}, workload {load['workload']['name']}, client time-out {_s(client['timeout'])}, "
        f"{tries}{budget}, at most {plan['load_cap']} requests open"
    )


def _fault(plan: Json) -> list[str]:
    """One block for each fault, then how long it lasts and what ends it early."""
    held = plan["phases"]["recovery_from"] == "off"
    steps = []
    for fault in plan["experiment"]["faults"]:
        steps += [
            f"fault: {_item(fault, 'fault')}; {_aim(fault)}",
            *([f"note: {fault['warning']}"] if fault.get("warning") else []),
            *([f"note: emulated: {fault['emulates']}"] if fault.get("emulates") else []),
            "write the receipt and arm the timer on the target before the deed; prove that it bites",
        ]
    last = "put it back, prove that it is off" if held else "a one-shot deed: prove that nothing of ours stays"
    guards = [f"stop and put back at once: {_item(guard, 'guard')}" for guard in plan["experiment"]["guards"]]
    guards += [f"stop and put back at once: stop_if {query}, or when it is not answered" for query in _stop_if(plan)]
    n = _n(plan, "fault")
    return [
        *steps,
        f"hold for {_s(plan['phases']['fault_s'])}: about {n} requests begin after the fault",
        *guards,
        last,
    ]


def _stop_if(plan: Json) -> list[str]:
    return list(plan["target"]["limits"].get("stop_if") or ())


def _production(target: Json) -> list[str]:
    """Say what production asks for on top."""
    if target["limits"].get("environment") != "production":
        return []
    return [
        f"production: refuse without --confirm {target['name']} and --oncall NAME, and where the load is more than a "
        "tenth of what users send"
    ]


def _silenced(plan: Json) -> list[str]:
    """Say which alerts will page nobody."""
    names = dict.fromkeys(c["params"]["name"] for c in plan["experiment"]["checks"] if c["check"] == "alert")
    if plan["target"]["alerts"]["mode"] != "observe" or not names:
        return []
    return [f"silence {', '.join(names)} for the victim until the drill ends: the paging path will not be proven"]


def _aim(fault: Json) -> str:
    return (
        "it hits the route: all primaries at once"
        if fault.get("route")
        else "victims are drawn by the seed (a new one for each run, or --seed)"
    )


def _recovery(plan: Json) -> str:
    phases = plan["phases"]
    since = "the injection" if phases["recovery_from"] == "injection" else "the fault is proven off"
    end = ", less once every check is decided and watched" if phases["recovery_auto"] else ""
    return f"recovery under the same load until {_s(phases['recovery_s'])} after {since}{end}"


def _item(item: Json, what: str) -> str:
    """Return `name (key value, ...)`, without the parameters that are not set."""
    given = [f"{key} {_value(value)}" for key, value in item["params"].items() if value not in (None, {}, [])]
    return str(item[what]) + (f" ({', '.join(given)})" if given else "")


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(_value, value))
    if isinstance(value, dict):
        return f"({', '.join(f'{key} {_value(inner)}' for key, inner in value.items() if inner is not None)})"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _n(plan: Json, cohort: str) -> str:
    return f"{plan['expected_requests'][cohort]:.0f}"


def _s(seconds: float) -> str:
    return format_duration(seconds)
