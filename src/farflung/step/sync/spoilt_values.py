"""Which workers of a pipeline sent values that are not finite, under a strategy that tolerates faulty replicas."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from farflung.engines.base import Array
from farflung.graph.cut import Edge
from farflung.schedules.base import Action, ActionKind
from farflung.step.actions import ActionInputs, ActionResult
from farflung.step.run_setup import RunSetup

__all__ = ["SpoiltValues"]


class SpoiltValues:
    """One worker's part in a step (compute thread). ``on``: whether the plan's strategy tolerates faulty replicas."""

    def __init__(self, setup: RunSetup, *, on: bool) -> None:
        self._setup, self._on = setup, on
        #: The workers that sent this one values of the step that are not finite.
        self.senders: set[str] = set()
        #: Micro-batches whose forward gave values that are not finite here: the gradients that come back say nothing then.
        self._own: set[int] = set()

    def begin_step(self) -> None:
        """Nothing of the next step has come."""
        self.senders.clear()
        self._own.clear()

    def received(self, action: Action, edges: Iterable[Edge], inputs: ActionInputs) -> None:
        """Check the ``inputs`` of ``action``; ``edges``: those of its stage."""
        if not self._on or action.micro_batch in self._own:
            return
        backward = action.kind is ActionKind.BACKWARD
        for edge, array in _gradients(edges, inputs) if backward else _values(edges, inputs):
            if not _finite(array):
                other = edge.target if backward else edge.source
                self.senders.add(self._setup.places[other][action.micro_batch])
        self.senders.discard(self._setup.device)

    def computed(self, action: Action, result: ActionResult) -> None:
        """Check the values that a forward gave."""
        if self._on and action.kind is ActionKind.FORWARD and not all(map(_finite, result.values.values())):
            self._own.add(action.micro_batch)


def _values(edges: Iterable[Edge], inputs: ActionInputs) -> Iterator[tuple[Edge, Array]]:
    values = inputs.values or {}
    return ((edge, values[edge.value]) for edge in edges if edge.value in values)


def _gradients(edges: Iterable[Edge], inputs: ActionInputs) -> Iterator[tuple[Edge, Array]]:
    """Each edge with its gradient: those of a value come by descending reading stage."""
    left = {value: iter(arrays) for value, arrays in inputs.gradients.items()}
    return ((edge, next(left[edge.value])) for edge in sorted(edges, key=lambda edge: -edge.target))


def _finite(array: Array) -> bool:
    return array.dtype.kind not in "fV" or bool(np.isfinite(array.astype(np.float32, copy=False)).all())
