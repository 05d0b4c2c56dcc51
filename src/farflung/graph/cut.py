"""Cutting an OP-DAG into sub-graphs (FusionLLM section 3.3; SPEC 1.1).

A stage owns a run of consecutive positions, so any map of operators to devices is a sequence of stages (a device may hold
several). From the edges alone follow the four sets of a sub-graph: activations it requires and sends, gradients it requires
and sends.

What a stage gets from where:

- A value that carries a gradient is sent as it is; its gradient comes back for each reading stage.
- A gradient-free operator that depends on no placeholder, no trainable parameter and no updated state gives the same
  result everywhere: each stage that needs it repeats it (a *clone*), and what it reads, recursively.
- Another gradient-free value is sent, or a smaller one that it can be made from by cheap operators, which the reading stage
  then repeats (a mask is sent before it is expanded). The choice does not depend on the bounds.
- A placeholder is never sent, nor a view of one: each stage that reads it loads the placeholder.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from farflung.errors import GraphError, InputError
from farflung.graph.ir import Graph, OpKind, TensorSpec, ValueRef
from farflung.graph.opset import info

__all__ = ["Cutter", "Edge", "Sources", "SubGraph", "cut", "runs", "sources", "view_parent"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """A value that crosses from stage ``source`` to stage ``target``.

    ``gradient``: a gradient comes back (named by the pair value, reading stage). ``alias_of``: the value is a view chain of
    that other value, which crosses too, so that its own forward bytes need not be sent: ``views`` are the positions of the
    view operators that the receiver replays (without gradient) to get it.
    """

    value: ValueRef
    source: int
    target: int
    spec: TensorSpec
    gradient: bool
    alias_of: ValueRef | None = None
    views: tuple[int, ...] = ()

    @property
    def forward_bytes(self) -> int:
        """Dense bytes per micro-batch, forward."""
        return 0 if self.alias_of is not None else self.spec.nbytes

    @property
    def backward_bytes(self) -> int:
        """Dense bytes per micro-batch, backward."""
        return self.spec.nbytes if self.gradient else 0


@dataclass(frozen=True, kw_only=True)
class SubGraph:
    """What one stage runs.

    ``start``/``stop``: the positions that it owns. ``positions``: all that it executes, ascending: the owned ones and the
    clones of gradient-free operators that cost less to repeat than to receive. ``states``: the states it reads, in the
    graph's order, and those that it updates; stage 0 also keeps those that nobody reads, so that a checkpoint is whole.
    ``placeholders``: the inputs that it loads itself, on its own machine.
    ``requires_activations`` ascends by the value's position, ``sends_activations`` by target and then position.
    """

    graph: Graph
    stage: int
    start: int
    stop: int
    positions: tuple[int, ...]
    states: tuple[str, ...]
    placeholders: tuple[str, ...]
    requires_activations: tuple[Edge, ...]
    sends_activations: tuple[Edge, ...]

    @cached_property
    def takes(self) -> tuple[Edge, ...]:
        """Required activations that are sent as they are, not as a view of another one."""
        return tuple(edge for edge in self.requires_activations if edge.alias_of is None)

    @cached_property
    def gives(self) -> tuple[Edge, ...]:
        """The same of those that this stage sends."""
        return tuple(edge for edge in self.sends_activations if edge.alias_of is None)

    @property
    def requires_gradients(self) -> tuple[Edge, ...]:
        """Edges whose gradients come back here."""
        return tuple(edge for edge in self.sends_activations if edge.gradient)

    @property
    def sends_gradients(self) -> tuple[Edge, ...]:
        """Edges whose gradients this stage makes."""
        return tuple(edge for edge in self.requires_activations if edge.gradient)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """How a stage gets the values that it does not make (the same for all bounds).

    ``clones``: positions of gradient-free operators that any stage may repeat at no price. ``repeats``: positions that a
    stage repeats because what they read is smaller than what they make. All other values are sent.
    """

    clones: frozenset[int]
    repeats: frozenset[int]


def runs(graph: Graph, assignment: Mapping[str, str] | Sequence[str]) -> list[tuple[int, int, str]]:
    """Any map of operators to devices as runs (start, stop, device) that tile the positions.

    ``assignment``: a device for each position, or operator name -> device, where placeholders may be left out (they go
    where the next operator goes).

    Raises:
        InputError: an operator without a device, or a name that the graph does not have.
    """
    devices = _by_position(graph, assignment) if isinstance(assignment, Mapping) else list(assignment)
    if len(devices) != len(graph.ops):
        raise InputError(f"assignment has {len(devices)} devices, graph {graph.name!r} has {len(graph.ops)} operators")
    found: list[tuple[int, int, str]] = []
    for position, device in enumerate(devices):
        if found and found[-1][2] == device:
            found[-1] = (found[-1][0], position + 1, device)
        else:
            found.append((position, position + 1, device))
    return found


def _by_position(graph: Graph, assignment: Mapping[str, str]) -> list[str]:
    unknown = [name for name in assignment if name not in graph.position]
    if unknown:
        raise InputError(f"assignment names the operator {unknown[0]!r}, which graph {graph.name!r} does not have")
    devices: list[str] = []
    following: str | None = None
    for op in reversed(graph.ops):
        device = assignment.get(op.name, following if op.kind is OpKind.PLACEHOLDER else None)
        if device is None:
            raise InputError(f"assignment gives no device to the operator {op.name!r}")
        following = device
        devices.append(device)
    return devices[::-1]


def view_parent(graph: Graph, value: ValueRef) -> ValueRef | None:
    """The value that ``value`` is a view of; None when it is no view of a single value."""
    op = graph.op(value.op)
    if not info(op.target).view or not op.args or not isinstance(op.args[0], ValueRef):
        return None
    return op.args[0] if set(op.values()) == {op.args[0]} else None


def sources(graph: Graph) -> Sources:
    """Which operators stages repeat, see the head of this module. Costs O(operators + edges)."""
    updating = {graph.position[value.op] for _, value in graph.state_updates}
    fixed = {state.name for state in graph.states if not state.trainable} - {name for name, _ in graph.state_updates}
    clones: set[int] = set()
    repeats: set[int] = set()
    price: dict[ValueRef, int] = {}  # bytes to send so that a stage has the value
    for position, op in enumerate(graph.ops):
        values = [ValueRef(op.name, index) for index in range(len(op.outputs))]
        sizes = [spec.nbytes for spec in op.outputs]
        states, read = graph.reads[position]
        reads = tuple(dict.fromkeys(read))
        pure = position not in updating and all(name in fixed for name in states)
        if op.kind is OpKind.PLACEHOLDER:
            sizes = [_NEVER]
        elif not pure or any(value in graph.needs_grad for value in values):
            pass
        elif all(graph.position[value.op] in clones for value in reads):
            clones.add(position)
            sizes = [0] * len(values)
        elif info(op.target).view and all(price[value] == _NEVER for value in reads):
            repeats.add(position)  # the data itself in another form: what is computed from it is sent, not this
            sizes = [_NEVER] * len(values)
        elif info(op.target).cheap and sum(price[value] for value in reads) < min(sizes):
            repeats.add(position)
            sizes = [sum(price[value] for value in reads)] * len(values)
        price.update(zip(values, sizes, strict=True))
    return Sources(clones=frozenset(clones), repeats=frozenset(repeats))


#: No sum of sizes comes near; a placeholder or a view of one.
_NEVER = 1 << 80


def cut(graph: Graph, bounds: Sequence[tuple[int, int]]) -> tuple[SubGraph, ...]:
    """Sub-graphs of the stages that own the runs ``bounds`` of positions; a ``Cutter`` is faster for many cuts of one graph.

    Costs O(operators + edges + what crosses).

    Raises:
        GraphError: the runs do not tile the positions in order, or a state is read in one stage and updated in another.
    """
    return Cutter(graph).cut(bounds)


#: Runs of positions whose demands a cutter keeps.
_KEPT = 4096


class Cutter:
    """Cuts of one graph: what no bound changes is computed once, and what a run of positions demands is kept."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._sources = sources(graph)
        self._order = {state.name: index for index, state in enumerate(graph.states)}
        self._updated = [(name, graph.position[value.op]) for name, value in graph.state_updates]
        names = {name for name, _ in self._updated}
        self._readers = [(at, name) for at, (states, _) in enumerate(graph.reads) if names for name in states if name in names]
        self._demands: dict[tuple[int, int], _Demand] = {}

    def cut(self, bounds: Sequence[tuple[int, int]]) -> tuple[SubGraph, ...]:
        """See ``cut``. Costs O(operators of runs that were not cut before + what crosses)."""
        graph, order = self.graph, self._order
        _check_tiling(graph, bounds)
        homes = [stage for stage, (start, stop) in enumerate(bounds) for _ in range(start, stop)]
        self._check_updates(homes)
        demands = [self._demand(start, stop) for start, stop in bounds]
        arriving = [tuple(_edges(graph, demand, homes, stage)) for stage, demand in enumerate(demands)]
        leaving: list[list[Edge]] = [[] for _ in bounds]
        for edges in arriving:
            for edge in edges:
                leaving[edge.source].append(edge)
        kept = [set(demand.states) for demand in demands]
        for name, position in self._updated:
            kept[homes[position]].add(name)
        kept[0] |= order.keys() - set().union(*kept)
        return tuple(
            SubGraph(
                graph=graph,
                stage=stage,
                start=demand.start,
                stop=demand.stop,
                positions=demand.ordered,
                states=tuple(sorted(kept[stage], key=order.__getitem__)),
                placeholders=tuple(graph.ops[position].name for position in sorted(demand.loaded)),
                requires_activations=edges,
                sends_activations=tuple(leaving[stage]),
            )
            for stage, (demand, edges) in enumerate(zip(demands, arriving, strict=True))
        )

    def _demand(self, start: int, stop: int) -> _Demand:
        found = self._demands.get((start, stop))
        if found is None:
            if len(self._demands) >= _KEPT:
                self._demands.clear()
            found = self._demands[start, stop] = _Demand(self.graph, self._sources, start, stop)
        return found

    def _check_updates(self, homes: Sequence[int]) -> None:
        made = {name: homes[position] for name, position in self._updated}
        for position, name in self._readers:
            if made[name] != homes[position]:
                reader = self.graph.ops[position].name
                raise GraphError(
                    f"state {name!r} is read by {reader!r} in stage {homes[position]} and updated in stage {made[name]}: "
                    "keep both in one stage"
                )


def _check_tiling(graph: Graph, bounds: Sequence[tuple[int, int]]) -> None:
    expected = 0
    for stage, (start, stop) in enumerate(bounds):
        if start != expected or stop <= start:
            raise GraphError(f"stage {stage} has positions {start} to {stop}: it must start at {expected} and not be empty")
        expected = stop
    if expected != len(graph.ops):
        raise GraphError(f"the stages end at position {expected}, graph {graph.name!r} has {len(graph.ops)} operators")


class _Demand:
    """What one stage executes, loads and must receive."""

    def __init__(self, graph: Graph, known: Sources, start: int, stop: int) -> None:
        self.start, self.stop = start, stop
        self.positions: set[int] = set()
        self.states: set[str] = set()
        self.loaded: set[int] = set()
        self.received: dict[ValueRef, bool] = {}  # value -> whether a gradient goes back
        self._graph = graph
        self._local = known.clones | known.repeats
        results = {value.op for _, value in (*graph.outputs, *graph.state_updates)}
        pending: list[int] = []
        for position in range(start, stop):
            op = graph.ops[position]
            if op.kind is not OpKind.PLACEHOLDER:
                pending.extend(self._execute(position))
            elif op.name in results:
                self._load(position)
        while pending:
            pending.extend(self._execute(pending.pop()))
        self.ordered = tuple(sorted(self.positions))

    def _load(self, position: int) -> None:
        self.loaded.add(position)
        self.positions.add(position)

    def _execute(self, position: int) -> Iterator[int]:
        """Add one operator; gives the positions that must be executed here because of it."""
        graph = self._graph
        op = graph.ops[position]
        self.positions.add(position)
        states, values = graph.reads[position]
        self.states.update(states)
        for value in values:
            maker = graph.position[value.op]
            if graph.ops[maker].kind is OpKind.PLACEHOLDER:
                self._load(maker)
            elif self.start <= maker < self.stop or maker in self.positions:
                continue
            elif maker in self._local:
                yield maker
            else:
                back = op.name in graph.grad_ops and value in graph.needs_grad
                self.received[value] = self.received.get(value, False) or back


def _edges(graph: Graph, demand: _Demand, homes: Sequence[int], stage: int) -> Iterator[Edge]:
    """The edges into one stage, ascending by the position of what they carry."""
    ordered = sorted(demand.received, key=lambda value: (graph.position[value.op], value.index))
    for value in ordered:
        alias, views = _alias(graph, value, demand.received)
        yield Edge(
            value=value,
            source=homes[graph.position[value.op]],
            target=stage,
            spec=graph.spec(value),
            gradient=demand.received[value],
            alias_of=alias,
            views=views,
        )


def _alias(graph: Graph, value: ValueRef, received: Iterable[ValueRef]) -> tuple[ValueRef | None, tuple[int, ...]]:
    """The farthest received value that ``value`` is a chain of views of, and the chain's positions."""
    chain: list[int] = []
    found: tuple[ValueRef | None, tuple[int, ...]] = (None, ())
    current = value
    while (parent := view_parent(graph, current)) is not None:
        chain.append(graph.position[current.op])
        current = parent
        if current in received:
            found = (current, tuple(reversed(chain)))
    return found
