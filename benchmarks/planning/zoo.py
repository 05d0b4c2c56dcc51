"""The models and networks of planning benchmarks: every recipe at a usual size, and every preset."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from farflung.graph.ir import Graph
from farflung.job.spec import CodecSpec, JobSpec, OptimizerSpec

__all__ = ["MODELS", "PRESETS", "zoo_graph", "zoo_job"]

_LLAMA_7B = {
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "vocab_size": 32000,
    "sequence": 1024,
}
_ALBERT = {
    "num_hidden_layers": 12,
    "hidden_size": 4096,
    "intermediate_size": 16384,
    "num_attention_heads": 64,
    "embedding_size": 128,
    "vocab_size": 30000,
    "sequence": 512,
}
#: model -> (recipe, arguments, samples of a micro-batch)
MODELS: Mapping[str, tuple[str, dict[str, Any], int]] = {
    "gpt2-xl": ("gpt2", {"n_layer": 48, "n_embd": 1600, "n_head": 25, "vocab_size": 50257, "sequence": 1024}, 2),
    "llama-7b": ("llama", _LLAMA_7B, 1),
    "resnet-101": ("resnet101", {"size": 64, "classes": 200, "stem": "imagenet"}, 16),
    "resnet-50": ("resnet50", {"size": 32, "classes": 100}, 16),
    "resnet-18": ("resnet18", {"size": 32, "classes": 10}, 16),
    "gpt2": ("gpt2", {"sequence": 1024}, 2),
    "bert": ("bert", {"sequence": 512}, 4),
    "albert-xxlarge": ("albert", _ALBERT, 4),
    "gpt": ("gpt", {}, 4),
    "moe": ("moe", {}, 4),
    "cnn": ("cnn", {}, 16),
    "tiny": ("gpt2", {"n_layer": 2, "n_embd": 32, "n_head": 2, "vocab_size": 61, "sequence": 16}, 2),
}
PRESETS = (
    *("local4-two-regions", "two-laptops", "home-lab", "dtfm-case1", "dtfm-case2", "dtfm-case3", "dtfm-case4", "dtfm-case5"),
    *("fluidstack", "fusionllm-testbed1", "fusionllm-testbed2", "dreamddp-cluster1", "dreamddp-cluster2"),
    *("hybridps-case1", "hybridps-case2", "hybridps-case3", "hybridps-case4", "homogeneous-8", "regions-24"),
)


def zoo_graph(name: str) -> Graph:
    """Capture a model of ``MODELS`` for training."""
    from farflung.frontends.recipes import load_recipe

    recipe, args, rows = MODELS[name]
    return load_recipe(recipe, args).graph("train", rows)


def zoo_job(name: str, micro_batches: int, *, seed: int = 0, codec: CodecSpec | None = None) -> JobSpec:
    """Return a job with AdamW and ``micro_batches`` of the model's usual size."""
    sizes = (MODELS[name][2],) * micro_batches
    return JobSpec(micro_batch_sizes=sizes, optimizer=OptimizerSpec(name="adamw"), seed=seed, codec=codec or CodecSpec())
