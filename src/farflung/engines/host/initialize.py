"""First values of states: the recorded initializer programs, each random step under a key of its own.

Uniform numbers have the bits of the PyTorch engine. Some normal numbers differ in the last bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import numpy as np

from farflung.engines.base import Array
from farflung.engines.host.operators import host_dtype
from farflung.engines.host.programs import call, check_memory, last_uses
from farflung.engines.host.random_bits import Stream
from farflung.errors import GraphError
from farflung.graph.ir import Graph, State
from farflung.graph.opset import check_initializer
from farflung.graph.signatures import check_call, signature
from farflung.ids import derive_seed
from farflung.memory_budget import MemoryBudget

__all__ = ["initial_states", "initial_value"]

#: Bytes that the results of a program may take at a time: a multiple of the state's, and in any case.
_GROWTH, _SMALL = 8, 32 << 20


def initial_states(graph: Graph, seed: int, names: Sequence[str]) -> dict[str, Array]:
    """The first values of the states ``names`` of ``graph`` under ``seed``.

    Raises:
        GraphError: there is no such state; and as ``initial_value``.
    """
    for name in names:
        if name not in graph.state:
            raise GraphError(f"graph {graph.name!r} has no state {name!r}")
    return {name: initial_value(graph.state[name], seed) for name in names}


def initial_value(state: State, seed: int, budget: MemoryBudget | None = None) -> Array:
    """The first value of ``state``: its constant data, or the result of its program under ``seed``.

    Raises:
        GraphError: the state has no program, or its program gives something else than declared.
        MemoryExceeded: ``budget`` has no room for what the program needs at a time.
    """
    if state.data is not None:
        if len(state.data) != state.spec.nbytes:
            raise GraphError(f"state {state.name!r} holds {len(state.data)} bytes of data but is declared {state.spec.nbytes}")
        return np.frombuffer(state.data, host_dtype(state.spec.dtype)).reshape(state.spec.shape)
    if not state.init:
        raise GraphError(f"state {state.name!r} has no initializer: load its value from a file or from the submitter")
    with ExitStack() as held:
        value = _replay(state, seed, partial(_hold, held, budget or MemoryBudget()))
    if value.shape != state.spec.shape or value.dtype != host_dtype(state.spec.dtype):
        raise GraphError(
            f"state {state.name!r} is declared {state.spec.dtype}{list(state.spec.shape)} but its initializer gives "
            f"{value.dtype.name}{list(value.shape)}"
        )
    return value


def _hold(held: ExitStack, budget: MemoryBudget, nbytes: int, what: str) -> None:
    held.enter_context(budget.reserved(nbytes, what, wait=0.0))


def _replay(state: State, seed: int, hold: Callable[[int, str], None]) -> Array:
    results: list[Any] = []
    peak = 0
    where = f"the initializer of {state.name!r}"
    last, most = last_uses(state.init, 0, [len(state.init) - 1]), max(_GROWTH * state.spec.nbytes, _SMALL)

    def allow(more: int) -> None:
        nonlocal peak
        taken = check_memory(results, more, most, where)
        if taken > peak:
            hold(taken - peak, where)
            peak = taken

    for number, step in enumerate(state.init):
        check_initializer(step.target)
        check_call(signature(step.target), step.args, step.kwargs, f"{where} at {step.target}")

        def read(place: int) -> Any:
            if not 0 <= place < len(results) or results[place] is None:
                raise GraphError(f"{where} refers to step {place}, which no earlier step makes")
            return results[place]

        extra = {"stream": Stream(derive_seed("init", seed, state.name, step.rng))} if step.rng is not None else {}
        results.append(call(step, read, where, allow, **extra))
        for done in last.get(number, ()):
            results[done] = None
    found: Array = results[-1]
    return found
