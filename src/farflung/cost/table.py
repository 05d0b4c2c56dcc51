"""Everything that estimates need of a graph, computed once: arrays over positions, and entries for what is shared.

Sums over a stage ``[start, stop)`` of additive quantities come from prefix sums. Memory that operators share (a parameter
with several uses, a value that several operators keep) is a list of *entries*: entry e stands at position ``at[e]``, and its
bytes count in a stage that holds ``at[e]`` but not ``before[e]``, the position of the previous entry of the same memory.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from farflung.cost.flops import backward_flops, forward_flops, weight_flops
from farflung.cost.layout import Layouts
from farflung.cost.operands import Operands
from farflung.cost.saved_tensors import saved_for_backward
from farflung.graph.ir import Graph, OpKind, StateKind, ValueRef
from farflung.graph.modules import cut_widths
from farflung.graph.opset import OpClass, info

__all__ = ["Entries", "OpCost", "op_costs"]

Vector = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, eq=False)
class Entries:
    """Shared memory by position: arrays of one length, ascending in ``at``.

    ``made``: the position that made the memory (-1: every stage loads its own); ``size``: bytes; ``name``: whose memory it is.
    """

    at: Integers
    before: Integers
    made: Integers
    size: Vector
    name: tuple[str, ...]

    def total(self, start: int, stop: int) -> float:
        """Bytes of the stage [start, stop), memory made before ``start`` left out, each piece counted once."""
        window = slice(*np.searchsorted(self.at, (start, stop)))
        counted = (self.before[window] < start) & ((self.made[window] < 0) | (self.made[window] >= start))
        return float(self.size[window][counted].sum())

    def totals(self, start: int, stops: Integers) -> Vector:
        """``total(start, stop)`` for every stop (ascending)."""
        first = int(np.searchsorted(self.at, start))
        made = self.made[first:]
        counted = (self.before[first:] < start) & ((made < 0) | (made >= start))
        sums = np.concatenate(([0.0], np.cumsum(np.where(counted, self.size[first:], 0.0))))
        found: Vector = sums[np.searchsorted(self.at[first:], stops)]
        return found


@dataclass(frozen=True, kw_only=True, eq=False)
class OpCost:
    """The costs of a graph's operators for one kind of device; arrays have one element per position.

    ``forward``, ``backward``: FLOPs of one micro-batch, ``weight``: those of ``backward`` that make gradients of parameters;
    ``forward_calls``, ``backward_calls``: how many operators run for them (1 or 0 each).
    ``convolution``: 1 for convolutions, 0 for other operators. ``workspace``: bytes alive only while the operator runs.
    ``parameters``: entries of parameters (bytes), ``trainable``: of trainable ones, ``buffers``: of buffers and constants;
    ``saved``: entries of memory kept for backward per micro-batch; ``uses``: entries of every use of tied parameters;
    ``tied``: bytes of tied parameters' uses before each position (length n + 1).
    ``crossing_forward[b]``, ``crossing_backward[b]``: dense bytes per micro-batch that a cut between positions b - 1 and b
    sends forward and backward (length n + 1); ``allowed[b]``: whether it may stand there. ``part``: of the samples that the graph
    was captured for.
    """

    forward: Vector
    backward: Vector
    weight: Vector
    forward_calls: Vector
    backward_calls: Vector
    convolution: Vector
    workspace: Vector
    parameters: Entries
    trainable: Entries
    buffers: Entries
    uses: Entries
    tied: Vector
    saved: Entries
    crossing_forward: Vector
    crossing_backward: Vector
    allowed: npt.NDArray[np.bool_]
    part: float = 1.0

    def scaled(self, part: float) -> OpCost:
        """The table for micro-batches of ``part`` of the samples: FLOPs, activations and what crosses are in proportion.

        Workspace stays, since a part of it (gradients of parameters) has its size from the parameters.
        """
        names = ("forward", "backward", "weight", "crossing_forward", "crossing_backward")
        arrays: dict[str, Any] = {name: getattr(self, name) * part for name in names}
        return replace(self, saved=replace(self.saved, size=self.saved.size * part), part=self.part * part, **arrays)

    @cached_property
    def forward_sum(self) -> Vector:
        """Prefix sums of ``forward``, length n + 1."""
        return np.concatenate(([0.0], np.cumsum(self.forward)))

    @cached_property
    def backward_sum(self) -> Vector:
        """Prefix sums of ``backward``, length n + 1."""
        return np.concatenate(([0.0], np.cumsum(self.backward)))

    @cached_property
    def forward_convolution_sum(self) -> Vector:
        """Prefix sums of the FLOPs of convolutions in ``forward``, length n + 1."""
        return np.concatenate(([0.0], np.cumsum(self.forward * self.convolution)))

    @cached_property
    def backward_convolution_sum(self) -> Vector:
        """Prefix sums of the FLOPs of convolutions in ``backward``, length n + 1."""
        return np.concatenate(([0.0], np.cumsum(self.backward * self.convolution)))

    @cached_property
    def forward_calls_sum(self) -> Vector:
        """Prefix sums of ``forward_calls``, length n + 1."""
        return np.concatenate(([0.0], np.cumsum(self.forward_calls)))

    @cached_property
    def backward_calls_sum(self) -> Vector:
        """Prefix sums of ``backward_calls``, length n + 1."""
        return np.concatenate(([0.0], np.cumsum(self.backward_calls)))


def op_costs(graph: Graph, device_kind: str = "cpu") -> OpCost:
    """The table of a graph. Cost: O(operators); about 20 microseconds each."""
    layouts = Layouts(graph)
    n = len(graph.ops)
    forward, backward, weight, workspace, calls, back, convolution = (np.zeros(n) for _ in range(7))
    saved = _Collector()
    states = {key: _Collector() for key in ("parameters", "trainable", "buffers", "uses")}
    for position, op in enumerate(graph.ops):
        operands = Operands.of(graph, op)
        forward[position] = forward_flops(operands)
        backward[position] = backward_flops(operands, forward[position])
        weight[position] = weight_flops(operands, forward[position])
        workspace[position] = _workspace(operands)
        convolution[position] = info(op.target).op_class is OpClass.CONVOLUTION
        calls[position] = op.kind is not OpKind.PLACEHOLDER
        back[position] = calls[position] and operands.backward
        refs, own = saved_for_backward(operands, device_kind)
        for root in dict.fromkeys(layouts.root(ref) for ref in refs):
            if isinstance(root, ValueRef):
                made = -1 if graph.op(root.op).kind is OpKind.PLACEHOLDER else graph.position[root.op]
                saved.add(position, str(root), graph.spec(root).nbytes, made)
        if own:
            saved.add(position, f"{op.name}/own", own, position)
        _add_states(graph, position, states)
    widths = cut_widths(graph)
    uses = states["uses"].entries()
    tied = np.zeros(n + 1)
    np.add.at(tied, uses.at + 1, uses.size)
    return OpCost(
        forward=forward,
        backward=backward,
        weight=weight,
        forward_calls=calls,
        backward_calls=back,
        convolution=convolution,
        workspace=workspace,
        saved=saved.entries(),
        tied=np.cumsum(tied),
        crossing_forward=np.array(widths.forward, dtype=np.float64),
        crossing_backward=np.array(widths.backward, dtype=np.float64),
        allowed=np.array(widths.allowed, dtype=np.bool_),
        parameters=states["parameters"].entries(),
        trainable=states["trainable"].entries(),
        buffers=states["buffers"].entries(),
        uses=uses,
    )


class _Collector:
    """Entries under construction."""

    def __init__(self) -> None:
        self._rows: list[tuple[int, int, int, float, str]] = []
        self._last: dict[str, int] = {}

    def add(self, at: int, name: str, size: float, made: int = -1) -> None:
        self._rows.append((at, self._last.get(name, -1), made, size, name))
        self._last[name] = at

    def entries(self) -> Entries:
        rows = self._rows
        return Entries(
            at=np.array([row[0] for row in rows], dtype=np.int64),
            before=np.array([row[1] for row in rows], dtype=np.int64),
            made=np.array([row[2] for row in rows], dtype=np.int64),
            size=np.array([row[3] for row in rows], dtype=np.float64),
            name=tuple(row[4] for row in rows),
        )


def _add_states(graph: Graph, position: int, collectors: dict[str, _Collector]) -> None:
    for name in dict.fromkeys(graph.reads[position][0]):
        state = graph.state[name]
        if state.kind is not StateKind.PARAMETER:
            collectors["buffers"].add(position, name, state.spec.nbytes)
            continue
        collectors["parameters"].add(position, name, state.spec.nbytes)
        if state.trainable:
            collectors["trainable"].add(position, name, state.spec.nbytes)
            if len(graph.uses[name]) > 1:  # each use accumulates apart (docs/architecture.md, invariant 1)
                collectors["uses"].add(position, f"{name}@{position}", state.spec.nbytes)


def _workspace(operands: Operands) -> float:
    """Results and gradients that live only while the operator runs: the larger of forward and backward."""
    if info(operands.op.target).op_class in (OpClass.VIEW, OpClass.INPUT):
        return 0.0
    made = float(sum(spec.nbytes for spec in operands.op.outputs))
    if not operands.backward:
        return made
    gradients = sum(operands.spec_of(ref).nbytes for ref in dict.fromkeys(operands.refs()) if operands.needs(ref))
    return made + gradients
