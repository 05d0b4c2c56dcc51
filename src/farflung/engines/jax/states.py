"""The states of a stage where XLA reads them: on a CPU the arrays of the host themselves, else copies on the device."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

from farflung.engines.base import Array
from farflung.engines.host.states import StageStates
from farflung.engines.jax.arrays import aligned, place
from farflung.graph.cut import SubGraph
from farflung.memory_budget import MemoryBudget

__all__ = ["JaxStates"]


class JaxStates(StageStates):
    """States by name, on the host and on ``device``."""

    def __init__(
        self, subgraph: SubGraph, device: Any, trained: frozenset[str], budget: MemoryBudget, share: JaxStates | None
    ) -> None:
        super().__init__(subgraph, trained, budget, share)
        self._device = device
        #: The arrays on the device; a name is missing while its array of the host is newer.
        self._placed: dict[str, Any] = {} if share is None else share._placed
        #: Names whose memory others write to.
        self._exposed: set[str] = set() if share is None else share._exposed
        self._placed_constants: dict[str, Any] = {}

    def _own(self, value: Array) -> Array:
        return aligned(value)

    def _set(self, name: str, value: Array) -> None:
        super()._set(name, value)
        self._placed.pop(name, None)

    def replace(self, name: str, value: Array) -> None:
        """Set a state to a result of the stage (statistics of a batch normalization)."""
        super().replace(name, value)
        self._placed.pop(name, None)

    def on_device(self, name: str) -> Any:
        """A state as the compiled stage takes it.

        Raises:
            GraphError: the state has no value yet.
        """
        placed = self._placed_constants if name in self._constants else self._placed
        if name not in placed or name in self._exposed:
            placed[name] = place(self.array(name), self._device)
        return placed[name]

    def expose(self, names: Collection[str]) -> dict[str, Array]:
        """The memory of ``names``; what is written there is the state from now on."""
        self._exposed.update(names)
        return {name: self.array(name).reshape(-1) for name in names}

    def addresses(self) -> frozenset[int]:
        """Where the states' memory starts: arrays there must be copied before they are handed out."""
        held = [*self._constants.values(), *(self.arrays[name] for name in self._names if name in self.arrays)]
        return frozenset(array.ctypes.data for array in held)

    @contextmanager
    def updating(self, names: Collection[str] | None) -> Iterator[dict[str, Array]]:
        """The gradients of the parameters ``names`` (``None``: of all), which are gone afterwards; the states have changed."""
        with super().updating(names) as found:
            yield found
        for name in found:
            self._placed.pop(name, None)
