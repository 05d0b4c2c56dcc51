"""Weights are born where they live: the recorded initializer programs replayed, each random step under a key of its own.

Programs run on the CPU whatever the device, so that a GPU starts from the same weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch

from farflung.engines.base import Array
from farflung.engines.present import PRESENT, label
from farflung.engines.torch.accelerators import default_generator
from farflung.engines.torch.arrays import spec_of, to_array
from farflung.engines.torch.keys import seeded
from farflung.engines.torch.program import installed_signature, kernel, resolve
from farflung.errors import GraphError
from farflung.graph.ir import Graph, InitStep, LocalRef, State, StateRef, ValueRef, iter_refs
from farflung.graph.opset import check_initializer
from farflung.graph.signatures import check_call
from farflung.ids import derive_seed
from farflung.memory_budget import MemoryBudget

__all__ = ["initial_states", "initial_value"]

_CPU = torch.device("cpu")
_META = torch.device("meta")
#: Bytes that the results of a program may take at a time: a multiple of the state's, and in any case.
_GROWTH, _SMALL = 8, 32 << 20
#: Operators whose result is what the process's memory held before. It is set to zero, since states leave the machine.
_UNSET = frozenset({"aten.empty.memory_format", "aten.empty_like.default", "aten.new_empty.default"})


def initial_states(graph: Graph, seed: int, names: Sequence[str]) -> dict[str, Array]:
    """The values that the recorded initializers give the states ``names`` under ``seed``.

    Raises:
        GraphError: a state is unknown, has no program, or its program gives something else than declared.
    """
    for name in names:
        if name not in graph.state:
            raise GraphError(f"graph {graph.name!r} has no state {name!r}")
    return {name: to_array(initial_value(graph.state[name], seed)) for name in names}


def initial_value(state: State, seed: int, budget: MemoryBudget | None = None) -> torch.Tensor:
    """The first value of ``state`` (a CPU tensor): its constant data, or the result of its program under ``seed``.

    Raises:
        GraphError: see ``initial_states``.
        MemoryExceeded: ``budget`` has no room for what the program needs at a time.
    """
    if state.data is not None:
        return _from_bytes(state)
    if not state.init:
        raise GraphError(f"state {state.name!r} has no initializer: load its value from a file or from the submitter")
    _, most = _replay(state, seed, _META)
    with (budget or MemoryBudget()).reserved(most, f"the initializer of {state.name[:100]!r}", wait=0.0):
        value, _ = _replay(state, seed, _CPU)
        return value.detach().clone() if value.untyped_storage().nbytes() != value.nbytes else value.detach().contiguous()


def _replay(state: State, seed: int, device: torch.device) -> tuple[torch.Tensor, int]:
    """Run the program of ``state``; return its result, and the most bytes at a time.

    On the meta device this checks sizes before any memory is taken.
    """
    results: list[torch.Tensor | None] = []
    last = _last_uses(state.init)
    most, peak = max(_GROWTH * state.spec.nbytes, _SMALL), 0

    def ref(item: ValueRef | StateRef | LocalRef) -> torch.Tensor:
        found = results[item.index] if isinstance(item, LocalRef) and 0 <= item.index < len(results) else None
        if found is None:
            raise GraphError(f"the initializer of {state.name!r} refers to {item}, which no earlier step makes")
        return found

    with torch.no_grad():
        for number, step in enumerate(state.init):
            results.append(_step(state, step, seed, ref, device))
            taken = {found.untyped_storage()._cdata: found.untyped_storage().nbytes() for found in results if found is not None}
            peak = max(peak, sum(taken.values()))
            if peak > most:
                raise GraphError(
                    f"the initializer of {state.name!r} needs {peak} bytes at step {number}: at most {most} are "
                    f"allowed, which is the larger of {_SMALL} and {_GROWTH} times the state"
                )
            for done in last.get(number, ()):
                results[done] = None
    value = results[-1]
    assert value is not None
    found = spec_of(value)
    if found != state.spec:
        raise GraphError(
            f"state {state.name!r} is declared {state.spec.dtype}{list(state.spec.shape)} but its initializer gives "
            f"{found.dtype}{list(found.shape)}"
        )
    return value, peak


def _last_uses(program: Sequence[InitStep]) -> dict[int, list[int]]:
    """Step -> the steps whose results nobody reads after it."""
    last = {number: number for number in range(len(program) - 1)}
    for number, step in enumerate(program):
        for item in iter_refs((step.args, tuple(arg for _, arg in step.kwargs))):
            if isinstance(item, LocalRef) and item.index < len(program) - 1:
                last[item.index] = number
    found: dict[int, list[int]] = {}
    for made, used in last.items():
        found.setdefault(used, []).append(made)
    return found


def _step(state: State, step: InitStep, seed: int, ref: Any, device: torch.device) -> torch.Tensor:
    check_initializer(step.target)
    check_call(installed_signature(step.target), step.args, step.kwargs, f"the initializer of {state.name!r} at {step.target}")
    args = [resolve(arg, ref) for arg in step.args]
    kwargs = {name: resolve(arg, ref, memory_format=name == "memory_format") for name, arg in step.kwargs}
    function = kernel(step.target, args, kwargs, device)
    PRESENT.memory[:] = label(f"the initializer of {state.name[:100]!r} at {step.target[:100]}")
    draws = step.rng is not None and device.type != "meta"
    key = seeded(default_generator(_CPU), derive_seed("init", seed, state.name, step.rng or 0)) if draws else nullcontext()
    try:
        with key:
            result: Any = function(*args, **kwargs)
    except Exception as error:  # PyTorch's rules for the meta device are Python, which can raise anything
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise GraphError(f"the initializer of {state.name!r} failed at {step.target}: {first}") from error
    results: Sequence[torch.Tensor] = (result,) if isinstance(result, torch.Tensor) else tuple(result)
    if not 0 <= step.output < len(results):
        raise GraphError(
            f"the initializer of {state.name!r} wants result {step.output} of {step.target}, which has {len(results)}"
        )
    made = results[step.output]
    return made.zero_() if step.target in _UNSET else made


def _from_bytes(state: State) -> torch.Tensor:
    assert state.data is not None
    if len(state.data) != state.spec.nbytes:
        raise GraphError(f"state {state.name!r} holds {len(state.data)} bytes of data but is declared {state.spec.nbytes}")
    dtype = np.uint16 if state.spec.dtype == "bfloat16" else np.dtype(state.spec.dtype)
    array = np.frombuffer(state.data, dtype=dtype).reshape(state.spec.shape).copy()
    tensor = torch.from_numpy(array)
    return tensor.view(torch.bfloat16) if state.spec.dtype == "bfloat16" else tensor
