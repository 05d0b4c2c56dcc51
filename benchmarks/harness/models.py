"""The models of the exactness benchmark: one of each family, small, with real batches keyed by (step, micro-batch)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from farflung.errors import InputError

if TYPE_CHECKING:
    from torch import nn

__all__ = ["FAMILIES", "Family", "family"]

#: name -> (recipe, arguments for quick runs, arguments otherwise)
_RECIPES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "gpt2": (
        "gpt2",
        {"n_layer": 2, "n_embd": 32, "n_head": 2, "vocab_size": 67, "sequence": 12},
        {"n_layer": 6, "n_embd": 128, "n_head": 4, "vocab_size": 997, "sequence": 64},
    ),
    "llama": (
        "llama",
        {"num_hidden_layers": 2, "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4}
        | {"num_key_value_heads": 2, "head_dim": 8, "vocab_size": 67, "sequence": 12},
        {"num_hidden_layers": 4, "hidden_size": 128, "intermediate_size": 352, "num_attention_heads": 8}
        | {"num_key_value_heads": 4, "head_dim": 16, "vocab_size": 997, "sequence": 64},
    ),
    "bert": (
        "bert",
        {"num_hidden_layers": 2, "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2}
        | {"vocab_size": 67, "sequence": 12},
        {"num_hidden_layers": 4, "hidden_size": 128, "intermediate_size": 512, "num_attention_heads": 4}
        | {"vocab_size": 997, "sequence": 64},
    ),
    "resnet18": ("resnet18", {"size": 8}, {"size": 32}),
    "cnn": ("cnn", {"size": 12, "width": 8}, {"size": 32, "width": 16, "dropout": 0.2}),
}
FAMILIES = tuple(_RECIPES)


@dataclass(frozen=True, kw_only=True)
class Family:
    """A model with its batches: ``make()`` gives a fresh module with the same weights each time."""

    name: str
    recipe: str
    args: dict[str, Any]
    make: Callable[[], nn.Module]
    batch: Callable[[int, int], tuple[Any, ...]]


def family(name: str, *, quick: bool, rows: int = 2) -> Family:
    """The family called ``name``, for micro-batches of ``rows`` samples.

    Raises:
        InputError: the name is unknown.
    """
    import torch

    from farflung.frontends.recipes import load_recipe
    from farflung.ids import derive_seed

    if name not in _RECIPES:
        raise InputError(f"unknown model {name!r}: known are {', '.join(_RECIPES)}")
    kind, small, large = _RECIPES[name]
    args = small if quick else large
    recipe = load_recipe(kind, args)
    examples = recipe.train.example_inputs(rows)

    def make() -> nn.Module:
        with torch.random.fork_rng():
            torch.manual_seed(1)
            return recipe.train.factory().train()

    highest = int(args.get("vocab_size", 10))

    def batch(step: int, micro_batch: int) -> tuple[Any, ...]:
        draw = torch.Generator().manual_seed(derive_seed("bench-batch", step, micro_batch) % 2**63)
        if examples[0].is_floating_point():
            return torch.randn(examples[0].shape, generator=draw), torch.randint(0, 10, examples[1].shape, generator=draw)
        tokens = torch.randint(0, highest, examples[0].shape, generator=draw)
        return tokens, tokens

    return Family(name=name, recipe=kind, args=args, make=make, batch=batch)
