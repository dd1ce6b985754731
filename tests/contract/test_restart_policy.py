"""Who is started again after which end; real processes, no lab around them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from drills.lab import processes
from drills.lab.replicas import Replica, Spec
from drills.model import Json

NOWHERE = "http://127.0.0.1:1"


def after(folder: Path, script: str, until: Callable[[Replica], bool], **more: Any) -> list[Json]:
    """Run a replica whose process is that shell script until something holds; returns its events."""
    events: list[Json] = []

    async def main() -> None:
        spec = Spec(
            name="r",
            role="primary",
            model="m",
            argv=("sh", "-c", script, "sh"),
            log=folder / "log",
            gate=folder / "gate",
            gpus=(),
            engine=NOWHERE,
            proxy=NOWHERE,
            proxy_control=NOWHERE,
            ledger=folder / "ledger",
            faults=folder,
            **more,
        )
        async with aiohttp.ClientSession() as http:
            replica = Replica(spec, http, events.append)
            life = asyncio.create_task(replica.run())
            try:
                assert await processes.until(lambda: until(replica), 10)
            finally:
                life.cancel()
                await asyncio.gather(life, return_exceptions=True)
                if (child := replica.child) is not None:
                    await processes.end_session(child.pid, grace_s=0)
                    child.popen.wait(5)

    asyncio.run(main())
    return events


def stopped(replica: Replica) -> bool:
    return replica.state == "stopped"


def ended_twice(replica: Replica) -> bool:
    return len(replica.exits) >= 2


@pytest.mark.parametrize(("policy", "code"), [("never", 0), ("never", 3), ("on-failure", 0)])
def test_it_stays_down(tmp_path: Path, policy: str, code: int) -> None:
    events = after(tmp_path, f"exit {code}", stopped, restart=policy)
    assert [(e["change"], e.get("code")) for e in events] == [("started", None), ("gone", code)]


@pytest.mark.parametrize(("policy", "code"), [("always", 0), ("on-failure", 3)])
def test_it_comes_back(tmp_path: Path, policy: str, code: int) -> None:
    events = after(tmp_path, f"exit {code}", ended_twice, restart=policy)
    assert [e["change"] for e in events[:3]] == ["started", "gone", "started"]
    assert events[2]["by"] == "supervisor"


def test_a_deleted_one_is_replaced_though_it_ended_well(tmp_path: Path) -> None:
    """Restart policies are the supervisor's; deletions are the controller's."""
    first: list[str] = []

    def delete_and_see(replica: Replica) -> bool:
        if replica.child is not None and not first:
            first.append(replica.uid)
            replica.delete(replica.uid, 5)
        return bool(first) and replica.uid != first[0] and replica.child is not None

    events = after(tmp_path, "trap 'exit 0' TERM; while :; do sleep 0.05; done", delete_and_see, restart="on-failure")
    assert [e["change"] for e in events] == ["started", "gone", "started"]
    assert {e["by"] for e in events} == {"controller"}
    assert events[0]["uid"] != events[2]["uid"]


def test_what_a_restart_gets_besides(tmp_path: Path) -> None:
    told = tmp_path / "told"

    def told_twice(_: Replica) -> bool:
        return told.exists() and told.read_text().count("\n") >= 2

    after(tmp_path, f'echo "$@" >> {told}', told_twice, restart_args=("--startup-s=120",))
    assert told.read_text().splitlines()[:2] == ["", "--startup-s=120"]
