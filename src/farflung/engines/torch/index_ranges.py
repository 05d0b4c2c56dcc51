"""Labels and indices that name no class and no row: PyTorch refuses them, and its error names no range.

Such integers come from the batch. The error is therefore one of the data, not of the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

__all__ = ["out_of_range"]

#: What the losses of PyTorch ignore by default.
_IGNORED = -100

Arguments = Sequence[Any]


def out_of_range(target: str, arguments: Arguments) -> str:
    """Return the range that the operator ``target`` takes, and the first integer outside of it (empty: there is none).

    ``arguments``: the positional arguments of the operator. Tensors on accelerators are not read.
    """
    check = _CHECKS.get(target)
    try:
        return "" if check is None else check(arguments)
    except (AttributeError, IndexError, RuntimeError, TypeError, ValueError):
        return ""  # they are no arguments of the operator, whose own error says so


def _labels(arguments: Arguments) -> str:
    scores, labels = arguments[:2]
    ignored = arguments[4] if len(arguments) > 4 else _IGNORED
    classes = scores.shape[1 if scores.dim() > 1 else 0]
    return _outside(labels, classes, "labels", "give the model more classes", ignored)


def _rows(arguments: Arguments) -> str:
    table, indices = arguments[:2]
    return _outside(indices, table.shape[0], "indices of the table", "enlarge the table")


def _places(arguments: Arguments) -> str:
    values, dim, indices = arguments[:3]
    return _outside(indices, values.shape[dim] if values.dim() else 1, f"indices of dimension {dim}", "change the model")


def _classes(arguments: Arguments) -> str:
    count = arguments[1] if len(arguments) > 1 else -1
    return "" if count < 1 else _outside(arguments[0], count, "classes", "raise num_classes")


def _outside(integers: torch.Tensor, size: int, what: str, remedy: str, ignored: int | None = None) -> str:
    if integers.device.type != "cpu" or integers.is_floating_point():
        return ""
    wrong = (integers < 0) | (integers >= size)
    if ignored is not None:
        wrong &= integers != ignored
    if not wrong.any():
        return ""
    beside = "" if ignored is None or 0 <= ignored < size else f" (or {ignored}, which is ignored)"
    return f"{what} must be 0 to {size - 1}{beside}, got {int(integers[wrong][0])}: correct the batch, or {remedy}"


_CHECKS: dict[str, Callable[[Arguments], str]] = {
    "aten.cross_entropy_loss.default": _labels,
    "aten.nll_loss.default": _labels,
    "aten.nll_loss2d.default": _labels,
    "aten.nll_loss_nd.default": _labels,
    "aten.embedding.default": _rows,
    "aten.embedding_bag.padding_idx": _rows,
    "aten.index_select.default": _places,
    "aten.gather.default": _places,
    "aten.one_hot.default": _classes,
}
