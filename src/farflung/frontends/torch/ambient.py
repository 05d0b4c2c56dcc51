"""What a caller's PyTorch process brings: threads, a module with or without weights, batches as arrays."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from farflung.errors import CaptureError, InputError
from farflung.frontends.torch.capture import capture
from farflung.frontends.torch.model_warnings import shown_warnings
from farflung.frontends.torch.recorder import Recording, record, record_initializers
from farflung.graph.ir import Graph, StateKind
from farflung.units import counted

__all__ = [
    "Example",
    "Trainee",
    "batch_arrays",
    "capture_trainee",
    "describe_batch",
    "intra_op_threads",
    "module_states",
    "to_host",
]

Array = NDArray[Any]

_FLOATS = {"float16", "bfloat16", "float32", "float64"}
#: Words of an error of PyTorch -> the remedy.
_REMEDIES = {
    "gather(): Expected dtype int": "classes of a target must be integers, so let {giver} return the target as .long()",
    "must have same reduction dim": "change the batch, or the sizes of the model's layers",
    "shapes cannot be multiplied": "change the batch, or the sizes of the model's layers",
    "to match target batch_size": "outputs and target must have the same number of samples, so change the model or the batch",
}


def intra_op_threads() -> int:
    """Intra-operator threads of this process."""
    return torch.get_num_threads()


def to_host(value: Any) -> Array:
    """A tensor or array-like as a NumPy array on the host (bfloat16 as ``ml_dtypes.bfloat16``); strides are kept."""
    if not isinstance(value, torch.Tensor):
        return np.asarray(value)
    tensor = value.detach().cpu()
    if tensor.dtype is torch.bfloat16:
        import ml_dtypes

        return tensor.view(torch.uint16).numpy().view(ml_dtypes.bfloat16)
    return tensor.numpy()


def batch_arrays(batch: Any, order: Sequence[str]) -> dict[str, Array]:
    """A batch as arrays by placeholder name; ``order`` names the positional arguments.

    ``batch``: a tuple or list, a mapping by name, or a single tensor or array.

    Raises:
        InputError: there are more positional arguments than placeholders.
    """
    if isinstance(batch, Mapping):
        return {str(name): to_host(value) for name, value in batch.items()}
    values = (batch,) if isinstance(batch, (torch.Tensor, np.ndarray)) else tuple(batch)
    if len(values) > len(order):
        raise InputError(f"{len(values)} values, but the captured module takes {len(order)} ({', '.join(order)})")
    return {name: to_host(value) for name, value in zip(order, values, strict=False)}


@dataclass(frozen=True, kw_only=True)
class Trainee:
    """A caller's ``module`` as graphs, with the values that its states have here (none for a factory or a meta module).

    ``evaluation``: the same module in evaluation mode (None: no batch for it was given).
    """

    module: nn.Module
    graph: Graph
    states: Mapping[str, Array]
    evaluation: Graph | None = None


@dataclass(frozen=True, kw_only=True)
class Example:
    """The first batch, and what gave it, for errors: ``batch_fn(0, 0)``. ``outputs``: results of the forward to keep."""

    batch: Any
    origin: str
    outputs: tuple[str, ...] | None = None


def capture_trainee(module: nn.Module | Callable[[], nn.Module], batch: Example, evaluation: Example | None = None) -> Trainee:
    """Capture ``module`` for training on batches like ``batch`` and, if given, for evaluation on batches like ``evaluation``.

    Warnings of the module's own code are shown, once each.

    Raises:
        InputError: the batch is not what the module's forward takes; the text names what gave it.
        CaptureError: the module can't become a graph, or some of its weights are on the meta device and some are not.
    """
    source: nn.Module | Recording = module if isinstance(module, nn.Module) else record(module)
    built = source if isinstance(source, nn.Module) else source.module
    if isinstance(source, nn.Module):
        tensors = [*source.parameters(), *source.buffers()]
        on_meta = [tensor.is_meta for tensor in tensors]
        if any(on_meta) and not all(on_meta):
            raise CaptureError(
                f"{sum(on_meta)} of the module's {len(on_meta)} weights are on the meta device: give all of them values, or none"
            )
        if any(on_meta):
            source = record_initializers(source)
    with shown_warnings():
        graph = _captured(source, built, batch)
        side = None if evaluation is None else _captured(source, built, evaluation, "eval")
    if side is not None:
        _check_evaluation(graph, side)
    return Trainee(
        module=built, graph=graph, states=module_states(source, graph) if isinstance(source, nn.Module) else {}, evaluation=side
    )


def _check_evaluation(graph: Graph, side: Graph) -> None:
    """The evaluation reads the states that training keeps.

    Raises:
        CaptureError: it reads others; the text names one.
    """
    more = sorted(name for name in side.uses if name not in graph.uses and side.state[name].kind is not StateKind.CONSTANT)
    if more:
        raise CaptureError(
            f"in evaluation mode the module reads {more[0]!r}, which it does not read in training: evaluate the module outside "
            "with result.load_into(module)"
        )


def _captured(source: nn.Module | Recording, module: nn.Module, given: Example, mode: str = "train") -> Graph:
    batch, origin = given.batch, given.origin
    example = (batch,) if isinstance(batch, (torch.Tensor, np.ndarray)) else batch
    arguments = _arguments(module, example, origin)
    try:
        return capture(source, example, mode=mode, outputs=given.outputs)
    except CaptureError as error:
        if "can't trace" not in str(error):
            raise
        weights = {str(parameter.dtype).removeprefix("torch.") for parameter in module.parameters()}
        shown = {name: (str(value.dtype).removeprefix("torch."), tuple(value.shape)) for name, value in arguments.items()}
        raise CaptureError(f"{error}; {describe_batch(weights, shown, origin, str(error))}") from error


def describe_batch(
    weights: Collection[str],
    given: Mapping[str, tuple[str, tuple[int, ...]]],
    origin: str = "batch_fn(0, 0)",
    failure: str = "",
) -> str:
    """What the first batch of ``origin`` was (name -> element type and shape), for errors that it may have caused.

    With a remedy, if the batch has another floating type than the ``weights`` (element types), or if ``failure``, the text of
    the error, is a known one.
    """
    text = f"{origin} returned " + ", ".join(f"{name} {dtype} {list(shape)}" for name, (dtype, shape) in given.items())
    giver = origin.partition(" of ")[2] or origin.partition("(")[0]  # "batch 3 of data", or "batch_fn(1, 1)"
    remedy = _type_remedy(_FLOATS & set(weights), {dtype for dtype, _ in given.values()}, giver, failure)
    remedy = remedy or next((known for words, known in _REMEDIES.items() if words in failure), "")
    return f"{text}: {remedy.format(giver=giver)}" if remedy else text


def _type_remedy(weights: set[str], given: set[str], giver: str, failure: str) -> str:
    if not weights:
        return ""
    kind = min(weights)
    if (given & _FLOATS) - weights:
        numpy = "" if kind == "bfloat16" else f".astype({kind!r}) (NumPy) or "
        model = "" if kind == "float32" else "call model.float(), or "
        return f"the weights are {kind}, so {model}let {giver} return {numpy}.to(torch.{kind})"
    if "same dtype" in failure and given - _FLOATS:
        return f"the weights are {kind}, so let {giver} return inputs that are no indices as .to(torch.{kind})"
    return ""


def _arguments(module: nn.Module, example: Any, origin: str) -> dict[str, Any]:
    """The batch by the names of the forward's parameters.

    Raises:
        InputError: it is no tuple, mapping or tensor, holds something else than tensors, or does not fit the forward.
    """
    rule = "it must return a tuple of tensors or arrays in the order of the module's forward, or a dict by name"
    if isinstance(example, (str, bytes)) or not isinstance(example, (Sequence, Mapping)):
        raise InputError(f"{origin} returned a {type(example).__name__}: {rule}")
    named = dict(example) if isinstance(example, Mapping) else {f"value {i}": value for i, value in enumerate(example)}
    for name, value in named.items():
        constant = isinstance(example, Mapping) and (value is None or isinstance(value, (bool, int, float, str)))
        if not constant and not isinstance(value, (torch.Tensor, np.ndarray)):
            raise InputError(f"{origin} returned a {type(value).__name__} as {name}: {rule}")
    try:
        signature = inspect.signature(module.forward)
        bound = signature.bind(**named) if isinstance(example, Mapping) else signature.bind(*example)
    except TypeError as error:
        takes = ", ".join(signature.parameters) or "nothing"
        raise InputError(
            f"{origin} returned {counted(len(named), 'value')} ({', '.join(named)}), and {type(module).__name__}.forward takes "
            f"{takes}: {error}; {_missing_loss(module, signature, example) or rule}"
        ) from None
    return {name: value for name, value in bound.arguments.items() if isinstance(value, (torch.Tensor, np.ndarray))}


def _missing_loss(module: nn.Module, signature: inspect.Signature, example: Any) -> str:
    """The remedy for a forgotten loss: without one of its values, the batch fits the forward ("": another error)."""
    if "forward" in vars(module):  # the loss is in this forward
        return ""
    names = [name for name in example if name not in signature.parameters] if isinstance(example, Mapping) else ["the last value"]
    if len(names) != 1 or len(example) < 2:
        return ""
    try:
        if isinstance(example, Mapping):
            signature.bind(**{name: value for name, value in example.items() if name != names[0]})
        else:
            signature.bind(*example[:-1])
    except TypeError:
        return ""
    return f"if {names[0]} is the target, pass loss=..., such as loss=torch.nn.functional.cross_entropy"


def module_states(module: nn.Module, graph: Graph) -> dict[str, Array]:
    """The module's own values of the graph's parameters and buffers; copies."""
    values = dict(module.named_parameters(remove_duplicate=False)) | dict(module.named_buffers(remove_duplicate=False))
    found: dict[str, Array] = {}
    for state in graph.states:
        value = values.get(state.name)
        if state.kind is not StateKind.CONSTANT and value is not None:
            found[state.name] = to_host(value).copy()
    return found
