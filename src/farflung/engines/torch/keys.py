"""Random numbers keyed by what draws them, never by the process that draws.

Each operator that draws seeds a generator with ``derive_seed("op", seed, step, micro_batch, rng)``, where ``rng`` is its number
among the graph's drawing operators. ``keyed_randomness`` gives an ordinary PyTorch loop the same numbers.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from farflung.engines.torch.accelerators import default_generator
from farflung.ids import derive_seed

__all__ = ["KeyedRandomness", "keyed_randomness", "numbered", "op_seed", "preserved", "seeded"]

#: PyTorch has one default generator in a process, and several workers may compute in one. Reentrant: contexts may be nested.
_LOCK = threading.RLock()


def op_seed(seed: int, step: int, micro_batch: int, rng: int) -> int:
    """The seed of drawing operator ``rng`` in a micro-batch of a step."""
    return derive_seed("op", seed, step, micro_batch, rng)


@contextmanager
def seeded(generator: torch.Generator, seed: int) -> Iterator[None]:
    """The process's ``generator`` seeded inside, and as before afterwards; one thread at a time."""
    with _LOCK:
        before = generator.get_state()
        generator.manual_seed(seed)
        try:
            yield
        finally:
            generator.set_state(before)


@contextmanager
def numbered(generator: torch.Generator, key: tuple[int, int, int], first: int) -> Iterator[None]:
    """Within the context each draw is keyed by (seed, step, micro-batch) of ``key`` and its number, from ``first`` on.

    The generator is as before afterwards; one thread at a time.
    """
    with _LOCK:
        before = generator.get_state()
        try:
            with _Counting(generator, key, first):
                yield
        finally:
            generator.set_state(before)


@contextmanager
def preserved() -> Iterator[None]:
    """PyTorch's generator on the CPU is as before afterwards; one thread at a time."""
    generator = default_generator(torch.device("cpu"))
    with _LOCK:
        before = generator.get_state()
        try:
            yield
        finally:
            generator.set_state(before)


class KeyedRandomness:
    """Gives plain PyTorch code the random numbers of a job (see ``keyed_randomness``)."""

    def __init__(self, seed: int, device: str = "cpu") -> None:
        self._seed = seed
        self._generator = default_generator(torch.device(device))

    @contextmanager
    def micro_batch(self, step: int, index: int) -> Iterator[None]:
        """Inside, the n-th operator that draws gets the numbers of the job's n-th one; the generator is restored after."""
        before = self._generator.get_state()
        try:
            with _Counting(self._generator, (self._seed, step, index)):
                yield
        finally:
            self._generator.set_state(before)


def keyed_randomness(seed: int, device: str = "cpu") -> KeyedRandomness:
    """A context for ordinary loops: ``with keyed_randomness(seed).micro_batch(step, index): loss = module(*batch)``."""
    return KeyedRandomness(seed, device)


class _Counting(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Seeds the generator before each call that draws."""

    def __init__(self, generator: torch.Generator, key: tuple[int, int, int], first: int = 0) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._generator = generator
        self._key = key
        self._drawn = first

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded in func.tags and _draws(func, args, kwargs):
            self._generator.manual_seed(op_seed(*self._key, self._drawn))
            self._drawn += 1
        return func(*args, **kwargs)


def _draws(func: Any, args: Any, kwargs: Any) -> bool:
    """Whether a tagged call draws from the seeded generator.

    Attention and fused kernels with probability 0 do not draw; a call with a generator of its own is the caller's business.
    What fills a parameter is part of no forward, but of a module that the forward makes (``frontends.torch.fresh_parameters``).
    """
    if args and isinstance(args[0], torch.nn.Parameter) and func._schema.is_mutable:
        return False
    for position, argument in enumerate(func._schema.arguments):
        value = args[position] if position < len(args) else kwargs.get(argument.name, argument.default_value)
        if argument.name == "generator" and value is not None:
            return False
        if argument.name in ("dropout_p", "dropout", "train", "training") and not value:
            return False
        if argument.name == "p" and value == 0 and "dropout" in func.__name__:
            return False
    return True
