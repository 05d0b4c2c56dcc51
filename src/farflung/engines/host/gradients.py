"""What runners of engines without PyTorch share: gradients on the host, and the update."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from farflung.engines.base import Array
from farflung.engines.host.optimizer import OffloadedOptimizer, Optimizer, stage_optimizer
from farflung.engines.host.states import StageStates
from farflung.engines.stateful_runner import StatefulRunner
from farflung.graph.ir import Use

__all__ = ["HostGradients"]


class HostGradients(StatefulRunner[StageStates, Optimizer | OffloadedOptimizer]):
    """The half of a ``StageRunner`` that no operator computes: states, gradients, their sums, and the update.

    An engine's runner has it as its base, and adds ``forward`` and ``backward``, which leaves gradients to ``complete``.
    """

    def make_optimizer(self, names: Sequence[str]) -> Optimizer | OffloadedOptimizer:
        """See ``StatefulRunner``."""
        settings, parameters = self._settings, {name: self.state.array(name) for name in names}
        if settings.offload is not None:
            return OffloadedOptimizer(settings.offload, settings.optimizer, parameters)
        return stage_optimizer(settings.optimizer, parameters)

    def complete(self, gradients: Mapping[Use, Array]) -> None:
        """Add a micro-batch's gradients of parameters, and report the watched groups: all of them are complete now."""
        for use, gradient in gradients.items():
            self.state.accumulate(use, gradient)
        watched, self._watch = self._watch, []
        for names, index in watched:
            if names and names <= self.state.single() and self._ready is not None:
                self._ready(index)

    def gradients(self) -> Mapping[str, Array]:
        """Copies of the finished gradients."""
        return {name: array.copy() for name, array in self.state.gradients().items()}

    def gradient_views(self, names: Collection[str]) -> Mapping[str, Array]:
        """Finished gradients, sharing memory."""
        return {name: array for name, array in self.state.gradients().items() if name in names}

    def gradient_norms(self) -> Mapping[str, float]:
        """Euclidean norms of the finished gradients."""
        return {name: float(np.linalg.norm(array.reshape(-1))) for name, array in self.state.gradients().items()}

    def spoilt_gradients(self) -> tuple[str, ...]:
        """The parameters whose finished gradient holds a NaN or an infinity."""
        return tuple(name for name, array in self.state.gradients().items() if not np.isfinite(array).all())

    def update(self, rates: Sequence[float], scale: Array | None, names: Collection[str] | None = None) -> None:
        """One optimizer step; see ``StageRunner``.

        Raises:
            InputError: not as many rates as groups.
        """
        with self.state.updating(names) as gradients:
            factor = None if scale is None else np.float32(scale)
            scaled = gradients if factor is None else {name: array * factor for name, array in gradients.items()}
            self.optimizer().step(scaled, rates)
