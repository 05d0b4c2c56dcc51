"""Plain PyTorch under the random numbers that a graph prescribes: for tests only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from farflung.frontends.torch.programs import Programs
from farflung.frontends.torch.recorder import record, recordable_torch
from farflung.ids import derive_seed


class Keyed(TorchDispatchMode):
    """Seeds the default generator before the n-th call that draws with ``seed_of(n)`` (None: leaves it).

    Attention with dropout arrives here as ordinary operators, so a fused attention that is tagged does not draw.
    """

    def __init__(self, seed_of: Callable[[int], int | None]) -> None:
        super().__init__()
        self.seed_of = seed_of
        self.drawn = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.Tag.nondeterministic_seeded in func.tags and "scaled_dot_product" not in func.__name__:
            seed = self.seed_of(self.drawn)
            if seed is not None:
                torch.manual_seed(seed)
            self.drawn += 1
        return func(*args, **(kwargs or {}))


def keyed_forward(seed: int) -> Keyed:
    """Inside, the n-th draw of a forward has the key of the graph's n-th."""
    return Keyed(lambda n: derive_seed("op", seed, n))


def build(factory: Callable[[], nn.Module], seed: int) -> nn.Module:
    """Run the factory for real, each draw under the key that the recorded programs give it."""
    recording = record(factory)
    programs = Programs(recording)
    programs.all()
    draws = [index for index, note in enumerate(recording.notes) if note.random]
    keys = [programs.draws.get(index) for index in draws]
    with Keyed(lambda n: None if keys[n] is None else derive_seed("init", seed, *keys[n])) as keyed, recordable_torch():
        module = factory()
    assert keyed.drawn == len(keys)
    return module
