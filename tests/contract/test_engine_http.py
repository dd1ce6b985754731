"""What an engine says on the wire while nothing is wrong: endpoints, streams, ids, counts, metrics."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from drills.lab.engine import exposition
from tests.contract.engine_harness import KINDS, Engine, Pool, until

JSON_TYPE = {"Content-Type": "application/json"}


@pytest.fixture(scope="module", params=sorted(KINDS))
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, pool: Pool) -> Iterator[Engine]:
    folder: Path = tmp_path_factory.mktemp("engine")
    with pool.borrow(request.param, folder, max_model_len="512", step_base_ms="4") as e:
        yield e


def chat(tokens: int, **more: object) -> dict[str, object]:
    return {"messages": [{"role": "user", "content": "a b c d e"}], "max_tokens": tokens, "ignore_eos": True, **more}


# ---- endpoints ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path", "status", "body"),
    [
        ("GET", "/health", 200, ""),
        ("HEAD", "/health", 405, ""),
        ("POST", "/health", 405, '{"detail":"Method Not Allowed"}'),
        ("GET", "/ping", 200, ""),
        ("POST", "/ping", 200, ""),
        ("GET", "/load", 200, '{"server_load":0}'),
        ("GET", "/version", 200, '{"version":"0.32.0"}'),
        ("GET", "/nothing", 404, '{"detail":"Not Found"}'),
        ("GET", "/is_paused", 404, '{"detail":"Not Found"}'),
        ("GET", "/v1/chat/completions", 405, '{"detail":"Method Not Allowed"}'),
    ],
)
def test_an_endpoint_answers(engine: Engine, method: str, path: str, status: int, body: str) -> None:
    reply = engine.request(method, path)
    assert (reply.status, reply.body.decode()) == (status, body)
    assert reply.headers["server"] == "uvicorn"


def test_the_model_is_listed(engine: Engine) -> None:
    listed = engine.get("/v1/models").json()
    assert [m["id"] for m in listed["data"]] == ["tiny"]
    assert listed["data"][0]["max_model_len"] == 512
    assert listed["data"][0]["owned_by"] == "vllm"


def test_tokenize_counts_what_usage_counts(engine: Engine) -> None:
    counted = engine.post("/tokenize", {"messages": [{"role": "user", "content": "a b c d e"}]}).json()
    usage = engine.post("/v1/chat/completions", chat(1)).json()["usage"]
    assert counted["count"] == len(counted["tokens"]) == usage["prompt_tokens"]


def test_two_processes_and_one_of_them_is_the_core(engine: Engine) -> None:
    core = engine.core()
    assert core.ppid() == engine.process.pid
    assert core.cmdline()[0] == "VLLM::EngineCore"


# ---- streams ------------------------------------------------------------------------------------------


def test_a_chat_stream_has_role_deltas_finish_and_done(engine: Engine) -> None:
    reply = engine.post("/v1/chat/completions", chat(8, stream=True), {"X-Request-Id": "my-req-42"})
    assert reply.status == 200
    assert reply.complete
    assert reply.headers["content-type"] == "text/event-stream; charset=utf-8"
    *events, done = reply.events()
    assert done == "[DONE]"
    assert {e["id"] for e in events} == {"chatcmpl-my-req-42"}
    assert {e["object"] for e in events} == {"chat.completion.chunk"}
    assert events[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    reasons = [e["choices"][0]["finish_reason"] for e in events]
    assert reasons == [None] * (len(events) - 1) + ["length"]
    assert not any("usage" in e for e in events)


def test_the_role_comes_with_the_first_token_and_not_before(engine: Engine) -> None:
    with contextlib.closing(engine.ask(3)) as talk:
        talk.headers()
        talk.tokens(1)
        assert talk.raw.index(b'"role":"assistant"') < talk.raw.index(b'"content":"t')
        talk.finish()


def test_a_stream_without_usage_ends_with_the_fingerprint(engine: Engine) -> None:
    *_, last, done = engine.post("/v1/chat/completions", chat(2, stream=True)).events()
    assert done == "[DONE]"
    assert last["system_fingerprint"].startswith("vllm-0.32.0-")
    assert [*last["choices"][0]] == ["index", "delta", "logprobs", "finish_reason", "stop_reason", "token_ids"]


def test_more_tokens_than_the_context_has_room_for_are_cut(engine: Engine) -> None:
    answer = engine.post("/v1/chat/completions", chat(510)).json()
    assert (answer["usage"]["total_tokens"], answer["choices"][0]["finish_reason"]) == (512, "length")


def test_tokens_are_numbered_and_none_is_missing(engine: Engine) -> None:
    with contextlib.closing(engine.ask(40)) as talk:
        reply = talk.finish()
    assert reply.content().split() == [f"t{i}" for i in range(40)]
    assert reply.usage()["completion_tokens"] == 40


def test_usage_comes_once_at_the_end_when_asked_for(engine: Engine) -> None:
    value = chat(6, stream=True, stream_options={"include_usage": True})
    *_, last_delta, usage, done = engine.post("/v1/chat/completions", value).events()
    assert done == "[DONE]"
    assert usage["choices"] == []
    assert usage["usage"] == {"prompt_tokens": 9, "total_tokens": 15, "completion_tokens": 6}
    assert last_delta["choices"][0]["finish_reason"] == "length"
    assert "usage" not in last_delta


def test_continuous_usage_grows_with_the_answer(engine: Engine) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    events = engine.post("/v1/chat/completions", chat(6, stream=True, stream_options=options)).events()
    counts = [e["usage"]["completion_tokens"] for e in events if e != "[DONE]"]
    assert counts == sorted(counts)
    assert (counts[0], counts[-2], counts[-1]) == (0, 6, 6)


def test_a_completions_stream_has_text_and_its_own_ids(engine: Engine) -> None:
    value = {"prompt": "a b c d e", "max_tokens": 6, "ignore_eos": True, "stream": True}
    *events, done = engine.post("/v1/completions", value, {"X-Request-Id": "x1"}).events()
    assert done == "[DONE]"
    assert {e["id"] for e in events} == {"cmpl-x1"}
    assert {e["object"] for e in events} == {"text_completion"}
    assert [e["choices"][0]["finish_reason"] for e in events][-1] == "length"
    fields = ["index", "text", "logprobs", "finish_reason", "stop_reason", "prompt_token_ids", "token_ids"]
    assert all([*e["choices"][0]] == fields for e in events)
    assert "".join(e["choices"][0]["text"] for e in events).split() == [f"t{i}" for i in range(6)]


# ---- whole answers ------------------------------------------------------------------------------------


def test_a_whole_chat_answer_has_vllms_fields(engine: Engine) -> None:
    reply = engine.post("/v1/chat/completions", chat(8))
    answer = reply.json()
    assert reply.headers["content-length"] == str(len(reply.body))
    captured = (
        "id object created model choices service_tier system_fingerprint usage prompt_logprobs prompt_token_ids "
        "prompt_text kv_transfer_params ec_transfer_params metrics"
    )
    assert list(answer) == captured.split()
    assert answer["object"] == "chat.completion"
    choice = answer["choices"][0]
    assert choice["message"]["role"] == "assistant"
    assert choice["message"]["content"].split() == [f"t{i}" for i in range(8)]
    assert choice["finish_reason"] == "length"
    assert {k: answer["usage"][k] for k in ("prompt_tokens", "total_tokens", "completion_tokens")} == {
        "prompt_tokens": 9,
        "total_tokens": 17,
        "completion_tokens": 8,
    }


def test_a_whole_completions_answer(engine: Engine) -> None:
    answer = engine.post("/v1/completions", {"prompt": "a b", "max_tokens": 4, "ignore_eos": True}).json()
    assert answer["id"].startswith("cmpl-")
    assert answer["choices"][0]["text"].split() == ["t0", "t1", "t2", "t3"]
    assert answer["usage"]["prompt_tokens"] == 2
    assert answer["choices"][0]["routed_experts"] is None


@pytest.mark.parametrize(
    ("headers", "more", "id_"),
    [
        ({}, {}, r"chatcmpl-[0-9a-f]{16}"),
        ({"X-Request-Id": "h-1"}, {}, r"chatcmpl-h-1"),
        ({}, {"request_id": "body-id-7"}, r"chatcmpl-body-id-7"),
    ],
)
def test_the_id_is_the_clients(engine: Engine, headers: dict[str, str], more: dict[str, str], id_: str) -> None:
    reply = engine.post("/v1/chat/completions", chat(1, **more), headers)
    assert re.fullmatch(id_, reply.json()["id"])
    assert "x-request-id" not in reply.headers


# ---- metrics ------------------------------------------------------------------------------------------


def test_a_request_is_counted(engine: Engine) -> None:
    def seen() -> dict[str, float]:
        return {
            "ok": engine.metric("vllm:request_success_total", finished_reason="length"),
            "prompt": engine.metric("vllm:prompt_tokens_total"),
            "tokens": engine.metric("vllm:generation_tokens_total"),
            "ttft": engine.metric("vllm:time_to_first_token_seconds_count"),
            "http": engine.metric("http_requests_total", handler="/v1/chat/completions", status="2xx"),
        }

    engine.post("/v1/chat/completions", chat(1))
    before = seen()
    engine.post("/v1/chat/completions", chat(7))
    change = {k: v - before[k] for k, v in seen().items()}
    assert change == {"ok": 1, "prompt": 9, "tokens": 7, "ttft": 1, "http": 1}


def test_metrics_have_the_names_types_and_labels_that_were_captured(engine: Engine) -> None:
    """families.json is what the emulator exposes; a real engine must expose the same, and no other of its own."""
    engine.post("/v1/chat/completions", chat(2))
    lines = engine.get("/metrics").body.decode().splitlines()
    types = {words[2]: words[3] for words in (line.split() for line in lines if line.startswith("# TYPE "))}
    labels: dict[str, set[str]] = {}
    for line in lines:
        if not line.startswith("#"):
            series = line.rpartition(" ")[0]
            name, _, rest = series.partition("{")
            bare = re.sub(r"_(bucket|sum|count)$", "", name)
            labels.setdefault(bare if bare in types else name, set()).update(re.findall(r'([a-z_]+)="', rest))
    families = json.loads((Path(exposition.__file__).parent / "families.json").read_text())
    for f in families:
        bucket = {"le"} if f["type"] == "histogram" else set()
        assert types[f["name"]] == f["type"], f["name"]
        assert labels[f["name"]] - bucket == set(f["labels"]), f["name"]
    counted = {f["name"].removesuffix("_total" if f["type"] == "counter" else "") for f in families if f["created"]}
    known = {f["name"] for f in families} | {f"{name}_created" for name in counted}
    assert {name for name in types if name.startswith("vllm:")} == {n for n in known if n.startswith("vllm:")}


def test_health_and_metrics_are_not_counted(engine: Engine) -> None:
    engine.get("/health")
    assert 'handler="/health"' not in engine.get("/metrics").body.decode()


def test_the_prefix_cache_hits_in_whole_blocks(engine: Engine) -> None:
    block = int(re.findall(r'[{,]block_size="(\d+)"', engine.get("/metrics").body.decode())[0])
    words = " ".join(f"t{i}" for i in range(400))
    value = {"messages": [{"role": "user", "content": words}], "max_tokens": 1}
    prompt = engine.post("/v1/chat/completions", value).json()["usage"]["prompt_tokens"]
    hits, queries = (engine.metric(f"vllm:prefix_cache_{n}_total") for n in ("hits", "queries"))
    engine.post("/v1/chat/completions", value)
    assert engine.metric("vllm:prefix_cache_hits_total") - hits == (prompt - 1) // block * block
    assert engine.metric("vllm:prefix_cache_queries_total") - queries == prompt


def test_the_next_turn_of_a_chat_hits_what_was_generated(engine: Engine) -> None:
    first = [{"role": "user", "content": " ".join(f"t{i}" for i in range(40))}]
    answer = engine.post("/v1/chat/completions", {"messages": first, "max_tokens": 40, "ignore_eos": True}).json()
    usage, said = answer["usage"], answer["choices"][0]["message"]
    hits = engine.metric("vllm:prefix_cache_hits_total")
    turn = [*first, {"role": "assistant", "content": said["content"]}, {"role": "user", "content": "and now"}]
    engine.post("/v1/chat/completions", {"messages": turn, "max_tokens": 1})
    gained = engine.metric("vllm:prefix_cache_hits_total") - hits
    assert usage["prompt_tokens"] < gained <= usage["total_tokens"]


def test_nothing_is_running_when_all_is_done(engine: Engine) -> None:
    assert (engine.running(), engine.waiting(), engine.metric("vllm:kv_cache_usage_perc")) == (0, 0, 0)


# ---- clients that leave -------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_is_aborted_and_counted_nowhere(engine: Engine, stream: bool) -> None:
    def successes() -> float:
        reasons = ("stop", "length", "abort", "error")
        return sum(engine.metric("vllm:request_success_total", finished_reason=r) for r in reasons)

    before = successes()
    with contextlib.closing(engine.ask(400)) as stays:
        stays.tokens(2)
        leaving = engine.ask(400, stream=stream)
        until(lambda: engine.running() == 2, "both run")
        leaving.close()
        until(lambda: engine.running() == 1, "one is left", timeout_s=2)
    until(lambda: engine.running() == 0, "none is left", timeout_s=2)
    assert successes() == before


def test_the_json_of_a_body_is_read_as_it_is(engine: Engine) -> None:
    body = json.dumps(chat(1)).encode()
    for media in ("application/json", "application/json; charset=utf-8", "Application/JSON"):
        assert engine.request("POST", "/v1/chat/completions", body, {"Content-Type": media}).status == 200
