"""The lab's supervisor: starts everything in order, keeps it running, and ends it all. `python -m … LABDIR`.

It is told what to do by LABDIR/config.json, says how the start goes in LABDIR/progress.ndjson, and writes
LABDIR/lab.json when all of it is up. What it is told later comes over the control API (`control.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import platform
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from drills.access import procs
from drills.errors import DrillError
from drills.lab import client, control, keeper, monitoring, network, parts, processes, router, vllm_engine
from drills.lab.config import LabConfig, load
from drills.lab.control import Feed
from drills.lab.network import LOOPBACK, NO_NETWORK, Network, NetworkError, Sandbox
from drills.lab.processes import Child
from drills.lab.replicas import Replica, Spec
from drills.model import Json

PART_TIMEOUT_S = 30.0
END_GRACE_S = 3.0
RESTART_DELAY_S = 1.0


class StartError(Exception):
    """The lab could not come up; the text says which part and why."""


class Supervisor:
    """One lab. `run` returns when it has ended and nothing of it is left."""

    def __init__(self, folder: Path, config: LabConfig) -> None:
        self.dir, self.config = folder, config
        self.replicas: dict[str, Replica] = {}
        self.events, self.notifications = Feed(), Feed()
        self.notes: list[str] = []
        self.net: Network = NO_NETWORK
        self._token = (folder / "token").read_text()
        self._programs = monitoring.binaries()
        self._children: dict[str, Child] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._stop = asyncio.Event()
        self._failure: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._up = False
        self._deadline: float | None = None
        self.own(config.owner, config.lives_s)

    # ---- what the control API asks for ---------------------------------------------------------------

    def processes(self) -> list[Json]:
        """Return [{name, pid, start}] of everything that is no replica."""
        children = [*self._children.values(), *(s.child for s in self.net.sandboxes.values())]
        return [{"name": c.name, "pid": c.pid, "start": c.start} for c in children]

    def delete(self, name: str, uid: str, grace_s: float) -> None:
        """Begin to delete a replica (WrongUidError); a planted defect takes the next primary down with it."""
        self.replicas[name].delete(uid, grace_s)
        primaries = self.config.names[: self.config.replicas]
        if self.config.deletes_neighbour and name in primaries:
            other = self.replicas[primaries[(primaries.index(name) + 1) % len(primaries)]]
            other.delete(other.uid, grace_s)

    def own(self, owner: str, lives_s: float | None) -> None:
        """Change owner and life; lab.json follows."""
        self._owner, self._lives_s = owner, lives_s
        self.touch()
        if self._up:
            self._write_lab_json({**json.loads((self.dir / "lab.json").read_text()), "owner": owner})

    def touch(self) -> None:
        """Start the remaining life afresh."""
        self._deadline = None if self._lives_s is None else time.monotonic() + self._lives_s

    def stop(self) -> None:
        """Begin to take everything down."""
        self._stop.set()

    # ---- life ----------------------------------------------------------------------------------------

    async def run(self) -> int:
        """Start, live, end. Returns 0, or 1 when the lab could not come up."""
        for sig in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(sig, self.stop)
        failed = None
        async with aiohttp.ClientSession() as self._http:
            try:
                await self._until_stopped(self._start())
                await self._live()
            except (StartError, DrillError) as error:
                failed = str(error)
            except OSError as error:
                failed = f"{error.filename or self.dir}: {error.strerror}; make room or choose another DRILL_LAB_DIR"
            finally:
                await self._end()
        if failed is not None or not self._up:
            self.progress(failed=failed or "was told to stop before it was up")
            return 1
        return 0

    def progress(self, **line: Any) -> None:
        """Tell whoever waits for the start: say, up or failed."""
        with contextlib.suppress(OSError), (self.dir / "progress.ndjson").open("a") as out:
            out.write(json.dumps(line) + "\n")

    async def _until_stopped(self, starting: Awaitable[None]) -> None:
        """Await the start; StartError when a part fails, return early when told to stop."""
        start = asyncio.ensure_future(starting)
        stop = asyncio.create_task(self._stop.wait())
        first: set[asyncio.Future[Any]] = {start, stop, self._failure}
        await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        if not start.done():
            start.cancel()
            await asyncio.gather(start, return_exceptions=True)
            if self._failure.done():
                raise StartError(self._failure.result())
            return
        start.result()

    async def _live(self) -> None:
        """Stay until told to stop or until nobody has touched the lab for as long as it lives."""
        while not self._stop.is_set():
            if self._deadline is not None and time.monotonic() > self._deadline:
                return
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), 0.5)

    async def _end(self) -> None:
        (self.dir / "lab.json").unlink(missing_ok=True)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        replicas = [r.child for r in self.replicas.values() if r.child is not None]
        left = [*self._children.values(), *replicas]
        await asyncio.gather(*(processes.end_session(c.pid, grace_s=END_GRACE_S) for c in left))
        # Last: the interfaces go with them, and whoever still talks would wait for answers that never come.
        sandboxes = [sandbox.child for sandbox in self.net.sandboxes.values()]
        await asyncio.gather(*(processes.end_session(c.pid, grace_s=0.0) for c in sandboxes))

    # ---- the start, in order -------------------------------------------------------------------------

    async def _start(self) -> None:
        c = self.config
        self.progress(say=f"starting {c.replicas} x {c.model} and 1 x {c.fallback_model}, about {c.likely_start_s:g} s")
        await self._serve()
        self._make_network()
        gpus, gpu_notes = parts.make_gpus(self.dir, c)
        self.notes += [*gpu_notes, *vllm_engine.notes(c)]
        specs = [parts.replica_spec(self.dir, c, i, gpus[i % len(gpus)], self.net) for i in range(len(c.names))]
        self.replicas = {spec.name: Replica(spec, self._http, self._tell) for spec in specs}
        for replica in self.replicas.values():
            self._spawn_task(replica.run())
        await asyncio.gather(
            self._run_part("gpu-exporter", parts.exporter_argv(self.dir, c), c.ports.dcgm),
            *(self._run_proxy(s, i) for i, s in enumerate(specs)),
            self._run_part("edge", parts.edge_argv(c, self.net), c.ports.edge),
            self._start_monitoring(),
            self._replicas_ready(),
        )
        argv, place, host = parts.router_argv(c, self.net), self.net.place("router"), self.net.host("router")
        await self._run_part("router", argv, c.ports.router, path="/health", host=host, place=place)
        self.progress(say=f"router {router.version()} and edge up")
        await self._monitoring_settled()
        self._write_lab_json(await self._describe())
        self._up = True
        self.progress(up=True)

    def _make_network(self) -> None:
        """Give the replicas and the router namespaces of their own, where that can be had or must be."""
        wanted = self.config.network
        if wanted is False or (wanted is None and network.why_not() is not None):
            return
        try:
            if why := network.why_not():
                raise NetworkError(why)
            self.net = network.build(self.config.names[: self.config.replicas], self._log("network"))
        except NetworkError as error:
            if wanted:
                raise StartError(f"no network of its own: {error}") from None
            self.notes.append(f"no network of its own, so none can be drilled: {error}")

    async def _run_proxy(self, spec: Spec, index: int) -> None:
        host = self.net.host(spec.name)
        argv = parts.proxy_argv(spec, self.config, index, host)
        port = self.config.ports.proxy(index)
        await self._run_part(f"proxy-{spec.name}", argv, port, host=host, place=spec.place)

    async def _serve(self) -> None:
        runner = web.AppRunner(control.app(self, self._token), access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", self.config.ports.control).start()

    async def _replicas_ready(self) -> None:
        began, waiting = time.monotonic(), set(self.replicas)
        while waiting:
            for name in sorted(waiting):
                if self.replicas[name].ready:
                    waiting.remove(name)
                    self.progress(say=f"{name} ready after {self.replicas[name].took_s:.1f} s")
            if waiting and time.monotonic() - began > self.config.ready_deadline_s:
                name = min(waiting)
                raise StartError(
                    f"{name} did not become ready within {self.config.ready_deadline_s:g} s"
                    f"{_because(self.replicas[name].spec.log)}"
                )
            await asyncio.sleep(0.05)

    @property
    def _monitored(self) -> bool:
        return self.config.monitoring and self._programs.complete

    async def _start_monitoring(self) -> None:
        folder, ports, programs = self.dir / "monitoring", self.config.ports, self._programs
        if not self._monitored or programs.alertmanager is None or programs.prometheus is None:
            return
        monitoring.write(folder, self.config, self.dir / "token", self.net)
        program, cwd = monitoring.runnable(programs.alertmanager, folder)
        argv = monitoring.alertmanager_argv(program, folder, self.config)
        await self._run_part("alertmanager", argv, ports.alertmanager, path="/-/ready", cwd=cwd)
        argv = monitoring.prometheus_argv(programs.prometheus, folder, self.config)
        await self._run_part("prometheus", argv, ports.prometheus, path="/-/ready")

    async def _monitoring_settled(self) -> None:
        if not self._monitored:
            return
        wanted = len(self.replicas)
        await self._within("prometheus", lambda: self._scraped(wanted))
        self.progress(say=f"Prometheus sees {wanted} of {wanted} replicas, Alertmanager up")

    async def _scraped(self, wanted: int) -> bool:
        url = f"http://127.0.0.1:{self.config.ports.prometheus}/api/v1/query"
        # Everything is scraped, the rules have been evaluated since, and no alert is even pending; where the rules
        # expect replicas that do not exist, that alert is there.
        settled = "unless on () count(ALERTS)"
        if self.config.alerts_expect is not None:
            settled = 'and on () count(ALERTS{alertstate="firing"})'
        up = f'count(up{{job="vllm"}} == 1) == {wanted} and on () count(up == 1) == {wanted + 3}'
        query = {"query": f"{up} and on () count(vllm:replicas_expected) {settled}"}
        async with self._http.get(url, params=query, timeout=aiohttp.ClientTimeout(total=2)) as answer:
            return bool((await answer.json())["data"]["result"])

    # ---- parts ---------------------------------------------------------------------------------------

    async def _run_part(
        self,
        name: str,
        argv: Sequence[str],
        port: int,
        path: str | None = None,
        cwd: Path | None = None,
        host: str = LOOPBACK,
        place: Sandbox | None = None,
    ) -> None:
        """Start a part, keep it running, and wait until it listens (and answers 200 on `path`)."""
        self._spawn_task(self._keep(name, argv, cwd, place))
        await self._within(name, lambda: self._answers(host, port, path))

    async def _answers(self, host: str, port: int, path: str | None) -> bool:
        if path is None:
            _, writer = await asyncio.wait_for(asyncio.open_connection(host, port), 1)
            writer.close()
            return True
        url = parts.url(port, host) + path
        async with self._http.get(url, timeout=aiohttp.ClientTimeout(total=2)) as answer:
            return answer.status == 200

    async def _within(self, name: str, test: Callable[[], Awaitable[bool]]) -> None:
        deadline = time.monotonic() + PART_TIMEOUT_S
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError, TimeoutError, aiohttp.ClientError):
                if await test():
                    return
            await asyncio.sleep(0.1)
        raise StartError(f"{name} did not come up within {PART_TIMEOUT_S:g} s{_because(self._log(name))}")

    async def _keep(self, name: str, argv: Sequence[str], cwd: Path | None, place: Sandbox | None) -> None:
        """Run a part that has no state worth telling; start it again when it ends."""
        while True:
            child = self._children[name] = processes.spawn(name, argv, self._log(name), cwd, place)
            status = await processes.ended(child)
            await processes.end_session(child.pid, grace_s=0.0)
            self._ended_early(name, status, child.log)
            await asyncio.sleep(RESTART_DELAY_S)

    def _tell(self, event: Json) -> None:
        self.events.add(event)
        if event["change"] == "gone":
            status = event["signal"] or event["code"]
            self._ended_early(event["replica"], status, self.replicas[event["replica"]].spec.log)

    def _ended_early(self, name: str, status: int | str, log: Path) -> None:
        """Before the lab is up, a part that ends is a reason to give up."""
        if not self._up and not self._failure.done():
            self._failure.set_result(f"{name} ended ({status}) while the lab was starting{_because(log)}")

    def _spawn_task(self, work: Any) -> None:
        self._tasks.append(asyncio.get_running_loop().create_task(work))

    def _log(self, name: str) -> Path:
        return self.dir / "log" / f"{name}.log"

    # ---- lab.json ------------------------------------------------------------------------------------

    async def _describe(self) -> Json:
        monitored = self._monitored
        if self.config.monitoring and not monitored:
            self.notes.append(f"Prometheus or Alertmanager not found: alerts cannot be judged; {monitoring.INSTALL}")
        async with self._http.get(f"{self.replicas[self.config.names[0]].spec.engine}/version") as answer:
            versions = {"vllm": str((await answer.json())["version"]), "vllm-router": router.version()}
        versions["python"] = platform.python_version()
        if monitored:
            versions["prometheus"] = monitoring.version(str(self._programs.prometheus))
            versions["alertmanager"] = monitoring.version(str(self._programs.alertmanager))
        return {
            "pid": os.getpid(),
            "start": procs.start(os.getpid()),
            "boot_id": client.boot_id(),
            "owner": self._owner,
            "dir": str(self.dir),
            "token_file": str(self.dir / "token"),
            "versions": versions,
            "notes": self.notes,
            **parts.addresses(self.dir, self.config, self.net, monitored=monitored),
        }

    def _write_lab_json(self, data: Json) -> None:
        new = self.dir / ".lab.json"
        new.write_text(json.dumps(data, indent=2) + "\n")
        new.replace(self.dir / "lab.json")


def _because(log: Path) -> str:
    line = processes.last_line(log)
    return f": {line} (see {log})" if line else f" (see {log})"


def supervise(folder: Path) -> int:
    """Run the supervisor of the lab in that folder to its end."""

    async def main() -> int:
        return await Supervisor(folder, load(folder / "config.json")).run()

    return asyncio.run(main())


if __name__ == "__main__":
    lab_folder = Path(sys.argv[1])
    sys.exit(keeper.keep(lab_folder, lambda: supervise(lab_folder)))
