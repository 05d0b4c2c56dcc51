"""Checks of arguments that PyTorch's kernels trust: they would read or write past a tensor's memory, or crash the process.

``guarded`` wraps the function of such an operator. Shapes are checked on the meta device, before anything is allocated, and again
at each call; values (lengths, labels, offsets) are checked at each call. Results come from these rules on the meta device, where
a kernel is missing or runs every time step of a sequence.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from farflung.engines.torch.cached_attention import cached_attention

__all__ = ["PSEUDO_KERNELS", "guarded"]

Tensors = Sequence[torch.Tensor]


def _expect(holds: bool, text: str) -> None:
    if not holds:
        raise ValueError(text)


def guarded(target: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` behind the checks that ``target`` needs (itself where it needs none)."""
    check = _CHECKS.get(target)
    if check is None:
        return function

    def call(*args: Any, **kwargs: Any) -> Any:
        on_meta = check(*args, **kwargs)
        return function(*args, **kwargs) if on_meta is None else on_meta

    return call


# -- recurrent networks ------------------------------------------------------------------------------------------------


def _check_recurrent(gates: int) -> Callable[..., tuple[torch.Tensor, ...] | None]:
    """The check of a network with ``gates`` gates; it gives the results on the meta device."""

    def check(
        x: torch.Tensor,
        hx: Any,
        params: Tensors,
        has_biases: bool,
        *settings: Any,
    ) -> tuple[torch.Tensor, ...] | None:
        num_layers, dropout, _, bidirectional, batch_first = settings
        states: Tensors = hx if isinstance(hx, (list, tuple)) else (hx,)
        _expect(len(states) == (2 if gates == 4 else 1), f"{len(states)} hidden states")
        _expect(x.dim() == 3 and x.numel() > 0 and x.is_floating_point(), "the input must be floating, of three dimensions")
        _expect(all(part.dtype == x.dtype for part in (*states, *params)), "its tensors have several element types")
        _expect(0.0 <= dropout <= 1.0, f"dropout {dropout} is not between 0 and 1")
        directions = 2 if bidirectional else 1
        batch, length = (x.shape[0], x.shape[1]) if batch_first else (x.shape[1], x.shape[0])
        _expect(all(state.dim() == 3 for state in states), "the hidden states must have three dimensions")
        shown, hidden = states[0].shape[2], states[-1].shape[2]
        _expect(hidden > 0 and 0 < num_layers <= len(params), f"{num_layers} layers of width {hidden}")
        for state, width in zip(states, (shown, hidden), strict=False):
            _expect(tuple(state.shape) == (num_layers * directions, batch, width), f"a hidden state of {list(state.shape)}")
        projected = shown != hidden
        wanted = [
            shape
            for layer in range(num_layers)
            for _ in range(directions)
            for shape in _weights(gates, (x.shape[2] if layer == 0 else shown * directions, shown, hidden), has_biases, projected)
        ]
        _expect([tuple(part.shape) for part in params] == wanted, "its weights do not fit the input and the hidden states")
        if x.device.type != "meta":
            return None
        sizes = (batch, length, directions * shown) if batch_first else (length, batch, directions * shown)
        return (x.new_empty(sizes), *(torch.empty_like(state) for state in states))

    return check


def _weights(gates: int, sizes: tuple[int, int, int], has_biases: bool, projected: bool) -> list[tuple[int, ...]]:
    """The shapes of one direction of one layer; ``sizes``: of the input, the visible and the hidden state."""
    incoming, shown, hidden = sizes
    found: list[tuple[int, ...]] = [(gates * hidden, incoming), (gates * hidden, shown)]
    found += [(gates * hidden,)] * 2 if has_biases else []
    return [*found, (shown, hidden)] if projected else found


# -- losses and products whose arguments hold positions ----------------------------------------------------------------


def _ctc_loss(
    log_probs: torch.Tensor,
    targets: torch.Tensor,
    input_lengths: torch.Tensor,
    target_lengths: torch.Tensor,
    *settings: Any,
) -> torch.Tensor:
    """``torch.ctc_loss``, whose kernels trust labels: each must be a class, and each length must fit."""
    blank, reduction, zero_infinity = settings
    _expect(log_probs.dim() in (2, 3) and log_probs.numel() > 0 and log_probs.is_floating_point(), "log_probs must be T x N x C")
    batched = log_probs.dim() == 3
    steps, rows, classes = log_probs.shape[0], log_probs.shape[1] if batched else 1, log_probs.shape[-1]
    _expect(0 <= blank < classes and reduction in (0, 1, 2), f"blank {blank} of {classes} classes, reduction {reduction}")
    integers = all(item.dtype in (torch.int32, torch.int64) for item in (targets, input_lengths, target_lengths))
    _expect(integers and targets.dim() in (1, 2), "targets and lengths must be integers")
    _expect(input_lengths.numel() == target_lengths.numel() == rows, f"lengths for {rows} rows")
    _expect(targets.dim() == 1 or targets.shape[0] == rows, f"targets of {rows} rows")
    if log_probs.device.type == "meta":
        return log_probs.new_empty(() if reduction or not batched else (rows,))
    heard, said = input_lengths.reshape(-1).tolist(), target_lengths.reshape(-1).tolist()
    _expect(all(0 <= length <= steps for length in heard), f"an input length is not between 0 and {steps}")
    longest = targets.shape[1] if targets.dim() == 2 else targets.shape[0]
    _expect(all(0 <= length <= longest for length in said), f"a target length is not between 0 and {longest}")
    if targets.dim() == 1 and batched:
        _expect(sum(said) <= longest, f"the target lengths add up to {sum(said)}, but there are {longest} targets")
        targets = targets[: sum(said)]
    _check_labels(targets, said, classes)
    found: torch.Tensor = torch.ops.aten.ctc_loss.IntList(log_probs, targets, heard, said, blank, reduction, zero_infinity)
    return found


def _check_labels(targets: torch.Tensor, said: Sequence[int], classes: int) -> None:
    used = targets.detach()
    if targets.dim() == 2:
        place = torch.arange(targets.shape[1], device=targets.device)
        used = used[place < torch.tensor(said, device=targets.device).unsqueeze(1)]
    inside = not used.numel() or bool(((used >= 0) & (used < classes)).all())
    _expect(inside, f"a target is not one of the {classes} classes")


def _grouped_mm(rows: torch.Tensor, weight: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """``torch.nn.functional.grouped_mm`` of rows that are sorted by group; ``offsets`` are the ends of the groups."""
    _expect(rows.dim() == 2 and weight.dim() == 3 and offsets.dim() == 1, "rows must be S x K, weights G x K x N, offsets G")
    groups, inner, width = weight.shape
    _expect(rows.shape[1] == inner and offsets.shape[0] == groups, f"{groups} groups of {inner} x {width}")
    _expect(offsets.dtype == torch.int32 and rows.dtype == weight.dtype and rows.is_floating_point(), "an element type differs")
    if rows.device.type == "meta":
        return rows.new_empty((rows.shape[0], width))
    ends = offsets.tolist()
    ordered = all(first <= second for first, second in zip([0, *ends], ends, strict=False))
    _expect(ordered and ends[-1:] == [rows.shape[0]], f"the offsets do not rise from 0 to the number of rows, {rows.shape[0]}")
    found: torch.Tensor = torch.ops.aten._grouped_mm.default(rows, weight, offsets)
    return found


def _grouped_linear(rows: torch.Tensor, weights: Sequence[torch.Tensor], sizes: torch.Tensor) -> torch.Tensor:
    """``torch.nn.functional.linear`` of each of the parts of ``rows``, which have ``sizes`` rows, with a weight of its own."""
    _expect(rows.dim() == 2 and len(weights) > 0 and sizes.shape == (len(weights),), "rows must be S x K, sizes one per weight")
    width, inner = weights[0].shape if weights[0].dim() == 2 else (0, -1)
    _expect(
        all(weight.shape == (width, rows.shape[1]) for weight in weights), f"weights must be N x {rows.shape[1]}, not {inner}"
    )
    _expect(not sizes.dtype.is_floating_point and not sizes.dtype.is_complex, "sizes must be integers")
    if rows.device.type == "meta":
        return rows.new_empty((rows.shape[0], width))
    counts = sizes.tolist()
    _expect(min(counts) >= 0 and sum(counts) == rows.shape[0], f"the sizes do not add up to the number of rows, {rows.shape[0]}")
    parts = zip(torch.split(rows, counts), weights, strict=True)
    return torch.cat([torch.nn.functional.linear(part, weight) for part, weight in parts])


def _check_weight_norm(v: torch.Tensor, g: torch.Tensor, dim: int = 0) -> None:
    """The fused kernel takes a norm for each slice without looking at how many there are."""
    _expect(v.numel() > 0, f"a weight of shape {list(v.shape)}, which has no elements")
    _expect(v.dim() > 0 and (dim == -1 or 0 <= dim < v.dim()) and v.dtype == g.dtype, f"dimension {dim} of {list(v.shape)}")
    wanted = {1} if dim == -1 else {v.shape[dim]}
    _expect(g.numel() in wanted and (g.dim() in (0, 1) or g.dim() == v.dim()), f"norms of shape {list(g.shape)}")


def _check_quotient(dividend: torch.Tensor, divisor: Any, *, rounding_mode: str | None) -> None:
    """The quotient of the smallest integer and -1 does not fit, and the processor's division traps."""
    kind = torch.result_type(dividend, divisor)
    if rounding_mode is None or kind not in _INTEGERS or dividend.device.type == "meta":
        return
    overflows = (dividend == torch.iinfo(kind).min) & (divisor == -1)
    _expect(not bool(overflows.any()), f"the smallest {kind} is divided by -1".replace("torch.", ""))


def _check_grid(x: torch.Tensor, grid: torch.Tensor, *settings: Any) -> None:
    """The kernels turn coordinates into integers, and their backward writes to the places that come out."""
    _expect(x.is_floating_point() and grid.is_floating_point(), "the input and the grid must be floating")
    if grid.device.type != "meta" and grid.numel():
        largest = float(grid.detach().abs().amax())  # NaN if any is
        _expect(largest <= _FARTHEST, f"a coordinate of the grid is {largest}, which is not a number of at most {_FARTHEST:.0f}")


def _check_least(x: torch.Tensor, least: int, *rest: Any) -> None:
    """The kernel rounds the least number to one that the element type has; at the end of the integers it never ends."""
    del x, rest
    _expect(abs(least) <= 1 << 62, f"the least number {least} is not between -2**62 and 2**62")


def _check_parts(x: torch.Tensor, size: int = 1, dim: int = 0) -> None:
    """Each part is a tensor, which takes memory also on the meta device."""
    _count_parts(-(-x.shape[dim] // max(size, 1)))


def _count_parts(parts: int) -> None:
    _expect(parts <= _MOST_PARTS, f"it gives {parts} tensors, at most {_MOST_PARTS} are allowed")


_MOST_PARTS = 4096
_INTEGERS = frozenset({torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8})
#: Coordinates within the input lie between -1 and 1.
_FARTHEST = float(1 << 20)

_CHECKS: Mapping[str, Callable[..., Any]] = {
    "aten.lstm.input": _check_recurrent(4),
    "aten.gru.input": _check_recurrent(3),
    "aten.rnn_tanh.input": _check_recurrent(1),
    "aten.rnn_relu.input": _check_recurrent(1),
    "aten._weight_norm.default": _check_weight_norm,
    "aten.chunk.default": lambda x, chunks, dim=0: _count_parts(chunks),
    "aten.split.Tensor": _check_parts,
    "aten.unbind.int": lambda x, dim=0: _check_parts(x, 1, dim),
    "aten.random_.from": _check_least,
    "aten.div.Scalar_mode": _check_quotient,
    "aten.div.Tensor_mode": _check_quotient,
    "aten.grid_sampler.default": _check_grid,
}

#: Operators of our own that wrap a checked kernel.
PSEUDO_KERNELS: Mapping[str, Callable[..., Any]] = {
    "farflung.cached_attention": cached_attention,
    "farflung.ctc_loss": _ctc_loss,
    "farflung.grouped_linear": _grouped_linear,
    "farflung.grouped_mm": _grouped_mm,
}
