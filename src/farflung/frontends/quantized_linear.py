"""Linear layers whose frozen weight stays in 8 or 4 bits; the graph makes it whole where it is used, in both directions.

Codes and scales are those of ``graph.quantized_weights``. The backward makes the weight whole again instead of saving it, so
between forward and backward a layer takes the memory of its codes only. Cost: one more pass over the weight in each direction.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from farflung.errors import InputError
from farflung.graph.quantized_weights import METHODS, NF4, part_shape, quantized_part

__all__ = ["QuantizedLinear", "quantize_linears", "quantized_layers"]


class QuantizedLinear(nn.Module):
    """``x @ W.T + bias`` for a frozen ``W``; ``transposed``: ``x @ W + bias``, as in ``Conv1D`` of ``transformers``."""

    codes: Tensor
    scales: Tensor
    levels: Tensor

    def __init__(self, layer: Any, method: str, *, transposed: bool = False) -> None:
        """Quantize ``layer``, a linear layer. On the meta device, or under fake tensors, codes and scales have no values.

        Raises:
            InputError: the method is unknown.
        """
        super().__init__()
        if method not in METHODS:
            raise InputError(f"unknown quantization {method!r}: known are {', '.join(METHODS)}")
        rows, columns = layer.weight.shape
        self.method, self.transposed = method, transposed
        self.in_features, self.out_features = (rows, columns) if transposed else (columns, rows)
        self.bias = layer.bias
        for part, dtype in (("codes", torch.int8 if method == "int8" else torch.uint8), ("scales", torch.float32)):
            self.register_buffer(part, _part(layer.weight, f"{method}_{part}", dtype))
        self.register_buffer("levels", torch.tensor(NF4.tolist()) if method == "nf4" else torch.zeros(1), persistent=False)

    @property
    def weight(self) -> Tensor:
        """The weight that codes and scales stand for, in float32."""
        return _whole(self.method, self.codes, self.scales, self.levels)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = _Product.apply(x, self.codes, self.scales, self.levels, (self.method, self.transposed))  # type: ignore[no-untyped-call]
        return found if self.bias is None else found + self.bias


class _Product(torch.autograd.Function):
    """``x`` times the weight; only codes and scales are saved."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, codes: Tensor, scales: Tensor, levels: Tensor, kind: tuple[str, bool]) -> Tensor:
        ctx.save_for_backward(codes, scales, levels)
        # autocast does not reach into a backward: there, products are those of the weights that are trained
        ctx.kind, ctx.dtype = kind, torch.float32 if torch.is_autocast_enabled(x.device.type) else x.dtype
        method, transposed = kind
        weight = _whole(method, codes, scales, levels).to(x.dtype)
        return x @ (weight if transposed else weight.t())

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        method, transposed = ctx.kind
        weight = _whole(method, *ctx.saved_tensors).to(ctx.dtype)
        return gradients[0].to(ctx.dtype) @ (weight.t() if transposed else weight), None, None, None, None


def _whole(method: str, codes: Tensor, scales: Tensor, levels: Tensor) -> Tensor:
    """The weight in float32."""
    rows, groups = scales.shape
    if method == "int8":
        return codes.to(torch.float32) * scales
    # arithmetic in place of shifts: exact, and on the list of allowed operators
    both = torch.stack([codes % 16, codes // 16], dim=2).reshape(rows, -1)
    values = levels.index_select(0, both.to(torch.int32).flatten()) if method == "nf4" else both.to(torch.float32) - 8.0
    return (values.reshape(rows, groups, -1) * scales[:, :, None]).reshape(rows, -1)


def _part(weight: Tensor, name: str, dtype: torch.dtype) -> Tensor:
    shape = part_shape(name, tuple(weight.shape))
    # a fake tensor or one on the meta device has no values: the files' values come later
    if weight.is_meta or type(weight.data) is not Tensor:
        return torch.zeros(shape, dtype=dtype, device=weight.device)
    array = weight.detach().to(torch.float32).cpu().numpy()
    return torch.from_numpy(np.array(quantized_part(name, array))).to(weight.device)


def quantized_layers(model: nn.Module, wanted: Callable[[str], bool] = lambda name: True) -> dict[str, bool]:
    """The linear layers that can be quantized: name -> whether the weight is transposed (``Conv1D`` of ``transformers``).

    Left out are layers with trained or shared weights, odd shapes, and those that are not ``wanted``.
    """
    counts: dict[int, int] = {}
    for _, tensor in model.named_parameters(remove_duplicate=False):
        counts[id(tensor)] = counts.get(id(tensor), 0) + 1
    found: dict[str, bool] = {}
    for name, part in model.named_modules():
        transposed = type(part).__name__ == "Conv1D"
        if not (type(part) is nn.Linear or transposed) or not wanted(name):
            continue
        weight = part.weight
        if isinstance(weight, nn.Parameter) and not weight.requires_grad and counts[id(weight)] == 1 and weight.shape[1] % 2 == 0:
            found[name] = transposed
    return found


def quantize_linears(model: nn.Module, method: str, wanted: Callable[[str], bool] = lambda name: True) -> tuple[str, ...]:
    """Replace the frozen linear layers of ``model`` by quantized ones, in place; returns their names.

    Freeze the base first, for example with adapters of ``peft``. ``wanted(name)`` leaves layers out, such as the output layer.

    Raises:
        InputError: the method is unknown, or the model has no frozen linear layer.
    """
    layers = quantized_layers(model, wanted)
    if not layers:
        raise InputError("nothing can be quantized: the model has no frozen linear layer; add adapters, or freeze the base first")
    for name, transposed in layers.items():
        parent, _, last = name.rpartition(".")
        setattr(model.get_submodule(parent), last, QuantizedLinear(model.get_submodule(name), method, transposed=transposed))
    return tuple(layers)
