"""A reference interpreter for graphs and initializer programs, as plain as can be: for tests only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from farflung.graph.ir import Arg, DTypeArg, Graph, LocalRef, State, StateRef, ValueRef
from farflung.ids import derive_seed


def _function(target: str) -> Any:
    _, name, overload = target.split(".")
    return getattr(getattr(torch.ops.aten, name), overload)


def _resolve(arg: Arg, ref: Any) -> Any:
    if isinstance(arg, tuple):
        return [_resolve(item, ref) for item in arg]
    if isinstance(arg, (ValueRef, StateRef, LocalRef)):
        return ref(arg)
    return getattr(torch, arg.name) if isinstance(arg, DTypeArg) else arg


def _kwargs(pairs: tuple[tuple[str, Arg], ...], ref: Any) -> dict[str, Any]:
    found = {key: _resolve(arg, ref) for key, arg in pairs}
    if isinstance(found.get("memory_format"), str):
        found["memory_format"] = getattr(torch, found["memory_format"])
    return found


def born(state: State, seed: int) -> torch.Tensor:
    """The value of a state under ``seed``."""
    if state.data is not None:
        dtype = getattr(torch, state.spec.dtype)
        return torch.frombuffer(bytearray(state.data), dtype=dtype).reshape(state.spec.shape)
    results: list[Any] = []
    for step in state.init:
        if step.rng is not None:
            torch.manual_seed(derive_seed("init", seed, *(step.like or (state.name, step.rng))))
        with torch.no_grad():
            result = _function(step.target)(
                *(_resolve(arg, lambda ref: results[ref.index]) for arg in step.args),
                **_kwargs(step.kwargs, lambda ref: results[ref.index]),
            )
        results.append(result if isinstance(result, torch.Tensor) else result[step.output])
    return results[-1].clone()


def run(
    graph: Graph, states: Mapping[str, torch.Tensor], data: Mapping[str, torch.Tensor], seed: int = 0
) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Outputs and new states of one micro-batch; random operators draw under ``("op", seed, rng)``."""
    values: dict[str, tuple[torch.Tensor, ...]] = {}

    def ref(item: Any) -> Any:
        return states[item.name] if isinstance(item, StateRef) else values[item.op][item.index]

    for op in graph.ops:
        if op.target == "farflung.input":
            values[op.name] = (data[op.name],)
            continue
        args = [_resolve(arg, ref) for arg in op.args]
        if op.rng is not None:
            torch.manual_seed(derive_seed("op", seed, op.rng))
        with torch.set_grad_enabled(not op.no_grad and torch.is_grad_enabled()):
            if op.target == "farflung.batch_norm":
                x, weight, bias, mean, var, momentum, eps = args
                mean, var = mean.clone(), var.clone()
                y = torch.ops.aten.batch_norm(x, weight, bias, mean, var, True, momentum, eps, False)
                result: Any = (y, mean, var)
            else:
                result = _function(op.target)(*args, **_kwargs(op.kwargs, ref))
        values[op.name] = tuple(result) if isinstance(result, (list, tuple)) else (result,)
        for value, spec in zip(values[op.name], op.outputs, strict=True):
            assert tuple(value.shape) == spec.shape, op
            assert str(value.dtype) == f"torch.{spec.dtype}", op
    return (
        {name: values[value.op][value.index] for name, value in graph.outputs},
        {name: values[value.op][value.index] for name, value in graph.state_updates},
    )
