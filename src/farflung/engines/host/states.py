"""The states of a stage as NumPy arrays, which optimizers change in place, and the gradients that accumulate for them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager

from farflung.engines.base import Array
from farflung.engines.host.initialize import initial_value
from farflung.errors import GraphError
from farflung.graph.cut import SubGraph
from farflung.graph.ir import StateKind, TensorSpec, Use
from farflung.memory_budget import MemoryBudget

__all__ = ["StageStates", "check_array"]


def check_array(what: str, array: Array, spec: TensorSpec) -> None:
    """Refuse an array that is not as declared.

    Raises:
        GraphError: names the state or input, its declared and its found shape and element type.
    """
    if array.shape != spec.shape or array.dtype.name != spec.dtype:
        raise GraphError(
            f"{what} is declared {spec.dtype}{list(spec.shape)} but the given array is {array.dtype.name}{list(array.shape)}"
        )


class StageStates:
    """States by name. Runners that share them hold the same mappings.

    ``trained``: names that get a gradient here (a gradient reaches them, and the job does not freeze them).
    """

    def __init__(self, subgraph: SubGraph, trained: frozenset[str], budget: MemoryBudget, share: StageStates | None) -> None:
        """States count in ``budget`` while this object lives."""
        self._graph, self._names, self._budget = subgraph.graph, subgraph.states, budget
        self.trained = trained
        self.arrays: dict[str, Array] = {} if share is None else share.arrays
        #: Sums by use of the part of the step that is open, and of the parts that have ended; finished gradients by name.
        self._sums: dict[Use, Array] = {} if share is None else share._sums
        self._parts: dict[Use, Array] = {} if share is None else share._parts
        self._finished: dict[str, Array] = {} if share is None else share._finished
        #: Not shared: two graphs of one model may call different constants by one name.
        self._constants: dict[str, Array] = {}
        own, graph = range(subgraph.start, subgraph.stop), subgraph.graph
        self._uses = [
            use for name in self._names if name in trained for use in graph.gradient_uses[name] if graph.position[use.op] in own
        ]
        #: Other stages hold them too, perhaps to read them without a gradient only: all copies take the same updates.
        self._spread = {n for n in trained if any(graph.position[use.op] not in own for use in graph.uses[n])}
        self._several = self._spread | {name for name in trained if len(graph.gradient_uses[name]) > 1}
        for name in self._names:
            state = graph.state[name]
            if state.kind is StateKind.CONSTANT and state.data is not None:
                self._constants[name] = self._counted(initial_value(state, 0, budget))
            elif name not in self.arrays and state.data is not None:
                self.arrays[name] = self._own(self._counted(initial_value(state, 0, budget)))

    # Values

    def initialize(self, names: Sequence[str], seed: int) -> None:
        """Replay the recorded initializers of ``names`` (constants have their values already)."""
        for name in names:
            if name not in self._constants:
                self._set(self._known(name), initial_value(self._graph.state[name], seed, self._budget))

    def _counted(self, value: Array) -> Array:
        self._budget.reserve(value.nbytes, "a state")
        self._budget.release_with(self, value.nbytes)
        return value

    def load(self, states: Mapping[str, Array]) -> None:
        """Copy given values.

        Raises:
            GraphError: a state is not in this stage, or its shape or element type is another.
        """
        for name, array in states.items():
            check_array(f"state {name!r}", array, self._graph.state[self._known(name)].spec)
        for name, array in states.items():
            self._set(name, array)

    def _known(self, name: str) -> str:
        if name not in self._names:
            raise GraphError(f"state {name!r} is not in this stage, which has {len(self._names)} states")
        return name

    def _set(self, name: str, value: Array) -> None:
        if name in self._constants:
            return
        if name in self.arrays:
            self.arrays[name][...] = value
        else:
            self.arrays[name] = self._own(self._counted(value))

    def _own(self, value: Array) -> Array:
        """A copy of ``value`` that the states keep."""
        return value.copy()

    def array(self, name: str) -> Array:
        """The value of a state, which changes with the next update.

        Raises:
            GraphError: the state has no value yet.
        """
        found = self._constants.get(name, self.arrays.get(name))
        if found is None:
            raise GraphError(f"state {name!r} has no value yet: initialize or load it first")
        return found

    def replace(self, name: str, value: Array) -> None:
        """Set a state to a result of the stage (statistics of a batch normalization)."""
        self.arrays[name] = self._own(value)

    def export(self, names: Collection[str] | None, *, copy: bool) -> dict[str, Array]:
        """The states ``names``, or all parameters and persistent buffers."""
        kept = [self._graph.state[name] for name in self._names if name in self.arrays]
        if names is None:
            chosen = [state.name for state in kept if state.persistent and state.kind is not StateKind.CONSTANT]
        else:
            chosen = [state.name for state in kept if state.name in names]
        return {name: self.arrays[name].copy() if copy else self.arrays[name] for name in chosen}

    # Gradients

    def accumulate(self, use: Use, gradient: Array) -> None:
        """Add the gradient of a micro-batch; ``gradient`` stays as it is."""
        total = self._sums.get(use)
        if total is None:
            self._sums[use] = gradient
        elif total.flags.writeable:
            total += gradient
        else:
            self._sums[use] = total + gradient

    def close_part(self, *, last: bool = False) -> None:
        """Add what was accumulated since the last part to the parts before it; after the ``last`` the sum stands there."""
        for use in self._uses:
            total = self._sums.pop(use, None)
            if total is not None and use in self._parts:
                total = self._parts[use] + total
            total = self._parts.get(use) if total is None else total
            if total is not None:
                (self._sums if last else self._parts)[use] = total
        if last:
            self._parts.clear()

    def take(self) -> dict[Use, Array]:
        """The accumulated gradients, gone from here."""
        self.close_part()
        found = dict(self._parts)
        self._parts.clear()
        return found

    def put(self, gradients: Mapping[Use, Array]) -> None:
        """Set accumulated gradients.

        Raises:
            GraphError: a use is not of this stage, or its shape or element type is another.
        """
        for use, array in gradients.items():
            if use not in self._uses:
                raise GraphError(f"operator {use.op!r} of this stage trains no state {use.state!r}")
            check_array(f"gradient of {use.state!r}", array, self._graph.state[use.state].spec)
            self._sums[use] = array.copy()

    def use_gradients(self) -> dict[Use, Array]:
        """Accumulated gradients by use of parameters that other stages use too."""
        return {use: self._sums[use] for use in self._uses if use.state in self._spread and use in self._sums}

    def finish(self, remote: Mapping[Use, Array]) -> None:
        """Set each tied parameter's gradient to the sum of its uses, the last use first.

        Raises:
            GraphError: ``remote`` holds a use that the graph doesn't have.
        """
        unknown = [use for use in remote if use not in self._graph.gradient_uses.get(use.state, ())]
        if unknown:
            raise GraphError(f"no operator {unknown[0].op!r} of graph {self._graph.name!r} trains state {unknown[0].state!r}")
        for name in self._names:
            if name not in self._several:
                continue
            uses = reversed(self._graph.gradient_uses[name])
            parts = [self._sums.pop(use, remote.get(use)) for use in uses]
            found = [part for part in parts if part is not None]
            if found:
                total = found[0].copy()
                for part in found[1:]:
                    total += part
                self._finished[name] = total

    def gradients(self) -> dict[str, Array]:
        """The gradient of each parameter that has one, in the stage's order."""
        single = {use.state: self._sums[use] for use in self._uses if use.state not in self._several and use in self._sums}
        found = {name: self._finished.get(name, single.get(name)) for name in self._names if name in self.trained}
        return {name: array for name, array in found.items() if array is not None}

    def set_gradients(self, gradients: Mapping[str, Array]) -> None:
        """Set the gradients of parameters.

        Raises:
            GraphError: one is not trained here, or its gradient has another shape or element type.
        """
        for name, array in gradients.items():
            if name not in self.trained:
                raise GraphError(f"state {name!r} is not trained in this stage")
            check_array(f"gradient of {name!r}", array, self._graph.state[name].spec)
            self._finished[name] = array.copy()

    def single(self) -> frozenset[str]:
        """Trained parameters with one use, whose gradient is complete when that use's is."""
        return frozenset(self.trained - self._several)

    @contextmanager
    def updating(self, names: Collection[str] | None) -> Iterator[dict[str, Array]]:
        """The gradients of the parameters ``names`` (``None``: of all), which are gone afterwards; the states have changed."""
        found = {name: array for name, array in self.gradients().items() if names is None or name in names}
        yield found
        if names is None:
            self.clear()
            return
        for name in names:
            self._finished.pop(name, None)
        for use in [use for use in self._sums if use.state in names]:
            del self._sums[use]

    def clear(self) -> None:
        """Drop all gradients."""
        self._sums.clear()
        self._parts.clear()
        self._finished.clear()
