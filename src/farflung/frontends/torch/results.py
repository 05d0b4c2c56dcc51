"""What of a forward's result a graph can return: tensors by name or by place, nothing else."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import nn

__all__ = ["tensor_results"]


@contextmanager
def tensor_results(module: nn.Module) -> Iterator[None]:
    """Within the context, ``module.forward`` returns only tensors: no caches, no configuration objects.

    ``torch.export`` refuses results that it does not know, such as the key and value cache of a ``transformers`` model. A
    training graph never returns them. Entries of a mapping that are no tensors are left out; in a tuple ``None`` takes their
    place, so that the remaining results keep their positions.
    """
    forward = module.forward

    @functools.wraps(forward)
    def tensors_only(*args: Any, **kwargs: Any) -> Any:
        return _tensors(forward(*args, **kwargs))

    with patch.object(module, "forward", tensors_only):
        yield


def _tensors(result: Any) -> Any:
    if isinstance(result, Mapping):
        return {str(name): value for name, value in result.items() if isinstance(value, torch.Tensor)}
    if isinstance(result, (list, tuple)):
        return tuple(value if isinstance(value, torch.Tensor) else None for value in result)
    return result
