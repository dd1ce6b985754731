"""What faults do to an engine, as measured on vLLM 0.32: each of the two processes stopped, killed, told to end."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from tests.contract.engine_harness import KINDS, REAL, Conversation, Engine, Pool, Reply, running, until

DEAD = {
    "message": "EngineCore encountered an issue. See stack trace (above) for the root cause.",
    "type": "InternalServerError",
    "param": None,
    "code": 500,
}
LONG = 2000  # tokens: more than any case waits for
HI = [{"role": "user", "content": "hi"}]
Start = Callable[..., Engine]


@pytest.fixture(params=sorted(KINDS))
def start(request: pytest.FixtureRequest, tmp_path: Path, pool: Pool) -> Iterator[Start]:
    with ExitStack() as stack:
        yield lambda **options: stack.enter_context(
            pool.borrow(request.param, tmp_path, **({"step_base_ms": "8", "drain_teardown_s": "0.5"} | options))
        )


@contextlib.contextmanager
def streams(engine: Engine, count: int, tokens: int = LONG) -> Iterator[list[Conversation]]:
    with ExitStack() as stack:
        talks = [stack.enter_context(contextlib.closing(engine.ask(tokens))) for _ in range(count)]
        for talk in talks:
            talk.tokens(2)
        yield talks


def closed(engine: Engine) -> bool:
    return engine.health() is None


def aborted(engine: Engine, talk: Conversation) -> Reply | None:
    """Return the end of a request after SIGTERM; None when a real engine lost its race.

    vLLM's API server sends its core SIGTERM and, without a shutdown timeout, SIGKILL right after it. A core that is
    killed before it could abort its requests leaves them open and silent, and the API server with them.
    """
    try:
        return talk.finish(20)
    except AssertionError:
        assert REAL
        assert b"[DONE]" not in talk.raw
        assert engine.process.poll() is None
        return None


# ---- SIGTERM ------------------------------------------------------------------------------------------


def test_sigterm_ends_everything_with_abort_and_exits_0(start: Start) -> None:
    engine = start()
    with streams(engine, 4) as talks, contextlib.closing(engine.ask(LONG, stream=False)) as whole:
        until(lambda: engine.running() == 5, "all run")
        engine.signal(signal.SIGTERM)
        for reply in [r for talk in talks if (r := aborted(engine, talk))]:
            assert reply.complete
            assert reply.finish() == "abort"
            assert reply.events()[-1] == "[DONE]"
            words = reply.content().split()
            assert words == [f"t{i}" for i in range(reply.usage()["completion_tokens"])]
        if answer := aborted(engine, whole):
            assert (answer.status, answer.json()["choices"][0]["finish_reason"]) == (200, "abort")
            assert answer.json()["usage"]["completion_tokens"] > 0
    assert engine.wait_exit() == 0
    until(lambda: not any(psutil.pid_exists(pid) for pid in engine.known), "core and worker are gone")


def test_sigterm_while_idle_exits_0_in_about_a_second(start: Start) -> None:
    engine = start()
    at = engine.signal(signal.SIGTERM)
    assert engine.wait_exit() == 0
    assert 0.3 < time.monotonic() - at < 5


def test_requests_that_wait_in_the_queue_end_without_a_reason(start: Start) -> None:
    engine = start(max_num_seqs="1")
    with streams(engine, 1), contextlib.closing(engine.ask(5)) as queued:
        assert "200 OK" in queued.headers()
        until(lambda: engine.waiting() == 1, "one waits")
        engine.signal(signal.SIGTERM)
        if (reply := aborted(engine, queued)) is not None:
            assert (reply.finish(), reply.content(), reply.usage()["completion_tokens"]) == (None, "", 0)
            assert reply.events()[-1] == "[DONE]"


# ---- draining -----------------------------------------------------------------------------------------


def test_a_drain_finishes_its_streams_and_refuses_new_requests(start: Start) -> None:
    engine = start(shutdown_timeout="30")
    with streams(engine, 2, tokens=60) as talks:
        engine.signal(signal.SIGTERM)
        until(lambda: engine.post("/v1/chat/completions", {"messages": HI}).status == 500, "new requests are refused")
        refused = engine.post("/v1/chat/completions", {"messages": HI, "stream": True})
        assert refused.json()["error"] == {
            "message": "cannot schedule new futures after shutdown",
            "type": "InternalServerError",
            "param": None,
            "code": 500,
        }
        assert engine.health() == 200
        assert [talk.finish().finish() for talk in talks] == ["length", "length"]
        assert engine.health() == 200  # still, after the last stream
    assert engine.wait_exit() == 0


def test_streams_that_outlive_the_drain_hang_until_their_clients_leave(start: Start) -> None:
    engine = start(shutdown_timeout="0.5")
    with streams(engine, 2) as talks:
        engine.signal(signal.SIGTERM)
        until(lambda: closed(engine), "the port is closed")
        assert all(talk.falls_silent(0.3) for talk in talks)
        assert not any(talk.ended or b"[DONE]" in talk.raw or b'"error"' in talk.raw for talk in talks)
        until(lambda: not any(psutil.pid_exists(pid) and _runs(pid) for pid in engine.known), "the core has ended")
        assert engine.process.poll() is None
    assert engine.wait_exit() == 0


def _runs(pid: int) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    return False


# ---- the core is killed -------------------------------------------------------------------------------


def test_killing_the_core_is_an_error_inside_streams_and_exit_status_0(start: Start) -> None:
    engine = start()
    with streams(engine, 4) as talks, contextlib.closing(engine.ask(LONG, stream=False)) as whole:
        until(lambda: engine.running() == 5, "all run")
        engine.core().kill()
        for reply in [talk.finish() for talk in talks]:
            *_, error, done = reply.events()
            assert (error, done) == ({"error": DEAD}, "[DONE]")
            assert reply.complete  # the HTTP answer itself ends as if all were well
            assert reply.finish() is None
        answer = whole.finish()
        assert (answer.status, answer.json()) == (500, {"error": DEAD})
    assert engine.wait_exit() == 0


def test_killing_the_core_shows_in_health_then_the_port_closes(start: Start) -> None:
    engine = start()
    seen: list[int | None] = [200]
    with streams(engine, 1):
        engine.core().kill()
        while seen[-1] is not None and len(seen) < 10_000:
            seen.append(engine.health())
    assert 503 in seen
    assert set(seen) <= {200, 503, None}
    assert sorted(seen, key=[200, 503, None].index) == seen
    assert engine.wait_exit() == 0


def test_an_idle_engine_whose_core_was_killed_leaves_too(start: Start) -> None:
    engine = start()
    engine.core().kill()
    until(lambda: engine.health() == 503, "health tells")
    reply = engine.post("/v1/chat/completions", {"messages": HI, "stream": True})
    assert (reply.status, reply.json()) == (500, {"error": DEAD})
    assert engine.wait_exit() == 0


def test_an_engine_told_to_outlive_its_core_stays_unhealthy(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_KEEP_ALIVE_ON_ENGINE_DEATH", "1")
    engine = start()
    with streams(engine, 2) as talks:
        until(lambda: engine.running() == 2, "both run")
        engine.core().kill()
        for talk in talks:
            talk.finish()
    chat = {"messages": HI}
    assert [engine.post("/v1/chat/completions", chat).status for _ in range(2)] == [500, 500]
    time.sleep(4 if REAL else 0.8)  # by now it would be gone without the setting
    assert (engine.health(), engine.running()) == (503, 2)  # the gauges are stale
    engine.signal(signal.SIGTERM)
    assert engine.wait_exit() == 0


# ---- the core hangs -----------------------------------------------------------------------------------


def test_a_hung_core_silences_streams_while_health_and_metrics_say_all_is_well(start: Start) -> None:
    engine = start()
    with streams(engine, 2, tokens=60) as talks:
        until(lambda: engine.running() == 2, "both run")
        core = engine.core()
        core.suspend()
        try:
            assert all(talk.falls_silent(0.3) for talk in talks)
            began = time.monotonic()
            assert engine.health() == 200
            assert time.monotonic() - began < 1
            frozen = engine.metric("vllm:generation_tokens_total")
            with contextlib.closing(engine.ask(2)) as late, contextlib.closing(engine.ask(2, stream=False)) as whole:
                assert "200 OK" in late.headers()  # at once, although nothing will be scheduled
                assert late.silent(0.3)
                assert whole.silent(0.1)
                assert (engine.running(), engine.waiting()) == (2, 0)
                assert engine.metric("vllm:generation_tokens_total") == frozen
                core.resume()
                assert late.finish().finish() == "length"
                assert whole.finish().json()["choices"][0]["finish_reason"] == "length"
        finally:
            with contextlib.suppress(psutil.NoSuchProcess):
                core.resume()
        for reply in [talk.finish() for talk in talks]:
            assert reply.content().split() == [f"t{i}" for i in range(60)]
            assert reply.finish() == "length"


# ---- the API server is killed -------------------------------------------------------------------------


def test_killing_the_api_server_cuts_streams_and_orphans_the_core(start: Start) -> None:
    engine = start()
    with streams(engine, 2) as talks, contextlib.closing(engine.ask(LONG, stream=False)) as whole:
        until(lambda: engine.running() == 3, "all run")
        core = engine.core()
        engine.signal(signal.SIGKILL)
        for reply in [talk.finish() for talk in talks]:
            assert not reply.complete
            assert "[DONE]" not in reply.events()[-1:]
        assert not any(talk.reset for talk in talks)
        assert whole.finish().status == 0
    assert engine.wait_exit() == -signal.SIGKILL
    assert closed(engine)
    time.sleep(0.3)
    assert core.is_running()
    assert core.status() != psutil.STATUS_ZOMBIE
    assert core.ppid() != engine.process.pid


def test_a_new_engine_starts_on_the_port_beside_the_orphan(start: Start, tmp_path: Path) -> None:
    engine = start()
    core = engine.core()
    engine.signal(signal.SIGKILL)
    engine.wait_exit()
    with running(engine.kind, tmp_path, port=str(engine.port)) as again:
        assert again.post("/v1/chat/completions", {"messages": HI, "max_tokens": 1}).status == 200
        assert core.is_running()
    core.terminate()
    until(lambda: not core.is_running(), "SIGTERM ends an orphan")


@pytest.mark.emulator
def test_an_orphan_ends_when_its_time_is_over(start: Start) -> None:
    engine = start(orphan_lives_s="0.3")
    core = engine.core()
    engine.signal(signal.SIGKILL)
    until(lambda: not core.is_running(), "the orphan has ended")


# ---- the GPU ------------------------------------------------------------------------------------------


def test_only_the_core_holds_the_gpu_also_as_an_orphan(start: Start, tmp_path: Path) -> None:
    device = tmp_path / "nvidia0"
    device.touch()
    engine = start(gpu_device=str(device))
    core = engine.core()
    assert holds(core.pid, device)
    assert not holds(engine.process.pid, device)
    engine.signal(signal.SIGKILL)
    engine.wait_exit()
    assert holds(core.pid, device)


def holds(pid: int, path: Path) -> bool:
    found = []
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            found.append(fd.readlink())
    return path in found
