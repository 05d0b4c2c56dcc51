"""How operators that draw random numbers run: keyed, and without touching the process's generator where possible."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from farflung.engines.torch.accelerators import default_generator
from farflung.engines.torch.keys import numbered, op_seed, seeded
from farflung.graph.ir import Op
from farflung.graph.opset import OpClass, info

__all__ = ["KeyHolder", "drawing"]


@dataclass
class KeyHolder:
    """The micro-batch that runs now; the calls of a program read it."""

    seed: int = 0
    step: int = 0
    micro_batch: int = 0

    def begin_run(self, seed: int) -> None:
        """Operators draw by ``seed`` of the job."""
        self.seed = seed

    def begin(self, step: int, micro_batch: int) -> None:
        """Operators draw for this micro-batch from now on."""
        self.step, self.micro_batch = step, micro_batch

    def of(self, rng: int) -> int:
        """The seed of drawing operator ``rng`` now."""
        return op_seed(self.seed, self.step, self.micro_batch, rng)


def drawing(op: Op, function: Any, device: torch.device, key: KeyHolder) -> Callable[..., Any]:
    """``function`` keyed by ``op.rng``.

    On a CPU, where these operators are made of plain ones, a generator of the runner's own gives the very same numbers;
    the others borrow the process's generator under a lock.
    """
    rng = op.rng
    assert rng is not None
    shared = default_generator(device)
    if info(op.target).op_class is OpClass.RECURRENT:  # draws once between two layers

        def each(*args: Any, **kwargs: Any) -> Any:
            with numbered(shared, (key.seed, key.step, key.micro_batch), rng):
                return function(*args, **kwargs)

        return each

    if device.type == "cpu":
        own = torch.Generator()
        if any(argument.name == "generator" for argument in function._schema.arguments):
            return lambda *args, **kwargs: function(*args, **kwargs, generator=own.manual_seed(key.of(rng)))
        if op.target in _EXPANDED:
            expanded = _EXPANDED[op.target]
            return lambda *args, **kwargs: expanded(own.manual_seed(key.of(rng)), *args, **kwargs)

    def borrowed(*args: Any, **kwargs: Any) -> Any:
        with seeded(shared, key.of(rng)):
            return function(*args, **kwargs)

    return borrowed


def _dropout(generator: torch.Generator, x: torch.Tensor, p: float, train: bool) -> torch.Tensor:
    if p == 1:
        return x * torch.zeros((), dtype=x.dtype)
    noise = torch.empty_like(x).bernoulli_(1 - p, generator=generator)
    return x * noise.div_(1 - p)


def _feature_dropout(generator: torch.Generator, x: torch.Tensor, p: float, train: bool) -> torch.Tensor:
    if p == 1:
        return x * torch.zeros((), dtype=x.dtype)
    noise = x.new_empty((*x.shape[:2], *(1 for _ in x.shape[2:]))).bernoulli_(1 - p, generator=generator)
    return x * noise.div_(1 - p)


def _randn_like(generator: torch.Generator, x: torch.Tensor, **options: Any) -> torch.Tensor:
    return torch.empty_like(x, **options).normal_(generator=generator)


def _rand_like(generator: torch.Generator, x: torch.Tensor, **options: Any) -> torch.Tensor:
    return torch.empty_like(x, **options).uniform_(generator=generator)


_EXPANDED: dict[str, Callable[..., torch.Tensor]] = {
    "aten.dropout.default": _dropout,
    "aten.feature_dropout.default": _feature_dropout,
    "aten.rand_like.default": _rand_like,
    "aten.randn_like.default": _randn_like,
}
