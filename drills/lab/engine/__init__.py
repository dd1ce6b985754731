"""An emulator of a vLLM 0.32 replica: what it says on the wire, and how it dies, without a model or a GPU.

    client ──HTTP──► API server (server.py, http.py)  ──socketpair──►  VLLM::EngineCore (core.py)
                     validates, tokenizes, streams,                    continuous batching (scheduler.py)
                     counts (metrics.py)                               over KV blocks (kv.py), in real time

Two real processes, because faults aim at one or the other: stopping the core hangs every stream while
`/health` still says 200; killing it ends streams with an in-band error and the API server exits with
status 0; killing the API server leaves the core an orphan that still holds its GPU.

Answers are numbered words, `t0 t1 t2 ...`, so a client can prove that none is missing or repeated.
Not emulated: sampling, log probabilities, `n` > 1, `stop` strings, tools, several prompts in one request.

Run one with `python -m drills.lab.engine.server --port 18100`.
"""
