"""Evaluation and generation through the same stages: cut another graph so that every state is read where it lives."""

from __future__ import annotations

from collections.abc import Sequence, Set

from farflung.errors import PlanError
from farflung.graph.ir import Graph, StateKind

__all__ = ["derive_bounds"]


def derive_bounds(graph: Graph, homes: Sequence[Set[str]]) -> list[tuple[int, int, int]]:
    """Cut ``graph`` along stages that hold states: a list of (stage, start, stop) in ascending stage, empty stages left out.

    ``homes[stage]`` names the states that the stage holds. Each operator that reads a parameter goes to the first stage, not
    before that of the operators before it, which holds all parameters that it reads; the others stay with what precedes them.

    Raises:
        PlanError: a parameter is read in an order that no ascending walk over the stages can serve.
    """
    kinds = {state.name: state.kind for state in graph.states}
    placed: list[int] = []
    current = 0
    for op in graph.ops:
        needed = {name for name in op.states() if kinds[name] is not StateKind.CONSTANT}
        needed = {name for name in needed if any(name in home for home in homes)}
        if needed:
            found = next((stage for stage in range(current, len(homes)) if needed <= homes[stage]), None)
            if found is None:
                names = ", ".join(sorted(needed))
                raise PlanError(
                    f"graph {graph.name!r}: operator {op.name!r} reads {names} after stage {current}, "
                    "which no later stage holds; use fewer stages or an evaluation form that visits the layers in order"
                )
            current = found
        placed.append(current)
    parts: list[tuple[int, int, int]] = []
    for position, stage in enumerate(placed):
        if parts and parts[-1][0] == stage:
            parts[-1] = (stage, parts[-1][1], position + 1)
        else:
            parts.append((stage, position, position + 1))
    return parts
