"""The parts of a lab: where each lives, and its command line."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from drills.lab import router, vllm_engine
from drills.lab.config import SLA, LabConfig
from drills.lab.gpu import shim, smi, state
from drills.lab.network import LOOPBACK, NO_NETWORK, Network
from drills.lab.processes import python
from drills.lab.replicas import Spec
from drills.model import Json


def url(port: int, host: str = LOOPBACK) -> str:
    """Return the URL of a port of the lab."""
    return f"http://{host}:{port}"


def make_gpus(folder: Path, config: LabConfig) -> tuple[list[Json], list[str]]:
    """Make the GPUs anew and what reads them; returns them and notes on what is missing."""
    gpus = state.create(folder / "gpu", count=config.gpus, seed=config.seed)
    smi.write_nvidia_smi(folder / "bin", folder / "gpu" / "state.json")
    if shim.build_shim(folder / "gpu" / "lib") is None:
        return gpus, ["no C compiler: the lab has an nvidia-smi stand-in and no NVML library"]
    return gpus, []


def exporter_argv(folder: Path, config: LabConfig) -> list[str]:
    """Return the GPU exporter's command line."""
    return python("drills.lab.gpu.exporter", f"--port={config.ports.dcgm}", f"--state={folder / 'gpu' / 'state.json'}")


def replica_spec(folder: Path, config: LabConfig, index: int, gpu: Json, net: Network = NO_NETWORK) -> Spec:
    """Return what does not change about replica `index`."""
    ports, name = config.ports, config.names[index]
    host = net.host(name)
    primary = index < config.replicas
    model = config.model if primary else config.fallback_model
    if primary and config.engine == "vllm":
        argv = vllm_engine.replica_argv(folder, config, host, ports.engine(index), gpu["device"])
    else:
        argv = _emulator_argv(folder, config, index, host, gpu)
    return Spec(
        name=name,
        role="primary" if primary else "fallback",
        model=model,
        argv=tuple(argv),
        log=folder / "log" / f"{name}.log",
        gate=folder / "gates" / f"{name}.lock",
        gpus=(gpu["uuid"],),
        engine=url(ports.engine(index), host),
        proxy=url(ports.proxy(index), host),
        proxy_control=url(ports.proxy_control(index), host),
        place=net.place(name),
        ledger=folder / "ledger" / f"{name}.ndjson",
        faults=folder / "faults" / name,
        restart=config.restart,
        restart_args=config.restart_args,
    )


def _emulator_argv(folder: Path, config: LabConfig, index: int, host: str, gpu: Json) -> list[str]:
    primary = index < config.replicas
    extra: Sequence[str] = config.engine_args if primary else config.fallback_engine_args
    return python(
        "drills.lab.engine.server",
        f"--host={host}",
        f"--port={config.ports.engine(index)}",
        f"--model={config.model if primary else config.fallback_model}",
        f"--name={config.names[index]}",
        f"--startup-s={config.startup_s}",
        f"--gpu-device={gpu['device']}",
        f"--gpu-uuid={gpu['uuid']}",
        f"--seed={config.seed + index}",
        f"--gpu-state={folder / 'gpu' / 'state.json'}",
        *extra,
    )


def proxy_argv(spec: Spec, config: LabConfig, index: int, host: str = LOOPBACK) -> list[str]:
    """Return the command line of the ledger proxy in front of a replica; `host` is where both live."""
    ports = config.ports
    return python(
        "drills.proxy",
        f"--listen={host}:{ports.proxy(index)}",
        f"--upstream={host}:{ports.engine(index)}",
        f"--control={host}:{ports.proxy_control(index)}",
        f"--ledger={spec.ledger}",
        f"--faults-dir={spec.faults}",
        f"--name={spec.name}",
        f"--role={spec.role}",
        f"--model={spec.model}",
        f"--health={config.proxy_health}",
    )


def router_argv(config: LabConfig, net: Network = NO_NETWORK) -> list[str]:
    """Return the router's command line; it knows the primaries by their proxies."""
    names = config.names[: config.replicas]
    workers = [url(config.ports.proxy(index), net.host(name)) for index, name in enumerate(names)]
    host = net.host("router")
    return router.argv(host, config.ports.router, config.ports.router_metrics, workers, config.router_args)


def edge_argv(config: LabConfig, net: Network = NO_NETWORK) -> list[str]:
    """Return the edge's command line; its fallback is the small model, past the router."""
    return python(
        "drills.lab.edge",
        f"--port={config.ports.edge}",
        f"--router={url(config.ports.router, net.host('router'))}",
        f"--model={config.model}",
        f"--fallback={url(config.ports.proxy(config.replicas))}",
        f"--fallback-model={config.fallback_model}",
        f"--first-token-deadline-ms={config.first_token_deadline_ms}",
        f"--sla-ttft-s={SLA.ttft.value_s}",
        *config.edge_args,
    )


def addresses(folder: Path, config: LabConfig, net: Network = NO_NETWORK, *, monitored: bool) -> Json:
    """Return the part of lab.json that follows from the config."""
    ports, router_host = config.ports, net.host("router")
    library = folder / "gpu" / "lib" / "libnvidia-ml.so.1"
    return {
        "port_base": config.port_base,
        "control": url(ports.control),
        "entry": {"edge": url(ports.edge), "router": url(ports.router, router_host), "use": config.entry},
        "router_metrics": f"{url(ports.router_metrics, router_host)}/metrics",
        "prometheus": url(ports.prometheus) if monitored else None,
        "alertmanager": url(ports.alertmanager) if monitored else None,
        "dcgm": f"{url(ports.dcgm)}/metrics",
        "model": config.model,
        "fallback_models": [config.fallback_model],
        "nvidia_smi": str(folder / "bin" / "nvidia-smi"),
        "nvml_lib": str(library) if library.exists() else None,
        "capacity_per_replica": config.capacity_per_replica,
        "expected_replicas": config.replicas,
        "defect": config.defect,
        "engine": config.engine,
        "client_cpu": vllm_engine.client_cpu(config),
        "network": net.as_json(),
    }
