"""What planners and judges of one graph share: its cost tables by kind of device, its cutter, and sums over stages."""

from __future__ import annotations

from dataclasses import dataclass
from weakref import WeakValueDictionary

from farflung.cost import OpCost, op_costs
from farflung.graph.cut import Cutter, SubGraph
from farflung.graph.ir import Graph
from farflung.job.spec import OptimizerSpec
from farflung.plan.buckets import served_bytes

__all__ = ["CostTables", "StageSums"]

#: Sums that are kept of each kind.
_KEPT = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSums:
    """Of what a stage executes for a micro-batch: FLOPs, operators that run, FLOPs of gradients of parameters; of what it holds:
    elements of parameters and of what is trained, tensors that are trained; ``modules``: the first and the last path.
    ``*_convolution``: the part of these FLOPs that convolutions have.
    """

    forward: float
    backward: float
    forward_calls: float
    backward_calls: float
    weight: float
    forward_convolution: float
    backward_convolution: float
    weight_convolution: float
    parameters: int
    trained: int
    trained_tensors: int
    modules: str


class CostTables:
    """The cost tables of one graph by kind of device, computed when asked for; ``cutter`` cuts it.

    ``part``: micro-batches have this part of the samples that the graph was captured for.
    """

    def __init__(self, graph: Graph, whole: CostTables | None = None, part: float = 1.0) -> None:
        self.graph, self.part = graph, part
        self._whole = whole
        self.cutter: Cutter = Cutter(graph) if whole is None else whole.cutter
        self._tables: dict[str, OpCost] = {}
        self._scaled: dict[float, CostTables] = {}
        self._sums: dict[tuple[str, int, int], StageSums] = {}
        self._served: dict[tuple[int, int, int], tuple[int, ...]] = {}

    def scaled(self, part: float) -> CostTables:
        """Those for micro-batches of ``part`` of the samples: FLOPs, activations and messages are in proportion."""
        if self._whole is not None:
            return self._whole.scaled(part)
        if part not in self._scaled:
            self._scaled[part] = self if part == 1.0 else CostTables(self.graph, self, part)
        return self._scaled[part]

    @classmethod
    def of(cls, graph: Graph) -> CostTables:
        """Those of ``graph`` that someone still holds, or new ones: planners and judges of one graph share them."""
        found = _HELD.get(id(graph))
        if found is None or found.graph is not graph:
            _HELD[id(graph)] = found = cls(graph)
        return found

    def table(self, kind: str) -> OpCost:
        """The table for devices of ``kind`` (``cpu`` or ``cuda``)."""
        if kind not in self._tables:
            whole = self._whole
            self._tables[kind] = op_costs(self.graph, kind) if whole is None else whole.table(kind).scaled(self.part)
        return self._tables[kind]

    def sums(self, kind: str, piece: SubGraph) -> StageSums:
        """What ``piece`` executes on devices of ``kind`` (clones included) and holds."""
        key = (kind, piece.start, piece.stop)
        found = self._sums.get(key)
        if found is None:
            if len(self._sums) >= _KEPT:
                self._sums.clear()
            found = self._sums[key] = _sums(self.table(kind), piece)
        return found

    def served(self, piece: SubGraph, optimizer: OptimizerSpec, replicas: int) -> tuple[int, ...]:
        """Bytes of one sum that each of so many replicas of ``piece`` serves (``buckets.served_bytes``)."""
        if optimizer.groups:  # some of them may be frozen
            return tuple(served_bytes(self.graph, piece, optimizer, replicas))
        if self._whole is not None:
            return self._whole.served(piece, optimizer, replicas)
        key = (piece.start, piece.stop, replicas)
        found = self._served.get(key)
        if found is None:
            if len(self._served) >= _KEPT:
                self._served.clear()
            found = self._served[key] = tuple(served_bytes(self.graph, piece, optimizer, replicas))
        return found


def _sums(cost: OpCost, piece: SubGraph) -> StageSums:
    graph, start, stop = piece.graph, piece.start, piece.stop
    positions = list(piece.positions)
    owned = [graph.state[name] for name in piece.states]
    trained = [state.spec.numel for state in owned if state.name in graph.trained]
    paths = [op.module for op in graph.ops[start:stop] if op.module]
    return StageSums(
        forward=float(cost.forward[positions].sum()),
        backward=float(cost.backward_sum[stop] - cost.backward_sum[start]),
        forward_calls=float(cost.forward_calls[positions].sum()),
        backward_calls=float(cost.backward_calls_sum[stop] - cost.backward_calls_sum[start]),
        weight=float(cost.weight[start:stop].sum()),
        forward_convolution=float((cost.forward * cost.convolution)[positions].sum()),
        backward_convolution=float(cost.backward_convolution_sum[stop] - cost.backward_convolution_sum[start]),
        weight_convolution=float((cost.weight * cost.convolution)[start:stop].sum()),
        parameters=sum(state.spec.numel for state in owned if state.kind == "parameter"),
        trained=sum(trained),
        trained_tensors=len(trained),
        modules=f"{paths[0]} .. {paths[-1]}" if paths else "",
    )


#: By the identity of the graph, which each of them keeps alive.
_HELD: WeakValueDictionary[int, CostTables] = WeakValueDictionary()
