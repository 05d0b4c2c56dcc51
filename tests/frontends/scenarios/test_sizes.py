"""Real sizes, without their memory."""

from __future__ import annotations

import resource
import time

import pytest

from farflung.frontends.recipes import load_recipe
from farflung.graph.validate import validate

LLAMA_70B = {
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "sequence": 2048,
}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_llama_70b_in_two_minutes_and_two_gigabytes():
    recipe = load_recipe("llama", LLAMA_70B)
    before = time.process_time()
    graph = recipe.graph("train", 1)
    assert time.process_time() - before < 120
    validate(graph)
    assert sum(state.spec.numel for state in graph.parameters) == 70_553_706_496
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 < 2e9


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "args", "parameters"),
    [
        ("gpt2", {"sequence": 1024}, 124_439_808),
        ("resnet18", {"stem": "imagenet", "size": 224, "classes": 1000}, 11_689_512),
        ("resnet50", {"stem": "imagenet", "size": 224, "classes": 1000}, 25_557_032),
        ("resnet101", {"stem": "imagenet", "size": 224, "classes": 1000}, 44_549_160),
        ("bert", {"sequence": 512}, 109_514_298),
    ],
)
def test_usual_sizes(name, args, parameters):
    graph = load_recipe(name, args).graph("train", 2)
    validate(graph)
    assert sum(state.spec.numel for state in graph.parameters) == parameters
