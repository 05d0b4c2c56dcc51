"""A trained language model on this machine: token ids in, the logits of the next token out."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from farflung.errors import CheckpointError, InputError
from farflung.frontends.recipes.base import Form, Recipe
from farflung.frontends.recipes.registry import load_recipe
from farflung.job.spec import ModelSpec

__all__ = ["TextModel", "positions_of", "recipe_arguments"]

#: How many positions a configuration of the ``transformers`` library allows.
_POSITIONS = ("n_positions", "max_position_embeddings")


class TextModel:
    """The module of a recipe's ``generate`` form with the states of a checkpoint; computes on the CPU."""

    def __init__(self, module: nn.Module, context: int) -> None:
        """``context``: how many token ids the module takes at most."""
        self._module, self.context = module.eval(), context

    @classmethod
    def load(
        cls, spec: ModelSpec, names: Iterable[str], read: Callable[[str], NDArray[Any]], notes: Mapping[str, str]
    ) -> TextModel:
        """Build the model of ``spec`` and give it its states.

        Args:
            spec: the model section of the job, with absolute paths.
            names: the states of the checkpoint.
            read: gives a state by name.
            notes: those of the checkpoint; the configuration of a ``transformers`` model is taken from them where the folder of
                the model is not on this machine.

        Raises:
            InputError: the recipe is not on this machine, or writes no text.
            CheckpointError: the states are not those of the model.
        """
        with recipe_arguments(spec, notes) as args:
            recipe = load_recipe(spec.recipe, args)
            form = _form(recipe, spec)
            module = form.factory()
        _fill(module, names, read)
        return cls(module, positions_of(notes) or _length(form))

    def logits(self, tokens: Sequence[int]) -> NDArray[np.float64]:
        """The logits ``(vocabulary,)`` of the token after ``tokens``, of which the last ``context`` count."""
        window = torch.tensor([list(tokens[-self.context :])], dtype=torch.int64)
        with torch.no_grad():
            found: Tensor = self._module(window)
        last: NDArray[np.float64] = found[0, -1].to(torch.float64).numpy()
        return last


def _form(recipe: Recipe, spec: ModelSpec) -> Form:
    if recipe.generate is None:
        raise InputError(
            f"model.recipe = {spec.recipe!r} writes no text: it has no form 'generate', which gives logits of tokens"
        )
    return recipe.generate


@contextmanager
def recipe_arguments(spec: ModelSpec, notes: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """The recipe's arguments; a model's folder that is not on this machine is replaced by one with its configuration."""
    folder, config = spec.args.get("folder"), notes.get("transformers")
    if not isinstance(folder, str) or config is None or Path(folder).is_dir():
        yield dict(spec.args)
        return
    with tempfile.TemporaryDirectory(prefix="farflung-config-") as place:
        (Path(place) / "config.json").write_text(config, encoding="utf-8")
        yield {**spec.args, "folder": place}


def positions_of(notes: Mapping[str, str]) -> int | None:
    """How many positions the model has by the configuration in ``notes`` (``None``: that does not say)."""
    config = json.loads(notes.get("transformers", "{}"))
    return next((config[key] for key in _POSITIONS if isinstance(config.get(key), int)), None)


def _length(form: Form) -> int:
    examples = form.example_inputs(1)
    first = next(iter(examples.values())) if isinstance(examples, Mapping) else examples[0]
    return int(first.shape[-1])


def _fill(module: nn.Module, names: Iterable[str], read: Callable[[str], NDArray[Any]]) -> None:
    parameters = dict(module.named_parameters(remove_duplicate=False))
    own = {**parameters, **dict(module.named_buffers(remove_duplicate=False))}
    filled = set[int]()
    with torch.no_grad():
        for name in names:
            target, value = own.get(name), _tensor(read(name))
            if target is None or target.shape != value.shape:
                found = "does not know it" if target is None else f"has {list(target.shape)} there"
                raise CheckpointError(
                    f"the checkpoint's {name!r} has {list(value.shape)}, and the model {found}: "
                    "use the job's own recipe, unchanged"
                )
            target.copy_(value)
            filled.add(id(target))
    missing = sorted(name for name, parameter in parameters.items() if id(parameter) not in filled)
    if missing:
        raise CheckpointError(f"the checkpoint lacks {missing[0]!r} of the model: use the job's own recipe, unchanged")


def _tensor(array: NDArray[Any]) -> Tensor:
    if array.dtype.name == "bfloat16":  # of ml_dtypes, which torch does not know
        return torch.from_numpy(array.view(np.uint16).copy()).view(torch.bfloat16)
    return torch.from_numpy(array.copy())
