"""Runs ``farflung.gradient``: forward it returns its values, backward it runs the program that the graph carries."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from farflung.engines.torch.arrays import spec_of
from farflung.errors import GraphError
from farflung.graph.ir import LocalRef

__all__ = ["CompiledBackward", "run_gradient"]

#: Target, function, arguments and keyword arguments, with ``LocalRef`` for values.
Step = tuple[str, Callable[..., Any], list[Any], dict[str, Any]]
#: What all steps of a backward may make, as a multiple of what they read, and in any case.
_GROWTH, _SMALL = 64, 1 << 24


class CompiledBackward:
    """A backward with its functions looked up once.

    ``results``: the value that is the gradient of each input. ``dtypes``: element types of the outputs, as they were traced.
    """

    def __init__(
        self, name: str, results: Sequence[LocalRef | None], steps: Sequence[Step], dtypes: Sequence[torch.dtype]
    ) -> None:
        self.name, self.results, self.steps, self.dtypes = name, tuple(results), tuple(steps), tuple(dtypes)

    def __call__(
        self, gradients: Sequence[torch.Tensor], saved: Sequence[torch.Tensor], limit: int | None = None
    ) -> list[torch.Tensor | None]:
        """The gradients of the inputs; ``limit``: bytes that all steps may make together.

        Raises:
            GraphError: a step fails, reads a value that no earlier one makes, or makes too much.
        """
        # under autocast an output, and so its gradient, can have another element type than the program was traced with
        values: list[Any] = [gradient.to(dtype) for gradient, dtype in zip(gradients, self.dtypes, strict=True)]
        values += saved
        for target, function, args, kwargs in self.steps:
            try:
                made = function(*_filled(args, values), **{key: _filled(arg, values) for key, arg in kwargs.items()})
            except Exception as error:  # operators that PyTorch writes in Python can raise anything
                if isinstance(error, torch.OutOfMemoryError):
                    raise
                first = str(error).splitlines()[0] if str(error) else type(error).__name__
                raise GraphError(f"operator {self.name!r}: its backward failed at {target}: {first}") from error
            found = [made] if isinstance(made, torch.Tensor) else made
            values.extend(found)
            if limit is not None:
                limit -= sum(item.numel() * item.element_size() for item in found)
                if limit < 0:
                    raise GraphError(f"operator {self.name!r}: its backward makes too much memory at {target}")
        if any(item is not None and item.index >= len(values) for item in self.results):
            raise GraphError(f"operator {self.name!r}: its backward returns a value that no step makes")
        return [None if item is None else values[item.index] for item in self.results]


def _filled(arg: Any, values: list[Any]) -> Any:
    """``arg`` with values in the place of references."""
    if isinstance(arg, LocalRef):
        return values[arg.index]
    return [_filled(item, values) for item in arg] if isinstance(arg, list) else arg


class _Gradient(torch.autograd.Function):
    """The values as they are; the gradients of the inputs by the program."""

    @staticmethod
    def forward(ctx: Any, backward: CompiledBackward, count: int, returned: int, *tensors: torch.Tensor) -> Any:
        outputs, saved = tensors[count : count + returned], tensors[count + returned :]
        ctx.backward_program, ctx.shapes = backward, [spec_of(tensor) for tensor in tensors[:count]]
        ctx.rest = len(tensors) - count
        ctx.save_for_backward(*saved)
        ctx.mark_non_differentiable(*(item for item in outputs if not (item.is_floating_point() or item.is_complex())))
        return tuple(output.detach() for output in outputs)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        found = ctx.backward_program(gradients, ctx.saved_tensors)
        for gradient, spec in zip(found, ctx.shapes, strict=True):
            if gradient is not None and tuple(gradient.shape) != spec.shape:
                raise GraphError(f"operator {ctx.backward_program.name!r}: a gradient has shape {list(gradient.shape)}")
        return None, None, None, *found, *(None,) * ctx.rest


def run_gradient(
    backward: CompiledBackward, inputs: list[torch.Tensor], outputs: list[Any], saved: list[Any]
) -> tuple[torch.Tensor, ...]:
    """One call of the operator; integers in ``outputs`` and ``saved`` are places among ``inputs``."""

    def fill(items: list[Any]) -> list[torch.Tensor]:
        return [inputs[item] if isinstance(item, int) else item for item in items]

    given, kept = fill(outputs), fill(saved)
    if inputs and inputs[0].device.type == "meta":
        _check_meta(backward, inputs, given, kept)
    elif torch.is_grad_enabled():
        found: tuple[torch.Tensor, ...] = _Gradient.apply(backward, len(inputs), len(given), *inputs, *given, *kept)  # type: ignore[no-untyped-call]
        return found
    return tuple(output.detach() for output in given)


def _check_meta(
    backward: CompiledBackward, inputs: list[torch.Tensor], outputs: list[torch.Tensor], saved: list[torch.Tensor]
) -> None:
    """Run the backward on shapes alone: each gradient must have its input's shape and element type."""
    read = sum(item.numel() * item.element_size() for item in (*inputs, *outputs, *saved))
    limit = max(_GROWTH * read, _SMALL)
    found = backward([torch.empty_like(item) for item in outputs], saved, limit)
    for tensor, gradient in zip(inputs, found, strict=True):
        if gradient is not None and spec_of(gradient) != spec_of(tensor):
            raise GraphError(f"operator {backward.name!r}: its backward makes a gradient of another shape or element type")
