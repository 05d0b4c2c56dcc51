"""What a recipe is: one model in the forms that a job needs, all of which name their weights alike.

A form is a module factory with example inputs. ``train`` gives the scalar loss; ``evaluate`` the loss, and for classifiers the
number of correct predictions; ``generate`` the logits of a language model. They differ in the forward only, so the graphs that
are captured from them share their states by name.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import nn

from farflung.errors import InputError
from farflung.frontends.torch.capture import capture
from farflung.graph.ir import Graph, TensorSpec
from farflung.graph.weight_expressions import Expression

__all__ = ["FORMS", "CacheShape", "Form", "FormName", "Recipe", "images", "language_recipe", "tokens"]

FormName = Literal["train", "evaluate", "generate"]
FORMS: tuple[FormName, ...] = ("train", "evaluate", "generate")

#: A micro-batch of a given number of samples: a tuple of tensors in order, or a mapping by name.
Examples = Callable[[int], Any]


#: (names of the tensors of the files, what gives the spec of one) -> state -> what it is made of.
Sources = Callable[[Collection[str], Callable[[str], TensorSpec]], Mapping[str, Expression]]


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheShape:
    """Of the key-value caches of a served model: requests at the same time, and tokens of one request."""

    slots: int
    context: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """``factory()`` makes the module, ``example_inputs(batch_size)`` its inputs; ``outputs`` names its results."""

    factory: Callable[[], nn.Module]
    example_inputs: Examples
    outputs: tuple[str, ...] = ("loss",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """A model with its forms. ``inputs`` and ``labels`` are the names of the training form's placeholders.

    ``notes`` travel with the run's checkpoints, for exports: ``transformers`` is the model's configuration (JSON), ``prefix``
    what the names of its states begin with here and not there, ``lora`` the configuration of its adapters (peft's, JSON).
    ``serve`` gives the form with key-value caches, whose batch size is the number of tokens in a row (``recipes.serving``).
    ``positions``: the longest row of tokens that the model takes (0: ``notes`` tell, or there is no limit).
    ``weights``: the folder or file with the model's trained weights, from which a job starts unless it says otherwise.
    ``sources`` says what the states are made of, given the files of the weights (``None``: tensors of the same names).
    """

    name: str
    train: Form
    evaluate: Form | None = None
    generate: Form | None = None
    serve: Callable[[CacheShape], Form] | None = None
    positions: int = 0
    inputs: tuple[str, ...]
    labels: tuple[str, ...]
    notes: Mapping[str, str] = field(default_factory=dict)
    weights: str | None = None
    sources: Sources | None = None

    def form(self, name: FormName) -> Form:
        """The form called ``name``.

        Raises:
            InputError: the recipe does not have it.
        """
        found: Form | None = getattr(self, name) if name in FORMS else None
        if found is None:
            known = ", ".join(form for form in FORMS if getattr(self, form) is not None)
            raise InputError(f"recipe {self.name!r} has no form {name!r}: it has {known}")
        return found

    def graph(self, name: FormName, batch_size: int) -> Graph:
        """Capture one form for micro-batches of ``batch_size`` samples, with the recorded initializers.

        Raises:
            InputError: the recipe does not have the form, or examples of that size don't fit into memory.
            CaptureError: the module can't become a graph.
        """
        return self.capture(self.form(name), batch_size, mode="train" if name == "train" else "eval")

    def capture(self, form: Form, batch_size: int, *, mode: str = "eval") -> Graph:
        """Capture ``form``; see ``graph``."""
        return capture(form.factory, _examples(form, batch_size), name=self.name, mode=mode, outputs=form.outputs)

    def graphs(self, batch_sizes: Iterable[int]) -> dict[tuple[FormName, int], Graph]:
        """All forms that there are: training for each of ``batch_sizes``, evaluation for the first, generation for one sample."""
        sizes = tuple(dict.fromkeys(batch_sizes))
        found: dict[tuple[FormName, int], Graph] = {("train", size): self.graph("train", size) for size in sizes}
        if self.evaluate is not None:
            found["evaluate", sizes[0]] = self.graph("evaluate", sizes[0])
        if self.generate is not None:
            found["generate", 1] = self.graph("generate", 1)
        return found


def _examples(form: Form, batch_size: int) -> Any:
    try:
        return form.example_inputs(batch_size)
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "memory" not in str(error):
            raise
        raise InputError(
            f"examples of {batch_size} samples don't fit into this machine's memory: make micro_batch_sizes smaller"
        ) from None


def tokens(sequence: int, count: int) -> Examples:
    """Examples of ``count`` tensors of token numbers, each ``int64 (batch, sequence)``."""
    return lambda batch: tuple(torch.zeros(batch, sequence, dtype=torch.int64) for _ in range(count))


def images(channels: int, size: int) -> Examples:
    """Examples of images ``float32 (batch, channels, size, size)`` and labels ``int64 (batch,)``."""
    return lambda batch: (torch.zeros(batch, channels, size, size), torch.zeros(batch, dtype=torch.int64))


def language_recipe(name: str, factory: Callable[[], nn.Module], sequence: int) -> Recipe:
    """A recipe for ``forward(tokens, targets=None)``: the loss with targets, the logits without."""
    return Recipe(
        name=name,
        train=Form(factory=factory, example_inputs=tokens(sequence, 2)),
        evaluate=Form(factory=factory, example_inputs=tokens(sequence, 2)),
        generate=Form(factory=factory, example_inputs=tokens(sequence, 1), outputs=("logits",)),
        inputs=("tokens",),
        labels=("targets",),
    )
