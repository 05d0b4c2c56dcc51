"""A language model by its sizes, on text that is made up where a benchmark runs: the sections of its job."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Protocol

import ml_dtypes
import numpy as np

from farflung.checkpoint.model_files import bytes_tokenizer
from farflung.checkpoint.safetensors import Array, encode
from farflung.graph.ir import TensorSpec
from farflung.job.spec import DataSpec, ModelSpec

__all__ = ["Gpt2Sizes", "gpt2_of", "made_up_chats", "made_up_text", "save_llama"]

_TEMPLATE = "{% for m in messages %}[{{ m['role'][0] }}]{{ m['content'] }};{% endfor %}"


class Gpt2Sizes(Protocol):
    """What settings of a benchmark say of a GPT-2."""

    @property
    def layers(self) -> int:
        """Transformer blocks."""

    @property
    def width(self) -> int:
        """Of the embeddings."""

    @property
    def heads(self) -> int:
        """Of the attention."""

    @property
    def vocabulary(self) -> int:
        """Tokens that it knows."""

    @property
    def sequence(self) -> int:
        """Tokens of a sample."""


def gpt2_of(sizes: Gpt2Sizes) -> ModelSpec:
    """GPT-2 of these sizes."""
    args: dict[str, int | float | bool | str | list[int] | None] = {
        "n_layer": sizes.layers,
        "n_embd": sizes.width,
        "n_head": sizes.heads,
        "vocab_size": sizes.vocabulary,
        "sequence": sizes.sequence,
    }
    return ModelSpec(recipe="gpt2", args=args)


def made_up_text(folder: Path, sequence: int, samples: int = 200) -> DataSpec:
    """Write a text of ``samples`` samples of ``sequence`` letters into ``folder``, the same each time, and say how it is read."""
    text = "".join(chr(97 + (7 * i + i * i // 11) % 26) for i in range(samples * sequence))
    (folder / "text.txt").write_text(text, encoding="ascii")
    return DataSpec(kind="text", path=".", glob="*.txt", sequence=sequence)


def save_llama(folder: Path, sizes: Gpt2Sizes, seed: int = 0) -> None:
    """Write a Llama with random bfloat16 weights, one file for each block, and a tokenizer of bytes with a chat template.

    One tensor is in memory at a time. The hidden size of the feed-forward layers is 2.75 times the width, and eight heads share
    their keys and values: with 22 layers of width 2,048, 32 heads and 32,000 tokens this is the shape of TinyLlama 1.1 B (Zhang
    et al., 2024).
    """
    folder.mkdir(parents=True)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "bfloat16",
        "num_hidden_layers": sizes.layers,
        "hidden_size": sizes.width,
        "intermediate_size": sizes.width * 11 // 4,
        "num_attention_heads": sizes.heads,
        "num_key_value_heads": max(1, sizes.heads // 8),
        "vocab_size": sizes.vocabulary,
        "max_position_embeddings": sizes.sequence,
        "bos_token_id": 0,
        "eos_token_id": 1,
    }
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    for name, data in bytes_tokenizer().items():
        (folder / name).write_bytes(data)
    (folder / "chat_template.jinja").write_text(_TEMPLATE, encoding="utf-8")
    random = np.random.default_rng(seed)
    files: dict[str, str] = {}
    for number, shapes in enumerate(_llama_shapes(sizes)):
        file = f"model-{number:05}.safetensors"
        specs = {name: TensorSpec(dtype="bfloat16", shape=shape) for name, shape in shapes.items()}
        with (folder / file).open("wb") as stream:
            stream.writelines(encode(specs, partial(_random_weight, random, shapes)))
        files |= dict.fromkeys(shapes, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": files}), encoding="utf-8")


def _random_weight(random: np.random.Generator, shapes: Mapping[str, tuple[int, ...]], name: str) -> Array:
    shape = shapes[name]
    if len(shape) == 1:
        return np.ones(shape, ml_dtypes.bfloat16)
    return (0.02 * random.standard_normal(shape, np.float32)).astype(ml_dtypes.bfloat16)


def _llama_shapes(sizes: Gpt2Sizes) -> list[Mapping[str, tuple[int, ...]]]:
    """The tensors of each file: embeddings, blocks, and the output layer."""
    width, inner = sizes.width, sizes.width * 11 // 4
    shared = width // sizes.heads * max(1, sizes.heads // 8)
    block: Mapping[str, tuple[int, ...]] = {
        "self_attn.q_proj": (width, width),
        "self_attn.k_proj": (shared, width),
        "self_attn.v_proj": (shared, width),
        "self_attn.o_proj": (width, width),
        "mlp.gate_proj": (inner, width),
        "mlp.up_proj": (inner, width),
        "mlp.down_proj": (width, inner),
        "input_layernorm": (width,),
        "post_attention_layernorm": (width,),
    }
    blocks = [{f"model.layers.{n}.{name}.weight": shape for name, shape in block.items()} for n in range(sizes.layers)]
    ends = {"model.norm.weight": (width,), "lm_head.weight": (sizes.vocabulary, width)}
    return [{"model.embed_tokens.weight": (sizes.vocabulary, width)}, *blocks, ends]


def made_up_chats(folder: Path, tokenizer: Path, sequence: int, samples: int = 200) -> DataSpec:
    """Write ``samples`` chats of ``sequence`` letters into ``folder``, the same each time, and say how they are read."""
    turns = [[("user", f"{n} and more?"), ("assistant", chr(97 + n % 26) * sequence)] for n in range(samples)]
    rows = [{"messages": [{"role": role, "content": text} for role, text in chat]} for chat in turns]
    (folder / "chats.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="ascii")
    return DataSpec(kind="dataset", path="chats.jsonl", messages="messages", tokenizer=str(tokenizer), sequence=sequence)
