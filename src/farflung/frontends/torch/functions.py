"""Custom ``autograd.Function``s: the forward's operators, and the backward as a program of operators.

``torch.export`` traces through the forward of such a function and loses its backward. Here the forward runs without recording
gradients, as PyTorch runs it, and one operator, ``farflung.gradient``, stands around its results: forward it returns them,
backward it runs the traced program on what the forward saved. The program is traced once, when the function is called, and holds
allowed operators only, so no code of the module reaches a worker.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from farflung.errors import CaptureError
from farflung.foreign_code import first_line, translated
from farflung.frontends.torch.checks.data_dependence import data_dependence

__all__ = ["Backward", "Functions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Backward:
    """The traced backward of one call: its placeholders are the gradients of the outputs and then the saved tensors.

    ``made``: whether it makes a gradient of each input (of those that are tensors); ``name``: the function's name.
    """

    name: str
    body: GraphModule
    made: tuple[bool, ...]


@dataclass
class Functions:
    """The custom functions that a capture met; ``found[number]`` belongs to the operator with that number."""

    found: list[Backward] = field(default_factory=list)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Within the context, a call of a custom function in this thread is captured with its backward."""

        thread = threading.get_ident()

        def apply(cls: type[torch.autograd.Function], *args: Any, **kwargs: Any) -> Any:
            if cls.__module__.startswith(("torch.", "torch_")) or threading.get_ident() != thread:
                return original_apply(cls)(*args, **kwargs)
            return self._call(cls, args)

        with patch.object(torch.autograd.Function, "apply", classmethod(apply)):
            yield

    def _call(self, cls: Any, args: tuple[Any, ...]) -> Any:
        name = f"{cls.__module__}.{cls.__qualname__}"
        tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
        context = _Context(tuple(isinstance(arg, torch.Tensor) and arg.requires_grad for arg in args))
        with torch.no_grad():
            result = run_forward(cls, context, args)
        single = isinstance(result, torch.Tensor)
        results = [result] if single else list(result)
        if context.dirty or not all(isinstance(item, torch.Tensor) for item in results):
            raise _unsupported(name, "it changes an input in place, or returns something that is no tensor")
        if not torch.is_grad_enabled() or not any(tensor.requires_grad for tensor in tensors):
            return result
        saved, body, made = _trace(name, cls, context, args, results)
        self.found.append(Backward(name=name, body=body, made=made))
        number = len(self.found) - 1
        wrapped = torch.ops.farflung_capture.gradient.default(tensors, results, saved, number)
        for old, new in zip(results, wrapped, strict=True):
            if new.is_floating_point() and id(old) not in context.constant:
                new.requires_grad_()
        return wrapped[0] if single else tuple(wrapped)


def original_apply(cls: type[torch.autograd.Function]) -> Any:
    """``Function.apply`` as PyTorch defines it, bound to ``cls`` (a Python class method or, since torch 2.15, a builtin)."""
    return _APPLY.__get__(None, cls)


_APPLY: Any = torch.autograd.Function.__dict__.get("apply") or torch._C._FunctionBase.__dict__["apply"]


class _Context:
    """What ``ctx`` offers a function: saved tensors, attributes of its own, marks."""

    def __init__(self, needs: tuple[bool, ...]) -> None:
        self.needs_input_grad = needs
        self.saved_tensors: tuple[torch.Tensor | None, ...] = ()
        self.dirty = False
        self.constant: set[int] = set()
        self.materialize = True

    def save_for_backward(self, *tensors: torch.Tensor | None) -> None:
        """Keep tensors for the backward."""
        self.saved_tensors = tensors

    def save_for_forward(self, *tensors: torch.Tensor | None) -> None:
        """Forward-mode differentiation is not captured."""

    def mark_dirty(self, *tensors: torch.Tensor) -> None:
        """An input is changed in place, which is refused later."""
        self.dirty = True

    def mark_non_differentiable(self, *tensors: torch.Tensor) -> None:
        """These results carry no gradient."""
        self.constant.update(map(id, tensors))

    def set_materialize_grads(self, value: bool) -> None:
        """Whether missing gradients arrive as zeros."""
        self.materialize = value


def run_forward(cls: Any, context: Any, args: tuple[Any, ...]) -> Any:
    """The function's forward, in the style with or without ``setup_context``."""
    if cls.setup_context is torch.autograd.Function.setup_context:
        return cls.forward(context, *args)
    result = cls.forward(*args)
    cls.setup_context(context, args, result)
    return result


def _trace(
    name: str, cls: Any, context: _Context, args: tuple[Any, ...], results: Sequence[torch.Tensor]
) -> tuple[list[torch.Tensor], GraphModule, tuple[bool, ...]]:
    """(saved tensors, the traced backward, whether it makes a gradient of each tensor argument)."""
    leaves, tree = pytree.tree_flatten(vars(context))
    saved = list({id(leaf): leaf for leaf in leaves if isinstance(leaf, torch.Tensor)}.values())
    made: list[bool] = []

    def run(*given: torch.Tensor) -> list[torch.Tensor]:
        twins = dict(zip(map(id, saved), given[len(results) :], strict=True))
        filled = [twins[id(leaf)] if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        replay = SimpleNamespace(**pytree.tree_unflatten(filled, tree))
        gradients = [None if id(result) in context.constant and not context.materialize else gradient
                     for result, gradient in zip(results, given, strict=False)]  # fmt: skip
        back = cls.backward(replay, *gradients)
        back = back if isinstance(back, tuple) else (back,)
        own = [item for arg, item in zip(args, back, strict=False) if isinstance(arg, torch.Tensor)]
        made.extend(item is not None for item in own)
        return [item for item in own if item is not None]

    def describe(error: Exception) -> CaptureError:
        if (text := data_dependence(error)) is not None:
            return CaptureError(f"in the backward of {name}, {text}")
        return _unsupported(name, f"{type(error).__name__}: {first_line(error)}")

    with translated(describe), _disable_current_modes(), torch._C.DisableTorchFunction(), torch.no_grad():
        mode = FakeTensorMode()
        with mode:
            twins = [torch.empty_strided(t.shape, t.stride(), dtype=t.dtype) for t in (*results, *saved)]
        body = make_fx(run, tracing_mode="fake")(*twins)
    return saved, body, tuple(made)


def _unsupported(name: str, why: str) -> CaptureError:
    return CaptureError(
        f"{name} is a custom autograd.Function whose backward can't be traced ({why}): write the computation with ordinary torch "
        "operators (x + (f(x) - x).detach() gives a straight-through gradient)"
    )
