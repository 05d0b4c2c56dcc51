"""What runners of engines without PyTorch share: the stage's states and gradients on the host, and the update."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np

from farflung.engines.base import Array, EngineSettings
from farflung.engines.host.optimizer import Optimizer, stage_optimizer
from farflung.engines.host.states import StageStates
from farflung.graph.cut import SubGraph
from farflung.graph.ir import Use
from farflung.job.groups import is_frozen

__all__ = ["HostGradients", "trained_states"]


def trained_states(subgraph: SubGraph, settings: EngineSettings) -> frozenset[str]:
    """The parameters that the stage trains: none without ``training``, and none of a frozen group."""
    names = subgraph.states if settings.training else ()
    return frozenset(n for n in names if n in subgraph.graph.trained and not is_frozen(settings.optimizer, n))


class HostGradients:
    """The half of a ``StageRunner`` that no operator computes: first values, gradients, their sums, and the update.

    An engine's runner has it as its base, and adds ``forward`` and ``backward``, which leaves gradients to ``complete``.
    """

    def __init__(self, subgraph: SubGraph, settings: EngineSettings, state: StageStates) -> None:
        self.subgraph = subgraph
        self.state = state
        self._settings = settings
        self._optimizer: Optimizer | None = None
        self._watch: list[tuple[frozenset[str], int]] = []
        self._ready: Callable[[int], None] | None = None

    def initialize(self, names: Sequence[str]) -> None:
        """Replay the recorded initializers of the states ``names`` under the settings' seed."""
        self.state.initialize(names, self._settings.seed)

    def load(self, states: Mapping[str, Array]) -> None:
        """Set states to given values.

        Raises:
            GraphError: a state is not in this stage, or its shape or element type is another.
        """
        self.state.load(states)

    def states(self, names: Collection[str] | None = None, *, copy: bool = True) -> Mapping[str, Array]:
        """The states ``names``, or all parameters and persistent buffers."""
        return self.state.export(names, copy=copy)

    def complete(self, gradients: Mapping[Use, Array]) -> None:
        """Add a micro-batch's gradients of parameters, and report the watched groups: all of them are complete now."""
        for use, gradient in gradients.items():
            self.state.accumulate(use, gradient)
        watched, self._watch = self._watch, []
        for names, index in watched:
            if names and names <= self.state.single() and self._ready is not None:
                self._ready(index)

    def close_part(self, *, last: bool = False) -> None:
        """End a part of the step's sum."""
        self.state.close_part(last=last)

    def take_gradients(self) -> Mapping[Use, Array]:
        """The accumulated gradients by use; they are gone from here."""
        return self.state.take()

    def put_gradients(self, gradients: Mapping[Use, Array]) -> None:
        """Set the accumulated gradients of uses.

        Raises:
            GraphError: a use is not of this stage, or its shape or element type is another.
        """
        self.state.put(gradients)

    def use_gradients(self) -> Mapping[Use, Array]:
        """Accumulated gradients of the uses here of parameters that other stages use too."""
        return self.state.use_gradients()

    def finish_gradients(self, uses: Mapping[Use, Array]) -> None:
        """Add the uses of each tied parameter, the last use first."""
        self.state.finish(uses)

    def gradients(self) -> Mapping[str, Array]:
        """Copies of the finished gradients."""
        return {name: array.copy() for name, array in self.state.gradients().items()}

    def gradient_views(self, names: Collection[str]) -> Mapping[str, Array]:
        """Finished gradients, sharing memory."""
        return {name: array for name, array in self.state.gradients().items() if name in names}

    def set_gradients(self, gradients: Mapping[str, Array]) -> None:
        """Set finished gradients.

        Raises:
            GraphError: a parameter is not trained here, or a gradient has another shape or element type.
        """
        self.state.set_gradients(gradients)

    def gradient_norms(self) -> Mapping[str, float]:
        """Euclidean norms of the finished gradients."""
        return {name: float(np.linalg.norm(array.reshape(-1))) for name, array in self.state.gradients().items()}

    def spoilt_gradients(self) -> tuple[str, ...]:
        """The parameters whose finished gradient holds a NaN or an infinity."""
        return tuple(name for name, array in self.state.gradients().items() if not np.isfinite(array).all())

    def watch(self, groups: Sequence[Collection[str]], ready: Callable[[int], None]) -> None:
        """Report complete gradients at the end of the next backward, which is computed as one (see ``StageRunner``)."""
        self._watch = [(frozenset(names), index) for index, names in enumerate(groups)]
        self._ready = ready

    def update(self, rates: Sequence[float], scale: Array | None, names: Collection[str] | None = None) -> None:
        """One optimizer step; see ``StageRunner``.

        Raises:
            InputError: not as many rates as groups.
        """
        with self.state.updating(names) as gradients:
            factor = None if scale is None else np.float32(scale)
            scaled = gradients if factor is None else {name: array * factor for name, array in gradients.items()}
            self._stepper().step(scaled, rates)

    def _stepper(self) -> Optimizer:
        if self._optimizer is None:
            parameters = {n: self.state.array(n) for n in self.subgraph.states if n in self.state.trained}
            self._optimizer = stage_optimizer(self._settings.optimizer, parameters)
        return self._optimizer

    def optimizer_states(self, *, copy: bool = True) -> Mapping[str, Array]:
        """Optimizer state as ``<slot>/<parameter>``."""
        return self._stepper().export(copy=copy)

    def load_optimizer(self, states: Mapping[str, Array]) -> None:
        """Set what ``optimizer_states`` gave.

        Raises:
            CheckpointError: an entry's parameter or shape does not fit this stage.
        """
        self._stepper().load(states)
