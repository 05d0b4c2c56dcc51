"""The serving form of recipes: caches for every attention layer, the states of training, and what can't be served."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from farflung.errors import InputError
from farflung.frontends.recipes.base import CacheShape
from farflung.frontends.recipes.registry import load_recipe
from tests.support.models.model_folders import save_model

SHAPE = CacheShape(slots=3, context=16)
SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32, "vocab_size": 64}
RECIPES: dict[str, tuple[dict[str, Any], int, tuple[int, int]]] = {
    "gpt": ({"vocab": 256, "sequence": 16, "layers": 3, "width": 16, "heads": 2}, 3, (2, 8)),
    "gpt2": ({"n_layer": 2, "n_embd": 16, "n_head": 2, "vocab_size": 64, "sequence": 16}, 2, (2, 8)),
    "llama": ({**SMALL, "num_key_value_heads": 1, "sequence": 16}, 2, (1, 8)),
    "llama with adapters": ({**SMALL, "num_key_value_heads": 1, "sequence": 16, "lora_rank": 2}, 2, (1, 8)),
}


def caches_of(recipe: Any, tokens: int) -> tuple[set[str], dict[str, tuple[int, ...]]]:
    """The states beside those of training, and the caches with their shapes."""
    graph = recipe.capture(recipe.serve(SHAPE), tokens)
    assert graph.serves
    assert graph.spec(graph.result).shape[0] == min(tokens, 3)
    trained = {state.name for state in recipe.graph("train", 1).states}
    found = {state.name: state.spec.shape for state in graph.states if state.name.endswith("key_value_cache")}
    assert all(not graph.state[name].persistent for name in found), "no file has them"
    return {state.name for state in graph.states} ^ trained, found


@pytest.mark.parametrize("tokens", [1, 5])
@pytest.mark.parametrize("name", RECIPES)
def test_the_states_are_those_of_training_and_a_cache_per_layer(name: str, tokens: int) -> None:
    args, layers, (groups, dims) = RECIPES[name]
    others, caches = caches_of(load_recipe(name.partition(" ")[0], args), tokens)
    assert others == set(caches)
    assert list(caches.values()) == [(2, 3, groups, 16, dims)] * layers


def test_a_training_graph_does_not_serve() -> None:
    graph = load_recipe("gpt", RECIPES["gpt"][0]).graph("train", 1)
    assert not graph.serves
    assert graph.result == graph.loss


def test_experts_are_served(tmp_path: Path) -> None:
    save_model("experts", tmp_path)
    _, caches = caches_of(load_recipe("hf", {"folder": str(tmp_path), "sequence": 8}), 4)
    assert len(caches) == 2


@pytest.mark.parametrize(
    ("kind", "config", "text"),
    [
        (
            "MambaForCausalLM",
            {"hidden_size": 16, "num_hidden_layers": 2, "vocab_size": 64},
            "its forward has no argument position_ids",
        ),
        (
            "BloomForCausalLM",
            {"hidden_size": 16, "n_layer": 2, "n_head": 2, "vocab_size": 64},
            "its forward has no argument position_ids",
        ),
    ],
)
def test_other_architectures_are_refused(tmp_path: Path, kind: str, config: dict[str, Any], text: str) -> None:
    import transformers

    made = getattr(transformers, kind)
    made(made.config_class(**config)).save_pretrained(tmp_path)
    recipe = load_recipe("hf", {"folder": str(tmp_path), "sequence": 8, "attention": "eager"})
    assert recipe.serve is not None
    with pytest.raises(InputError, match=f"the model can't be served: {text}"):
        recipe.serve(SHAPE)


def test_masked_models_have_no_serving_form(tmp_path: Path) -> None:
    save_model("masked", tmp_path)
    assert load_recipe("hf", {"folder": str(tmp_path), "sequence": 8, "task": "masked", "mask_token_id": 3}).serve is None
    assert load_recipe("bert", {**SMALL, "sequence": 8}).serve is None
