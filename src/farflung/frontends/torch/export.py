"""Run ``torch.export`` on a module and refuse, before or during the trace, what export would lose in silence.

Export drops gradient hooks in silence, which are watched for here while the module runs under fake tensors. It would drop the
backward of a custom ``autograd.Function`` as well, which ``functions`` keeps. Meta modules are traced as if they lay on a CPU,
so that a real module and its meta twin give the same graph.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.export import ExportedProgram, _trace
from torch.nn import functional
from torch.nn.parameter import is_lazy

from farflung.errors import CaptureError
from farflung.foreign_code import first_line, translated
from farflung.frontends.torch.checks.data_asserts import data_asserts
from farflung.frontends.torch.checks.data_dependence import called_from, data_dependence, no_symbols, user_line
from farflung.frontends.torch.checks.frozen_random import refuse_frozen_random
from farflung.frontends.torch.fresh_parameters import FreshParameters
from farflung.frontends.torch.functions import Backward, Functions
from farflung.frontends.torch.model_warnings import recorded_warnings
from farflung.frontends.torch.opaque import opaque_calls
from farflung.frontends.torch.patches import PATCHES, replaced_here
from farflung.frontends.torch.results import tensor_results
from farflung.frontends.torch.twins import as_state, with_twins
from farflung.frontends.torch.values.mask_branches import MaskBranches
from farflung.frontends.torch.values.masks import eager_masks

__all__ = ["Example", "Exported", "fake_states", "read_example", "run_export"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One micro-batch as ``torch.export`` wants it: detached tensors that share no memory, positional or by keyword."""

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any]


def read_example(example: Any, mode: FakeTensorMode) -> Example:
    """Read what the user gave: tensors or arrays, on any device; values don't matter, only shapes and element types.

    Raises:
        CaptureError: something positional is neither a tensor nor an array.
    """
    if isinstance(example, Mapping):
        return Example(kwargs={name: _fake(value, mode, name, constants=True) for name, value in example.items()})
    if not isinstance(example, Sequence):
        example = (example,)
    return Example(args=tuple(_fake(value, mode, f"#{i}") for i, value in enumerate(example)), kwargs={})


def _fake(value: Any, mode: FakeTensorMode, name: str, *, constants: bool = False) -> Any:
    if isinstance(value, np.ndarray):
        value = torch.from_numpy(np.empty(value.shape, value.dtype))
    if isinstance(value, torch.Tensor):
        with mode:
            return torch.empty(tuple(value.shape), dtype=value.dtype)
    if constants and (value is None or isinstance(value, (bool, int, float, str))):
        return value
    raise CaptureError(
        f"example input {name} is a {type(value).__name__}, and each input must be a tensor or an array: "
        "turn it into a tensor, or set it inside a wrapper module"
    )


@contextmanager
def fake_states(module: nn.Module, mode: FakeTensorMode) -> Iterator[None]:
    """While it lasts, the module's meta parameters and buffers are fake CPU tensors (ties kept)."""

    def make(tensor: torch.Tensor) -> torch.Tensor:
        with mode:
            return as_state(tensor, torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype))

    with with_twins(module, lambda tensor: not isinstance(tensor, FakeTensor) and tensor.is_meta, make):
        yield


class _Watch:
    """Notes what export would drop; the first finding becomes the error."""

    def __init__(self) -> None:
        self.found: list[str] = []
        self.functions = Functions()

    def refuse(self, text: str) -> None:
        self.found.append(text)
        raise CaptureError(text)

    @contextmanager
    def installed(self) -> Iterator[None]:
        def watched_hook(tensor: torch.Tensor, *_: Any) -> None:
            self.refuse(
                f"the forward registers a gradient hook on a tensor of shape {tuple(tensor.shape)}, and hooks would be lost: "
                "remove it, or write its effect with ordinary torch operators"
            )

        with PATCHES, ExitStack() as stack:
            stack.enter_context(self.functions.watched())
            stack.enter_context(replaced_here(torch.Tensor, "register_hook", watched_hook))
            yield


def _refuse_lazy(module: nn.Module) -> None:
    for name, value in [*module.named_parameters(), *module.named_buffers()]:
        if is_lazy(value):
            owner = module.get_submodule(name.rpartition(".")[0])
            raise CaptureError(
                f"{name} of {type(owner).__name__} has no shape before the first forward: call the module once on a batch "
                "and pass that module, or use a layer that has its sizes as arguments"
            )


def _refuse_hooks(module: nn.Module) -> None:
    for path, part in module.named_modules():
        if part._backward_hooks or part._backward_pre_hooks:
            raise CaptureError(f"module {path or '(root)'} has a backward hook, which a graph can't keep: remove it")
    for name, parameter in module.named_parameters():
        if getattr(parameter, "_backward_hooks", None) or getattr(parameter, "_post_accumulate_grad_hooks", None):
            raise CaptureError(f"parameter {name} has a gradient hook, which a graph can't keep: remove it")


@contextmanager
def _quiet() -> Iterator[None]:
    """torch logs a page of its own for what is refused here in one line."""
    loggers = [logging.getLogger(name) for name in ("torch.fx.experimental.symbolic_shapes", "torch._subclasses.fake_tensor")]
    before = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.CRITICAL + 1)
        yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)


#: What to do about a ``.to(dtype)`` of a module in a forward.
_CONVERTS = (
    "convert the module before the training instead of in the forward; in place of Switch and NLLB-MoE, use another mixture "
    "of experts, such as Mixtral"
)


#: PyTorch's layers and losses.
_LAYERS = str(Path(functional.__file__).parent / "modules")


def _torch_place(trace: TracebackType | None, module: nn.Module) -> str:
    """Which layer or function of PyTorch failed, where no line of a model's code has a part in ``trace``."""
    layers = {id(part): f"layer {name} ({type(part).__name__})" for name, part in module.named_modules() if name}
    found = ""
    for frame, _ in traceback.walk_tb(trace):
        file, part = frame.f_code.co_filename, frame.f_locals.get("self")
        if file.startswith(_LAYERS) and frame.f_code.co_name == "forward":
            found = layers.get(id(part), type(part).__name__)
        elif file == functional.__file__ and not found:
            found = f"{frame.f_code.co_name} of PyTorch"
    caller = called_from()
    return (f" in {found}" if found else "") + (f" (called from {caller})" if caller else "")


def _untraceable(error: Exception, module: nn.Module) -> str:
    """What failed, and the line of the model's code, or what of PyTorch."""
    place = user_line(error.__traceback__)
    at = _torch_place(error.__traceback__, module)
    if place is not None:
        at = f" at {place[0]}" + (f" ({place[1]})" if place[1] else "")
    remedy = f": {_CONVERTS}" if "Couldn't swap" in str(error) else ""
    text = first_line(error)
    text = text if text.endswith("...") else text.removesuffix(".")
    return f"torch.export can't trace the module{at}: {type(error).__name__}: {text}{remedy}"


@dataclass(frozen=True, slots=True)
class Exported:
    """What ``torch.export`` gave, and the backwards of the custom functions that it met, by number."""

    program: ExportedProgram
    backwards: tuple[Backward, ...]


@contextmanager
def _backends_stay() -> Iterator[None]:
    """Leave oneDNN, NNPACK and cuDNN as they are.

    ``torch.export`` switches them off for the whole process while it traces, and kernels of other threads would then give other
    bits. No operator of theirs gets into the training form of a graph: operators that choose a backend stay whole there.
    """
    known = hasattr(_trace, "_ignore_backend_decomps")
    with replaced_here(_trace, "_ignore_backend_decomps", nullcontext) if known else nullcontext():
        yield


def run_export(module: nn.Module, example: Example, branches: MaskBranches | None = None) -> Exported:
    """``torch.export.export(strict=False)`` in the training form of the graph; ``branches`` answers whether masks have elements.

    Raises:
        CaptureError: the module can't be traced; the text says what to change.
    """
    _refuse_lazy(module)
    _refuse_hooks(module)
    watch = _Watch()

    def export() -> Exported:
        with data_asserts() as leave_out:
            while True:
                watch.functions.found.clear()
                try:
                    program = torch.export.export(module, example.args, dict(example.kwargs), strict=False)
                except Exception as error:
                    if watch.found or not leave_out(error):
                        raise
                else:
                    return Exported(program, tuple(watch.functions.found))

    def describe(error: Exception) -> Exception:
        if watch.found:
            return CaptureError(watch.found[0])
        if isinstance(error, CaptureError):
            return error
        return CaptureError(data_dependence(error) or _untraceable(error, module))

    with (
        translated(describe, chained=False),  # torch's part of the chain has hundreds of lines
        recorded_warnings(),
        _quiet(),
        watch.installed(),
        eager_masks(),
        opaque_calls(),
        FreshParameters(module),
        tensor_results(module),
        no_symbols(),
        _backends_stay(),
        branches or nullcontext(),
    ):
        return refuse_frozen_random(module, export)
