"""Grouping positions by the module that they came from, and what crosses at each cut position.

Planners and people work at this granularity: GPT-2-124M has some 550 operators, 150 module runs and 20 block runs. A *cut
position* p lies between the operators p - 1 and p; 0 and ``len(graph.ops)`` are the ends. All functions cost
O(operators + edges).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Literal

from farflung.graph.cut import sources, view_parent
from farflung.graph.ir import Graph, Op, OpKind, StateKind, ValueRef
from farflung.graph.opset import info

__all__ = ["CutWidths", "Level", "ModuleRun", "cut_widths", "module_runs"]

#: ``"leaf"``: the innermost module; ``"block"``: its path up to the first number (``transformer.h.3``, ``layer1.0``); a
#: number: that many parts of the path.
Level = Literal["leaf", "block"] | int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleRun:
    """Positions ``start`` to ``stop`` (exclusive) of one call of module ``path`` (class ``type``; "" where unknown)."""

    path: str
    type: str
    start: int
    stop: int


def module_runs(graph: Graph, level: Level = "leaf") -> tuple[ModuleRun, ...]:
    """Maximal runs of consecutive operators of one module, tiling the positions.

    Runs that only view join the run before (their producer's); operators that no parameter influences (placeholders, masks)
    join the run after (their reader's). A shared module gives one run per call.
    """
    weighty = _weighty(graph)
    groups: list[_Group] = []
    waiting: int | None = None  # first of the operators that wait for their reader
    for position, op in enumerate(graph.ops):
        if weighty and position not in weighty:
            waiting = position if waiting is None else waiting
            continue
        key = _key(op, level)
        if not groups or groups[-1].key != key or groups[-1].called_again(op):
            groups.append(_Group(key, position if waiting is None else waiting))
        groups[-1].add(op)
        waiting = None
    merged: list[_Group] = []
    for group in groups:
        if merged and (group.views_only or (group.key == merged[-1].key and not group.fresh_call)):
            continue  # its positions go to the group before
        merged.append(group)
    types = {op.module: op.module_type for op in graph.ops if op.module_type}
    stops = [group.start for group in merged[1:]] + [len(graph.ops)]
    return tuple(
        ModuleRun(path=group.key, type=types.get(group.key, ""), start=group.start if index else 0, stop=stop)
        for index, (group, stop) in enumerate(zip(merged, stops, strict=True))
    )


class _Group:
    def __init__(self, key: str, start: int) -> None:
        self.key, self.start = key, start
        self.views_only = True
        self.fresh_call = False
        self._calls: dict[str, int] = {}

    def called_again(self, op: Op) -> bool:
        """Whether ``op`` belongs to a further call of this run's module: a module with states comes for the second time."""
        return any(True for _ in op.states()) and self._calls.get(op.module, op.occurrence) != op.occurrence

    def add(self, op: Op) -> None:
        self.views_only = self.views_only and info(op.target).view
        if any(True for _ in op.states()):
            self._calls.setdefault(op.module, op.occurrence)
            self.fresh_call = self.fresh_call or op.occurrence > 0


def _key(op: Op, level: Level) -> str:
    if level == "leaf":
        return op.module
    parts = op.module.split(".")
    if level == "block":
        numbers = [index for index, part in enumerate(parts) if part.isdigit()]
        return ".".join(parts[: numbers[0] + 1]) if numbers else op.module
    return ".".join(parts[:level])


def _weighty(graph: Graph) -> frozenset[int]:
    """Positions whose result a parameter influences, trained or not."""
    parameters = {state.name for state in graph.states if state.kind is StateKind.PARAMETER}
    found: dict[str, int] = {}
    for position, op in enumerate(graph.ops):
        if not info(op.target).differentiable or not any(spec.continuous for spec in op.outputs):
            continue
        states, values = graph.reads[position]
        if any(name in parameters for name in states) or any(value.op in found for value in values):
            found[op.name] = position
    return frozenset(found.values())


@dataclass(frozen=True, kw_only=True)
class CutWidths:
    """What crosses at each cut position p = 0 .. number of operators, if everything before p is elsewhere.

    ``forward``, ``backward``: bytes per micro-batch; a value and its views count once forward. ``tensors``: gradient-carrying
    values, views not counted beside what they view. ``allowed``: no state is updated on one side and read on the other.
    """

    forward: tuple[int, ...]
    backward: tuple[int, ...]
    tensors: tuple[int, ...]
    allowed: tuple[bool, ...]

    @cached_property
    def single(self) -> tuple[int, ...]:
        """The allowed cut positions where one gradient-carrying value crosses."""
        return tuple(p for p, count in enumerate(self.tensors) if count == 1 and self.allowed[p])


def cut_widths(graph: Graph) -> CutWidths:
    """What crosses at each cut position, by the rules of ``graph.cut``."""
    size = len(graph.ops) + 1
    forward, backward, tensors, blocked = (_Steps(size) for _ in range(4))
    last, last_grad = _last_reads(graph)
    reach: dict[ValueRef, int] = {}  # up to where the value, or one that it is a view of, crosses
    for position, op in enumerate(graph.ops):
        for index, spec in enumerate(op.outputs):
            value = ValueRef(op.name, index)
            parent = view_parent(graph, value)
            covered = reach.get(parent, 0) if parent is not None else 0
            end = last.get(value, 0)
            reach[value] = max(end, covered)
            forward.add(max(position, covered) + 1, end, spec.nbytes)
            backward.add(position + 1, last_grad.get(value, 0), spec.nbytes)
            tensors.add(max(position, covered) + 1, end if value in last_grad else 0, 1)
    for start, end in _updated_spans(graph):
        blocked.add(start + 1, end, 1)
    return CutWidths(
        forward=forward.sums(),
        backward=backward.sums(),
        tensors=tensors.sums(),
        allowed=tuple(count == 0 for count in blocked.sums()),
    )


class _Steps:
    """A piecewise constant function of cut positions, built from intervals."""

    def __init__(self, size: int) -> None:
        self._changes = [0] * (size + 1)

    def add(self, first: int, last: int, amount: int) -> None:
        if first <= last:
            self._changes[first] += amount
            self._changes[last + 1] -= amount

    def sums(self) -> tuple[int, ...]:
        return tuple(accumulate(self._changes))[:-1]


def _last_reads(graph: Graph) -> tuple[dict[ValueRef, int], dict[ValueRef, int]]:
    """Value -> last position that needs it sent; the same for readers that send a gradient back."""
    known = sources(graph)
    resolved: dict[str, tuple[ValueRef, ...]] = {}  # operator that stages repeat -> what is sent for it
    last: dict[ValueRef, int] = {}
    last_grad: dict[ValueRef, int] = {}
    for position, op in enumerate(graph.ops):
        needed: dict[ValueRef, None] = {}
        for value in graph.reads[position][1]:
            maker = graph.position[value.op]
            if maker in known.repeats:
                needed.update(dict.fromkeys(resolved[value.op]))
            elif maker not in known.clones and graph.ops[maker].kind is not OpKind.PLACEHOLDER:
                needed[value] = None
            if op.name in graph.grad_ops and value in graph.needs_grad:
                last_grad[value] = position
        last.update(dict.fromkeys(needed, position))
        if position in known.repeats:
            resolved[op.name] = tuple(needed)
    return last, last_grad


def _updated_spans(graph: Graph) -> list[tuple[int, int]]:
    """For each updated state the first and the last position that touch it."""
    touched = {name: [graph.position[value.op]] for name, value in graph.state_updates}
    for position, (states, _) in enumerate(graph.reads):
        for name in states:
            if name in touched:
                touched[name].append(position)
    return [(min(positions), max(positions)) for positions in touched.values()]
