"""The tensors that a stage owns: parameters, buffers and constants.

A parameter with several uses, or one that another stage holds too, has one leaf per use.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch

from farflung.engines.base import Array
from farflung.engines.torch.arrays import check_array, from_array, to_array
from farflung.engines.torch.initialize import initial_value
from farflung.errors import GraphError
from farflung.graph.cut import SubGraph
from farflung.graph.ir import StateKind, Use
from farflung.memory_budget import MemoryBudget

__all__ = ["StageStates"]


class StageStates:
    """States by name. Runners that share them hold the same ``tensors`` mapping.

    ``trained``: names that get a gradient here (a gradient reaches them, and the job does not freeze them).
    """

    def __init__(
        self,
        subgraph: SubGraph,
        device: torch.device,
        trained: frozenset[str],
        budget: MemoryBudget,
        share: StageStates | None,
    ) -> None:
        """On a CPU, states count in ``budget`` while this object lives. First values are made on the CPU in any case."""
        self.tensors: dict[str, torch.Tensor] = {} if share is None else share.tensors
        self.trained = trained
        self._graph = subgraph.graph
        self._names = subgraph.states
        self._device, self._budget = device, budget
        #: Shared too: micro-batches of another size add to the same gradients.
        self._leaves: dict[Use, torch.Tensor] = {} if share is None else share._leaves
        #: Sums of the parts of the step that have ended, by use.
        self._parts: dict[Use, torch.Tensor] = {} if share is None else share._parts
        #: Not shared: two graphs of one model may call different constants by one name.
        self._constants: dict[str, torch.Tensor] = {}
        own = self._own = range(subgraph.start, subgraph.stop)
        graph = self._graph
        #: Other stages hold them too, perhaps to read them without a gradient only: all copies take the same updates.
        self._spread = {n for n in trained if any(graph.position[use.op] not in own for use in graph.uses[n])}
        self._several = self._spread | {name for name in trained if len(graph.gradient_uses[name]) > 1}
        for name in self._names:
            state = self._graph.state[name]
            if state.kind is StateKind.CONSTANT and state.data is not None:
                self._constants[name] = self._own_copy(name, initial_value(state, 0, budget))
            elif name not in self.tensors and state.data is not None:
                self._set(name, initial_value(state, 0, budget))

    def initialize(self, names: Sequence[str], seed: int) -> None:
        """Replay the recorded initializers of ``names`` (constants have their values already)."""
        for name in names:
            if name not in self._constants:
                self._set(self._known(name), initial_value(self._graph.state[name], seed, self._budget))

    def load(self, states: Mapping[str, Array]) -> None:
        """Copy given values.

        Raises:
            GraphError: a state is not in this stage, or its shape or element type is another.
        """
        for name, array in states.items():
            check_array(f"state {name!r}", array, self._graph.state[self._known(name)].spec)
        for name, array in states.items():
            self._set(name, from_array(array, torch.device("cpu")))

    def _known(self, name: str) -> str:
        if name not in self._names:
            raise GraphError(f"state {name!r} is not in this stage, which has {len(self._names)} states")
        return name

    def _set(self, name: str, value: torch.Tensor) -> None:
        present = self.tensors.get(name)
        if present is not None:
            with torch.no_grad():
                present.copy_(value)
            return
        tensor = self._own_copy(name, value)
        self.tensors[name] = tensor.requires_grad_() if name in self.trained else tensor

    def _own_copy(self, name: str, value: torch.Tensor) -> torch.Tensor:
        del name
        if self._device.type == "cpu":
            self._budget.reserve(value.nbytes, "a state")
            self._budget.release_with(self, value.nbytes)
        return value.to(self._device)

    def tensor(self, name: str) -> torch.Tensor:
        """The tensor of a state.

        Raises:
            GraphError: the state has no value yet.
        """
        tensor = self._constants.get(name, self.tensors.get(name))
        if tensor is None:
            raise GraphError(f"state {name!r} has no value yet: initialize or load it first")
        return tensor

    def leaf(self, use: Use) -> torch.Tensor:
        """What the operator of ``use`` reads.

        Raises:
            GraphError: the state has no value yet.
        """
        tensor = self.tensor(use.state)
        if use.state not in self._several or use.op not in self._graph.grad_ops:
            return tensor
        leaf = self._leaves.get(use)
        if leaf is None:
            leaf = self._leaves[use] = tensor.detach().requires_grad_()
        return leaf

    def addresses(self) -> frozenset[int]:
        """Where the states' memory starts: arrays there must be copied before they are handed out."""
        held = [*self._constants.values(), *(self.tensors[name] for name in self._names if name in self.tensors)]
        return frozenset(tensor.untyped_storage().data_ptr() for tensor in held)

    def _accumulators(self) -> Iterator[tuple[Use, torch.Tensor]]:
        """Each use here of a trained parameter, and the tensor that its gradient accumulates in."""
        for name in self._names:
            if name in self.trained and name in self.tensors:
                for use in self._graph.gradient_uses[name]:
                    if self._graph.position[use.op] in self._own:
                        yield use, self.leaf(use)

    def close_part(self, *, last: bool = False) -> None:
        """Add what was accumulated since the last part to the parts before it; after the ``last`` the sum stands there."""
        for use, leaf in self._accumulators():
            total, leaf.grad = leaf.grad, None
            if total is not None and use in self._parts:
                total = self._parts[use].add_(total)
            total = self._parts.get(use) if total is None else total
            if total is not None and last:
                leaf.grad = total
            elif total is not None:
                self._parts[use] = total
        if last:
            self._parts.clear()

    def take(self) -> dict[Use, Array]:
        """The accumulated gradients, gone from here."""
        self.close_part()
        found = {use: to_array(total) for use, total in self._parts.items()}
        self._parts.clear()
        return found

    def take_leaves(self, uses: Collection[Use] | None = None) -> dict[Use, torch.Tensor]:
        """What ``uses`` (None: all) have accumulated since the last part ended, gone from here."""
        found: dict[Use, torch.Tensor] = {}
        for use, leaf in self._accumulators() if uses is None else [(use, self.leaf(use)) for use in uses]:
            if leaf.grad is not None:
                found[use], leaf.grad = leaf.grad, None
        return found

    def add_leaves(self, gradients: Mapping[Use, torch.Tensor]) -> None:
        """Add gradients as a backward does: a first one is kept as it is, another one is added in place."""
        for use, leaf in self._accumulators():
            if use in gradients:
                leaf.grad = gradients[use] if leaf.grad is None else leaf.grad.add_(gradients[use])

    def put(self, gradients: Mapping[Use, Array]) -> None:
        """Set accumulated gradients.

        Raises:
            GraphError: a use is not of this stage, or its shape or element type is another.
        """
        known = dict(self._accumulators())
        for use, array in gradients.items():
            if use not in known:
                raise GraphError(f"operator {use.op!r} of this stage trains no state {use.state!r}")
            check_array(f"gradient of {use.state!r}", array, self._graph.state[use.state].spec)
            known[use].grad = from_array(array, self._device)

    def use_gradients(self) -> dict[Use, Array]:
        """Accumulated gradients by use of parameters that other stages use too (``finish`` makes new sums of them)."""
        found = {use: leaf.grad for use, leaf in self._leaves.items() if use.state in self._spread}
        return {use: to_array(grad) for use, grad in found.items() if grad is not None}

    def finish(self, remote: Mapping[Use, Array]) -> None:
        """Set each tied parameter's gradient to the sum of its uses, the last use first, as autograd adds them.

        Raises:
            GraphError: ``remote`` holds a use that the graph doesn't have.
        """
        unknown = [use for use in remote if use not in self._graph.gradient_uses.get(use.state, ())]
        if unknown:
            raise GraphError(f"no operator {unknown[0].op!r} of graph {self._graph.name!r} trains state {unknown[0].state!r}")
        for name in self._names:
            if name not in self._several:
                continue
            total: torch.Tensor | None = None
            parts = 0
            for use in reversed(self._graph.gradient_uses[name]):
                leaf = self._leaves.get(use)
                part = leaf.grad if leaf is not None else None
                if part is None and use in remote:
                    part = from_array(remote[use], self._device)
                parts += part is not None
                if total is None or part is None:
                    total = part if total is None else total
                else:
                    # In place only where no array of the parts was handed out.
                    total = total + part if name in self._spread else total.add_(part)
            if total is not None and parts == 1 and name in self._spread:
                total = total.clone()  # a lone part was handed out, or came from another stage: clipping must not change it
            self.tensor(name).grad = total
        self._drop_uses()

    def gradients(self) -> dict[str, torch.Tensor]:
        """The gradient of each parameter that has one, in the stage's order."""
        found = {name: self.tensors[name].grad for name in self._names if name in self.trained and name in self.tensors}
        return {name: grad for name, grad in found.items() if grad is not None}

    def set_gradients(self, gradients: Mapping[str, Array]) -> None:
        """Set the gradients of parameters.

        Raises:
            GraphError: one is not trained here, or its gradient has another shape or element type.
        """
        for name, array in gradients.items():
            if name not in self.trained:
                raise GraphError(f"state {name!r} is not trained in this stage")
            check_array(f"gradient of {name!r}", array, self._graph.state[name].spec)
            self.tensors[name].grad = from_array(array, self._device)

    def single(self) -> frozenset[str]:
        """Trained parameters with one use, whose gradient accumulates in the parameter itself."""
        return frozenset(self.trained - self._several)

    @contextmanager
    def aside(self, names: Collection[str] | None) -> Iterator[None]:
        """Inside, only the parameters ``names`` have gradients (None: all have); afterwards these have none any more."""
        if names is None:
            yield
            self.clear()
            return
        others = {n: self.tensors[n].grad for n in self.trained if n not in names and n in self.tensors}
        for name in others:
            self.tensors[name].grad = None
        yield
        for name in self.trained & self.tensors.keys():
            self.tensors[name].grad = others.get(name)

    def open_gradients(self) -> Iterator[torch.Tensor]:
        """All gradients that a later backward may add to in place."""
        for tensor in (*(self.tensor(name) for name in self.trained), *self._leaves.values()):
            if tensor.grad is not None:
                yield tensor.grad

    def clear(self) -> None:
        """Drop all gradients."""
        self._parts.clear()
        for name in self.trained & self.tensors.keys():
            self.tensors[name].grad = None
        self._drop_uses()

    def _drop_uses(self) -> None:
        for leaf in self._leaves.values():
            leaf.grad = None

    def export(self, names: Collection[str] | None = None, *, copy: bool = True) -> dict[str, Array]:
        """The states ``names``, or all parameters and persistent buffers."""
        kept = [self._graph.state[name] for name in self._names if name in self.tensors]
        if names is None:
            chosen = [state.name for state in kept if state.persistent and state.kind is not StateKind.CONSTANT]
        else:
            chosen = [state.name for state in kept if state.name in names]
        return {name: to_array(self.tensors[name], copy=copy) for name in chosen}
