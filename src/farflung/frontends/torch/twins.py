"""Other tensors in the place of a module's parameters and buffers for a while."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

__all__ = ["as_state", "with_twins"]


def as_state(like: torch.Tensor, twin: torch.Tensor) -> torch.Tensor:
    """``twin`` as a parameter if ``like`` is one."""
    return nn.Parameter(twin, requires_grad=like.requires_grad) if isinstance(like, nn.Parameter) else twin


@contextmanager
def with_twins(
    module: nn.Module, wanted: Callable[[torch.Tensor], bool], make: Callable[[torch.Tensor], torch.Tensor]
) -> Iterator[None]:
    """While it lasts, what ``make`` gives stands for each of the module's states that is ``wanted`` (ties kept)."""
    before: list[tuple[dict[str, Any], str, torch.Tensor]] = []
    twins: dict[int, torch.Tensor] = {}
    for part in module.modules():
        tables: tuple[Any, ...] = (part._parameters, part._buffers)
        for table in tables:
            before += [(table, name, tensor) for name, tensor in table.items() if tensor is not None and wanted(tensor)]
    try:
        for table, name, tensor in before:
            if id(tensor) not in twins:
                twins[id(tensor)] = make(tensor)
            table[name] = twins[id(tensor)]
        yield
    finally:
        for table, name, tensor in before:
            table[name] = tensor
