"""Divides a stage among the ranks of a site: which parameters have parts, and where ranks add.

The walk goes through the operators in order. A product of a whole value with a weight is divided by columns. What follows is
divided as the rules say, until a product is divided by rows. Where a rule refuses, the products by columns that lead there are
computed as a whole, and the walk goes on from the first of them. So what is not recognized is computed by all ranks.
If two operators need different parts of a weight that they share, both are computed as a whole, and the walk begins again.
Cost: O(operators), once more those between a product and the operator that refuses, and a walk for each refused sharing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from farflung.graph.cut import SubGraph
from farflung.graph.ir import Graph, Op, State, StateKind, StateRef, TensorSpec, ValueRef
from farflung.graph.tensor_parallel.operands import Divided, Operands
from farflung.graph.tensor_parallel.operator_rules import PRODUCTS, VIEWS, Product, rule_of, transposed
from farflung.graph.tensor_parallel.split import ComputedWhole, Split, SplitBySections, SplitOfView
from farflung.graph.tensor_parallel.vocabulary_rules import EMBEDDING, LOSS, PADDED, is_vocabulary, table

__all__ = ["Division", "divide"]

#: A product with fewer results than this part of its input stays whole: the first one of a low-rank adapter.
_LEAST_PART = 32

#: The kernel of grouped products needs rows of 16 bytes.
_GROUPED, _ALIGNED = "farflung.grouped_mm", 8


@dataclass(frozen=True)
class Division:
    """How ``ranks`` ranks compute a stage together.

    ``states``: the parameters of which each rank has a part. ``values``: the values of which each rank has a part. ``summed``:
    operators whose results the ranks add. ``entered``: for each operator the whole values and states that it reads and whose
    gradients the ranks add. ``gathered``: for each operator the divided parameters that it needs whole (evaluation only).
    """

    whole: SubGraph
    ranks: int
    states: Mapping[str, Split]
    values: Mapping[ValueRef, Split]
    summed: frozenset[str]
    entered: Mapping[str, tuple[ValueRef | StateRef, ...]]
    gathered: Mapping[str, tuple[str, ...]]
    args: Mapping[str, Divided]

    @cached_property
    def local(self) -> SubGraph:
        """What each rank computes: the same operators in the same places, with local shapes."""
        graph = self.whole.graph
        ops = [self._local(op) for op in graph.ops]
        whole = {name for names in self.gathered.values() for name in names}
        states = tuple(
            replace(state, spec=self.states[state.name].local(state.spec, self.ranks))
            if state.name in self.states and state.name not in whole
            else state
            for state in graph.states
        )
        return replace(self.whole, graph=replace(graph, ops=tuple(ops), states=states))

    def _local(self, op: Op) -> Op:
        found = self.args.get(op.name)
        if found is None:
            return op
        outputs = tuple(
            spec if split is None else split.local(spec, self.ranks) for spec, split in zip(op.outputs, found.splits, strict=True)
        )
        return replace(op, outputs=outputs, args=op.args if found.args is None else found.args)

    @property
    def divides(self) -> bool:
        """Whether ranks share work: looking up words alone is none."""
        return any(self.whole.graph.op(name).target != EMBEDDING for name in self.summed)

    @property
    def added_ahead(self) -> tuple[float, ...]:
        """Bytes of each sum of the forward."""
        graph = self.whole.graph
        sizes = [self.args[name].sums or (graph.op(name).outputs[0].nbytes,) for name in sorted(self.summed)]
        return tuple(float(size) for found in sizes for size in found)

    @property
    def added_back(self) -> tuple[float, ...]:
        """Bytes of each sum of the backward: one for each value that enters, however many operators read it."""
        graph = self.whole.graph
        values = {ref for refs in self.entered.values() for ref in refs if isinstance(ref, ValueRef)}
        states = [ref.name for refs in self.entered.values() for ref in refs if isinstance(ref, StateRef)]
        sizes = [graph.spec(value).nbytes for value in sorted(values, key=str)]
        return tuple(float(size) for size in (*sizes, *(graph.state[name].spec.nbytes for name in states)))


def divide(subgraph: SubGraph, ranks: int, given: Mapping[str, Split] | None = None) -> Division:
    """Return how ``ranks`` ranks divide a stage.

    ``given``: the states that are divided already, by a runner whose states are shared. No others are divided then.
    """
    walk = _Walk(subgraph, ranks, given)
    walk.run()
    states = {name: split for found in walk.found.values() for name, split in found.states.items()}
    gathered = {
        op.name: names
        for op in walk.ops
        if (names := tuple(name for name in dict.fromkeys(op.states()) if name in (given or {}) and name not in states))
    }
    return Division(
        whole=subgraph,
        ranks=ranks,
        states={**(given or {}), **states},
        values=dict(walk.splits),
        summed=frozenset(name for name, found in walk.found.items() if found.summed),
        entered={op.name: refs for op in walk.ops if (refs := tuple(walk.entering(op)))},
        gathered=gathered,
        args=dict(walk.found),
    )


class _Walk:
    """One walk through a stage."""

    def __init__(self, subgraph: SubGraph, ranks: int, given: Mapping[str, Split] | None) -> None:
        graph: Graph = subgraph.graph
        self.graph, self.ranks, self._given = graph, ranks, given
        self.ops = [graph.ops[position] for position in subgraph.positions]
        self._place = {op.name: place for place, op in enumerate(self.ops)}
        own = set(subgraph.states)
        self._updated = {name for name, _ in graph.state_updates}
        #: What must be whole: new states, and values for other stages. The worker joins the parts of results.
        self._leaving = {value for _, value in graph.state_updates}
        self._leaving |= {edge.value for edge in subgraph.sends_activations}
        self._states = {name: graph.state[name] for name in own}
        #: Operators of which a rank computes a part, and how.
        self.found: dict[str, Divided] = {}
        self.splits: dict[ValueRef, Split] = {}
        #: The products by columns that a divided value comes from.
        self._sources: dict[ValueRef, frozenset[str]] = {}
        self._whole: set[str] = set()
        self._sections: dict[str, tuple[int, ...]] = {}
        #: The views of weights that operators need divided.
        self._views: dict[str, Split] = {}

    def run(self) -> None:
        """Walk to the end, until all operators that share a state have the same parts of it."""
        self._walk()
        while differing := self._differing():
            self._whole |= differing
            self._walk()

    def _differing(self) -> set[str]:
        """What leads to operators that divide a state which another operator needs whole, or in other parts."""
        found: set[str] = set()
        for name in {name for divided in self.found.values() for name in divided.states}:
            uses = [self.ops[self._place[use.op]] for use in self.graph.uses[name] if use.op in self._place]
            dividing = [op for op in uses if op.name in self.found and name in self.found[op.name].states]
            if len(dividing) < len(uses) or len({self.found[op.name].states[name] for op in dividing}) > 1:
                found |= {source for op in dividing for source in self._leading(op)}
        return found

    def _leading(self, op: Op) -> frozenset[str]:
        """The products by columns that lead to ``op``: it is one itself if it reads no divided value."""
        return frozenset(name for value in op.values() for name in self._sources.get(value, ())) or frozenset({op.name})

    def _walk(self) -> None:
        place = 0
        while place < len(self.ops):
            op = self.ops[place]
            reads = [value for value in dict.fromkeys(op.values()) if value in self.splits]
            self._forget(op)
            try:
                found = self._divided(op, reads)
            except SplitBySections as wish:
                again = self._resectioned(reads, wish.parts)
            except SplitOfView as wish:
                again = self._viewed(op, wish)
            except ComputedWhole:
                again = set(self._leading(op))
                self._whole |= again
            else:
                if found is not None:
                    self._keep(op, found)
                place += 1
                continue
            place = min(self._place[name] for name in again)

    def _forget(self, op: Op) -> None:
        self.found.pop(op.name, None)
        for index in range(len(op.outputs)):
            self.splits.pop(ValueRef(op.name, index), None)
            self._sources.pop(ValueRef(op.name, index), None)

    def _divided(self, op: Op, reads: list[ValueRef]) -> Divided | None:
        """What a rank computes of ``op`` (None: the whole).

        Raises:
            ComputedWhole: ranks cannot divide it.
            SplitBySections: they can if a product before it has other sections.
            SplitOfView: they can if they divide a view of a weight.
        """
        found = rule_of(op)(self._operands(op)) if reads else self._begun(op)
        if found is None:
            return None
        made = [ValueRef(op.name, index) for index, split in enumerate(found.splits) if split is not None]
        if not self._leaving.isdisjoint(made) or not all(self._can_have(*item) for item in found.states.items()):
            raise ComputedWhole
        if not self._may_pad(op, found, reads) or (op.target == LOSS and not all(map(self._has_words, self._leading(op)))):
            raise ComputedWhole
        if any(not isinstance(arg, (ValueRef, StateRef)) and self._trains(arg) for arg in (*op.args, *dict(op.kwargs).values())):
            raise ComputedWhole  # only what stands in a place of its own is entered
        if any(isinstance(arg, (ValueRef, StateRef)) and self._trains(arg) for arg in dict(op.kwargs).values()):
            raise ComputedWhole
        return found

    def _operands(self, op: Op) -> Operands:
        return Operands(op, self.ranks, self._spec, self.splits.get)  # type: ignore[arg-type]

    def _may_pad(self, op: Op, found: Divided, reads: list[ValueRef]) -> bool:
        """Whether no part is padded, or ``op`` leaves padding where it is; also, whether its kernel takes the rows of a rank."""
        parts = [*found.states.values(), *(self.splits[value] for value in reads)]
        if op.target == _GROUPED and any(split.part(self.ranks) % _ALIGNED for split in parts):
            return False
        uneven = [split for split in (*found.splits, *found.states.values()) if split and not split.even(self.ranks)]
        known = {self.splits[value].sections for value in reads}
        return not uneven or (op.target in PADDED and all(not known or split.sections in known for split in uneven))

    def _has_words(self, source: str) -> bool:
        """Whether a product by columns makes the logits of a vocabulary."""
        states = self.found[source].states.items()
        return all(is_vocabulary(self.graph.state[name].spec.shape, split, self.ranks) for name, split in states)

    def _begun(self, op: Op) -> Divided | None:
        """How ranks divide an operator that reads whole values (None: they do not)."""
        if op.name in self._whole or op.no_grad:
            return None
        if op.name in self._views:
            name, split = next(op.states()), self._views[op.name]
            known = None if self._given is None else self._given.get(name)
            split = Split(split.dim, known.sections if known else self._sections.get(op.name, split.sections))
            return Divided((split,), states={name: transposed(self._operands(op), split)})
        if op.target == EMBEDDING:
            return self._by_words(op)
        where = PRODUCTS.get(op.target)
        return None if where is None or op.kwargs else self._by_columns(op, where)

    def _by_words(self, op: Op) -> Divided | None:
        """How an embedding is divided by the rows of its table."""
        name = table(op)
        if name not in self._states:
            return None
        shape = self.graph.state[name].spec.shape
        split = Split(0, (shape[0],))
        whole = not is_vocabulary(shape, split, self.ranks) or not self._can_have(name, split)
        return None if whole else Divided((None,), states={name: split}, summed=True)

    def _viewed(self, op: Op, wish: SplitOfView) -> set[str]:
        """Divide a view of a weight, or have what leads to ``op`` computed as a whole; return where to go on."""
        if self._is_weight(wish.value):
            self._views[wish.value.op] = wish.split
            return {wish.value.op}
        again = set(self._leading(op))
        self._whole |= again
        return again

    def _is_weight(self, value: ValueRef) -> bool:
        """Whether ``value`` is the transposition of a parameter that ranks may divide."""
        view = self.graph.op(value.op)
        names = list(view.states())
        mine = value.op in self._place and value.op not in self._whole and value not in self.splits
        return mine and view.target in VIEWS and len(names) == 1 and names[0] in self._states and not list(view.values())

    def _by_columns(self, op: Op, where: Product) -> Divided | None:
        """How a product of a whole value is divided by the columns of its weight (None: it is not).

        Raises:
            SplitOfView: its weight is a view.
        """
        weight = op.args[where.weight]
        if isinstance(weight, ValueRef) and where.count == 3 and self._is_weight(weight):
            split = Split(where.out, (self.graph.spec(weight).shape[where.out],))
            if not split.even(self.ranks):
                return None
            raise SplitOfView(weight, split)
        bias = op.args[where.bias] if 0 <= where.bias < len(op.args) else None
        if not isinstance(weight, StateRef) or weight.name not in self._states or not isinstance(bias, StateRef | None):
            return None
        shape = self.graph.state[weight.name].spec.shape
        if len(shape) != where.count or shape[where.out] * _LEAST_PART < shape[where.inner]:
            return None
        known = None if self._given is None else self._given.get(weight.name)
        if known is not None and known.dim != where.out:
            return None
        sections = known.sections if known else self._sections.get(op.name, (shape[where.out],))
        split = Split(where.out, sections)
        if not split.even(self.ranks) and (len(sections) > 1 or not is_vocabulary(shape, split, self.ranks)):
            return None
        states = {weight.name: split}
        if bias is not None:
            states[bias.name] = Split(0, sections)
            if self.graph.state[bias.name].spec.shape != (shape[where.out],):
                return None
        last = len(op.outputs[0].shape) - 1
        return Divided((Split(last, sections),), states=states) if all(self._can_have(*item) for item in states.items()) else None

    def _can_have(self, name: str, split: Split) -> bool:
        """Whether ranks may have parts of a state, whose value must come from an initializer or a file."""
        state: State | None = self._states.get(name)
        if state is None or state.kind is not StateKind.PARAMETER or state.data is not None or name in self._updated:
            return False
        return self._given is None or self._given.get(name) == split

    def _resectioned(self, reads: list[ValueRef], parts: tuple[int, ...]) -> set[str]:
        """Give the products that lead to ``reads`` other sections, or have them computed as a whole; return them."""
        again = {name for value in reads for name in self._sources[value]}
        for name in again:
            made, scale = self.found[name].splits[0], 0
            if made is not None and made.size % sum(parts) == 0:
                scale = made.size // sum(parts)
            sections = tuple(part * scale for part in parts)
            if (
                self._sections.get(name) == sections
                or self._given is not None
                or not scale
                or any(size % self.ranks for size in sections)
            ):
                self._whole.add(name)
            self._sections[name] = sections
        return again

    def _keep(self, op: Op, found: Divided) -> None:
        self.found[op.name] = found
        sources = self._leading(op)
        for index, split in enumerate(found.splits):
            if split is not None:
                value = ValueRef(op.name, index)
                self.splits[value], self._sources[value] = split, sources

    def _spec(self, ref: ValueRef | StateRef) -> TensorSpec:
        return self.graph.state[ref.name].spec if isinstance(ref, StateRef) else self.graph.spec(ref)

    # -- gradients --------------------------------------------------------------------------------------------------------

    def _trains(self, arg: object) -> bool:
        """Whether a gradient flows to a whole value or state in ``arg``."""
        if isinstance(arg, tuple):
            return any(self._trains(item) for item in arg)
        if isinstance(arg, StateRef):
            return self.graph.state[arg.name].trainable
        return isinstance(arg, ValueRef) and arg in self.graph.needs_grad and arg not in self.splits

    def entering(self, op: Op) -> Iterator[ValueRef | StateRef]:
        """What ``op`` reads as a whole, and whose gradient is the sum of what the ranks have."""
        found = self.found.get(op.name)
        if found is None or found.summed or op.no_grad or op.name not in self.graph.grad_ops:
            return
        for ref in dict.fromkeys(op.args):
            if isinstance(ref, StateRef) and ref.name in found.states:
                continue
            if isinstance(ref, (ValueRef, StateRef)) and self._trains(ref):
                yield ref
