"""A tiny model that counts, for real vLLM: `t0 t1 t2 ...` whatever is asked, so that a lost token can be seen.

A Llama of two layers in the usual files (config, tokenizer, safetensors), written byte by byte: no download, no
framework. Attention and MLP are computed like any other's and change nothing; the output layer knows what follows
each word. One word is one token where the vocabulary has the word, and its bytes are where it has not.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import string
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

from drills.load.workload import WORDS

VERSION = 2  # of the model: another one in a folder is written over
MORE = "hi say it ok? ready? ping"  # what probes and tests ask
COUNTS = 8192  # t0 to t8191: no answer in a context of so many tokens gets further
CONTEXT = 16384
HIDDEN, LAYERS, HEADS, MLP = 128, 2, 4, 256
SPECIAL = ("<|pad|>", "<|bos|>", "<|eos|>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>")
TEMPLATE = (
    "{{ '<|bos|>' }}{% for m in messages %}{{ '<|' + m['role'] + '|>' + m['content'] + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
Tensor = tuple[tuple[int, ...], bytes]


def make(folder: Path) -> Path:
    """Write the model unless this one is there already; returns the folder (OSError when it cannot be written)."""
    with contextlib.suppress(OSError, ValueError, KeyError):
        if json.loads((folder / "config.json").read_text())["drill"] == VERSION:
            return folder
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = _vocabulary()
    _write(folder / "tokenizer.json", _tokenizer(vocabulary))
    _write(folder / "tokenizer_config.json", _tokenizer_config())
    ends = {"bos_token_id": vocabulary["<|bos|>"], "eos_token_id": vocabulary["<|eos|>"], "pad_token_id": 0}
    _write(folder / "generation_config.json", ends)
    (folder / "model.safetensors").write_bytes(b"".join(_safetensors(dict(_tensors(vocabulary)))))
    _write(
        folder / "config.json", _config(len(vocabulary)) | ends | {"drill": VERSION}
    )  # last: it says that all of it is there
    return folder


def _write(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n")


# ---- words ---------------------------------------------------------------------------------------------


def _byte_letters() -> list[str]:
    """Return the letter by which byte-level tokenizers write each of the 256 bytes."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    spare = itertools.count(0x100)
    return [chr(byte) if byte in printable else chr(next(spare)) for byte in range(256)]


def _vocabulary() -> dict[str, int]:
    """Return token → id: special ones, bytes, then words, each with the space after it and without."""
    letters = _byte_letters()
    words = dict.fromkeys([*string.ascii_letters, *WORDS.split(), *MORE.split(), *(f"t{i}" for i in range(COUNTS))])
    spelt = (word + end for word in words for end in (letters[0x20], ""))
    return {token: i for i, token in enumerate(dict.fromkeys([*SPECIAL, *letters, *spelt]))}


def _tokenizer(vocabulary: dict[str, int]) -> object:
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    split = {"type": "Split", "pattern": {"Regex": r"\S+\s?|\s+"}, "behavior": "Isolated", "invert": False}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": vocabulary[token], "content": token, **flags} for token in SPECIAL],
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, byte_level]},
        "post_processor": None,
        "decoder": byte_level,
        # ignore_merges: a word that is in the vocabulary is taken whole, any other is its bytes
        "model": {"type": "BPE", "ignore_merges": True, "vocab": vocabulary, "merges": []},
    }


def _tokenizer_config() -> object:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|bos|>",
        "eos_token": "<|eos|>",
        "pad_token": "<|pad|>",
        "additional_special_tokens": list(SPECIAL[3:]),
        "model_max_length": CONTEXT,
        "clean_up_tokenization_spaces": False,
        "chat_template": TEMPLATE,
    }


# ---- weights -------------------------------------------------------------------------------------------


def _config(vocabulary: int) -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": vocabulary,
        "hidden_size": HIDDEN,
        "intermediate_size": MLP,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "head_dim": HIDDEN // HEADS,
        "max_position_embeddings": CONTEXT,
        "rope_theta": 10000.0,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "dtype": "bfloat16",
    }


def _tensors(vocabulary: dict[str, int]) -> Iterator[tuple[str, Tensor]]:
    """Yield the weights.

    A token is a row of signs; a row times itself is HIDDEN, times any other it is small. So the output layer's row of
    a counting word is the row of the word before it. All that do not count share half of their row, and t0 follows
    that half.
    """
    draw = random.Random(0)
    counts = _counting(vocabulary)
    shared = _signs(draw, HIDDEN // 2)
    rows = {i: shared + _signs(draw, HIDDEN // 2) for i in vocabulary.values()}
    rows |= {i: _signs(draw, HIDDEN) for i in counts}
    after = dict(zip(counts[1:], counts, strict=False))
    nothing = bytes(2 * HIDDEN)
    heads = {i: rows[after[i]] if i in after else nothing for i in rows}
    heads[counts[0]] = _doubled(shared) + bytes(HIDDEN)
    size = len(vocabulary)
    yield "model.embed_tokens.weight", ((size, HIDDEN), b"".join(rows[i] for i in range(size)))
    yield "lm_head.weight", ((size, HIDDEN), b"".join(heads[i] for i in range(size)))
    yield "model.norm.weight", ((HIDDEN,), _bfloat16(1.0) * HIDDEN)
    for layer in range(LAYERS):
        yield from _layer(f"model.layers.{layer}", draw)


def _layer(name: str, draw: random.Random) -> Iterator[tuple[str, Tensor]]:
    """Yield one layer: it computes from random weights and adds nothing, for its last projections are zero."""

    def matrix(rows: int, columns: int, make: Callable[[int], bytes]) -> Tensor:
        return (rows, columns), make(rows * columns)

    def signs(count: int) -> bytes:
        return _signs(draw, count)

    def zeros(count: int) -> bytes:
        return bytes(2 * count)

    for norm in ("input_layernorm", "post_attention_layernorm"):
        yield f"{name}.{norm}.weight", ((HIDDEN,), _bfloat16(1.0) * HIDDEN)
    for part in ("q", "k", "v"):
        yield f"{name}.self_attn.{part}_proj.weight", matrix(HIDDEN, HIDDEN, signs)
    yield f"{name}.self_attn.o_proj.weight", matrix(HIDDEN, HIDDEN, zeros)
    for part in ("gate", "up"):
        yield f"{name}.mlp.{part}_proj.weight", matrix(MLP, HIDDEN, signs)
    yield f"{name}.mlp.down_proj.weight", matrix(HIDDEN, MLP, zeros)


def _counting(vocabulary: dict[str, int]) -> list[int]:
    """Return the ids of `t0 `, `t1 `, ... (with the space after them) in order."""
    space = _byte_letters()[0x20]
    return [vocabulary[f"t{i}{space}"] for i in range(COUNTS)]


def _bfloat16(value: float) -> bytes:
    return struct.pack("<f", value)[2:]


_SIGN = (_bfloat16(1.0), _bfloat16(-1.0))


def _signs(draw: random.Random, count: int) -> bytes:
    bits = draw.getrandbits(count)
    return b"".join(_SIGN[bits >> i & 1] for i in range(count))


def _doubled(signs: bytes) -> bytes:
    return signs.replace(_SIGN[0], _bfloat16(2.0)).replace(_SIGN[1], _bfloat16(-2.0))


def _safetensors(tensors: dict[str, Tensor]) -> Iterator[bytes]:
    """Yield the file: length of the header, header, data."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, (shape, data) in tensors.items():
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    yield struct.pack("<Q", len(text)) + text
    for _, data in tensors.values():
        yield data
