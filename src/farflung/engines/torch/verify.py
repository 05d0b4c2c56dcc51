"""The shape re-check: every operator runs on the meta device, so that nothing is allocated before declarations are trusted."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree

from farflung.engines.present import PRESENT
from farflung.engines.torch.arrays import TORCH_DTYPES, spec_of
from farflung.engines.torch.program import PSEUDO, installed_signature, kernel, operator_label, pseudo, resolve, tensor_arguments
from farflung.errors import GraphError
from farflung.graph.gradient import GRADIENT, read_gradient
from farflung.graph.ir import Graph, LocalRef, Op, StateRef, TensorSpec, ValueRef
from farflung.graph.opset import check_target
from farflung.graph.signatures import check_call, signature

__all__ = ["check_declared", "verify_graph"]

_META = torch.device("meta")
_ATTENTION = "aten.scaled_dot_product_attention.default"


def _empty(spec: TensorSpec) -> torch.Tensor:
    return torch.empty(spec.shape, dtype=TORCH_DTYPES[spec.dtype], device=_META)


def verify_graph(graph: Graph, positions: Collection[int] | None = None) -> None:
    """Run ``graph`` on the meta device and compare each result with what is declared.

    ``positions``: of the operators that run. The results of others are as declared. ``None``: all run.

    Raises:
        GraphError: an operator is not allowed, refuses its arguments or gives something else than declared.
    """
    values: dict[ValueRef, torch.Tensor] = {}
    states = {state.name: _empty(state.spec) for state in graph.states}
    last = {value: positions[-1] for value, positions in graph.users.items()}

    def ref(item: ValueRef | StateRef | LocalRef) -> torch.Tensor:
        if isinstance(item, LocalRef) or (isinstance(item, StateRef) and item.name not in states):
            raise GraphError(f"operator {op.name!r} reads {item}, which the graph does not have")
        if isinstance(item, StateRef):
            return states[item.name]
        if item not in values:
            raise GraphError(f"operator {op.name!r} reads {item}, which no earlier operator makes")
        return values[item]

    with torch.no_grad():
        for position, op in enumerate(graph.ops):
            check_target(op.target)
            runs = positions is None or position in positions
            for index, result in enumerate(_results(op, ref) if runs else map(_empty, op.outputs)):
                values[ValueRef(op.name, index)] = result
            for value in op.values():
                if last[value] == position:
                    values.pop(value, None)


def _results(op: Op, ref: object) -> tuple[torch.Tensor, ...]:
    if op.target == "farflung.input":
        return (_empty(op.outputs[0]),)
    _check_types(op)
    args = [resolve(arg, ref) for arg in tensor_arguments(op)]  # type: ignore[arg-type]
    kwargs = {name: resolve(arg, ref, memory_format=name == "memory_format") for name, arg in op.kwargs}  # type: ignore[arg-type]
    function = pseudo(op, _META) or kernel(op.target, args, kwargs, _META)
    PRESENT.memory[:] = operator_label(op)
    try:
        found = _attended(function, args, kwargs) if op.target == _ATTENTION else function(*args, **kwargs)
    except Exception as error:  # PyTorch's rules for the meta device are Python, which can raise anything
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise GraphError(f"operator {op.name!r} ({op.target}) refuses its declared arguments: {first}") from error
    results = (found,) if isinstance(found, torch.Tensor) else tuple(found)
    check_declared(op, results)
    return results


def _attended(function: Callable[..., torch.Tensor], args: Sequence[Any], kwargs: Mapping[str, Any]) -> torch.Tensor:
    """The result as a processor computes it: the meta device takes another algorithm, whose result has other strides."""
    with FakeTensorMode():
        fake_args, fake_kwargs = pytree.tree_map_only(torch.Tensor, _on_processor, (tuple(args), dict(kwargs)))
        found = function(*fake_args, **fake_kwargs)
    return torch.empty_strided(found.shape, found.stride(), dtype=found.dtype, device=_META)


def _on_processor(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)


def _check_types(op: Op) -> None:
    """Check the arguments' types by this PyTorch's own declaration, which can differ from the table of ``graph.signatures``."""
    where = f"operator {op.name!r} ({op.target})"
    if op.target == GRADIENT:
        for step in read_gradient(op).steps:
            check_call(installed_signature(step.target), step.args, step.kwargs, f"{where}, step {step.target} of its backward")
    else:
        declared = signature(op.target) if op.target in PSEUDO else installed_signature(op.target)
        check_call(declared, op.args, op.kwargs, where)


def check_declared(op: Op, results: tuple[torch.Tensor, ...]) -> None:
    """Compare what ``op`` gave with what it declares.

    Raises:
        GraphError: names the operator, the declared and the found shapes and element types.
    """
    found = tuple(spec_of(result) for result in results)
    if found != op.outputs:
        raise GraphError(f"operator {op.name!r} ({op.target}) declares {_show(op.outputs)} but gives {_show(found)}")


def _show(specs: tuple[TensorSpec, ...]) -> str:
    return ", ".join(f"{spec.dtype}{list(spec.shape)}" for spec in specs)
