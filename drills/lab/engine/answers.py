"""The JSON and the server-sent events of an answer, field for field as vLLM 0.32 sends them."""

from __future__ import annotations

import json
from typing import Any

from drills.lab.engine.errors import DONE
from drills.lab.engine.requests import CHAT
from drills.lab.engine.tokens import answer_text

FINGERPRINT = "vllm-0.32.0-abdc3e39"
VERSION = "0.32.0"


def dump(value: object) -> str:
    """Return compact JSON."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def usage(prompt: int, completion: int) -> dict[str, Any]:
    """Return the token counts."""
    return {"prompt_tokens": prompt, "total_tokens": prompt + completion, "completion_tokens": completion}


class Stream:
    """Writes the events of one stream."""

    def __init__(
        self,
        kind: str,
        id_: str,
        model: str,
        created: int,
        prompt_tokens: int,
        *,
        include_usage: bool,
        continuous_usage: bool,
    ) -> None:
        self.kind, self.prompt_tokens = kind, prompt_tokens
        self.include_usage, self.continuous_usage = include_usage, continuous_usage
        name = "chat.completion.chunk" if kind == CHAT else "text_completion"
        self._head = f'data: {{"id":{dump(id_)},"object":"{name}","created":{created},"model":{dump(model)},"choices":['

    def _event(self, choices: str, usage_json: str = "", tail: str = "") -> str:
        return f"{self._head}{choices}]{usage_json}{tail}}}\n\n"

    def _usage_so_far(self, completion: int) -> str:
        if not self.continuous_usage:
            return ""
        counts = {**usage(self.prompt_tokens, completion), "completion_tokens_details": None}
        return f',"usage":{dump(counts)}'

    def role(self) -> str:
        """Return the first event of a chat; a text has none."""
        if self.kind != CHAT:
            return ""
        choice = '{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}'
        return self._event(choice, self._usage_so_far(0), ',"prompt_token_ids":null,"prompt_text":null')

    def delta(self, start: int, stop: int, finish: str | None) -> str:
        """Return the event of the tokens from `start` to before `stop`; the last one says why it ends."""
        text = answer_text(start, stop)
        reason = f'"{finish}","stop_reason":null' if finish else "null"
        if self.kind == CHAT:
            said = f'"delta":{{"content":"{text}"}}'
        else:
            said = f'"text":"{text}"'
            reason += "" if finish else ',"stop_reason":null'
            reason += ',"prompt_token_ids":null'
        choice = f'{{"index":0,{said},"logprobs":null,"finish_reason":{reason},"token_ids":null}}'
        tail = f',"system_fingerprint":"{FINGERPRINT}"' if finish and not self.include_usage else ""
        return self._event(choice, self._usage_so_far(stop), tail)

    def end(self, completion: int) -> bytes:
        """Return the last events: usage, when asked for, and `[DONE]`."""
        if not self.include_usage:
            return DONE
        counts = f',"usage":{dump(usage(self.prompt_tokens, completion))}'
        return self._event("", counts, f',"system_fingerprint":"{FINGERPRINT}"').encode() + DONE


def whole(kind: str, id_: str, model: str, created: int, prompt_tokens: int, completion: int, finish: str) -> bytes:
    """Return the body of an answer that is not streamed."""
    text = answer_text(0, completion)
    chat = kind == CHAT
    counts = {**usage(prompt_tokens, completion), "prompt_tokens_details": None, "completion_tokens_details": None}
    answer: dict[str, Any] = {
        "id": id_,
        "object": "chat.completion" if chat else "text_completion",
        "created": created,
        "model": model,
        "choices": [_chat_choice(text, finish) if chat else _text_choice(text, finish)],
        "service_tier": None,
        "system_fingerprint": FINGERPRINT,
        "usage": counts,
    }
    if chat:
        answer |= {"prompt_logprobs": None, "prompt_token_ids": None, "prompt_text": None}
    answer |= {"kv_transfer_params": None, "ec_transfer_params": None, "metrics": None}
    return dump(answer).encode()


def _chat_choice(text: str, finish: str) -> dict[str, Any]:
    message = {
        "role": "assistant",
        "content": text,
        "refusal": None,
        "annotations": None,
        "audio": None,
        "function_call": None,
        "reasoning": None,
    }
    return {
        "index": 0,
        "message": message,
        "logprobs": None,
        "finish_reason": finish,
        "stop_reason": None,
        "token_ids": None,
        "routed_experts": None,
    }


def _text_choice(text: str, finish: str) -> dict[str, Any]:
    return {
        "index": 0,
        "text": text,
        "logprobs": None,
        "finish_reason": finish,
        "stop_reason": None,
        "token_ids": None,
        "prompt_logprobs": None,
        "prompt_token_ids": None,
        "routed_experts": None,
    }


def models(model: str, max_model_len: int, created: int, permission: str) -> bytes:
    """Return the body of `/v1/models`."""
    allowed = {
        "id": f"modelperm-{permission}",
        "object": "model_permission",
        "created": created,
        "allow_create_engine": False,
        "allow_sampling": True,
        "allow_logprobs": True,
        "allow_search_indices": False,
        "allow_view": True,
        "allow_fine_tuning": False,
        "organization": "*",
        "group": None,
        "is_blocking": False,
    }
    card = {
        "id": model,
        "object": "model",
        "created": created,
        "owned_by": "vllm",
        "root": model,
        "parent": None,
        "max_model_len": max_model_len,
        "permission": [allowed],
    }
    return dump({"object": "list", "data": [card]}).encode()
