"""Updates of parameters whose optimizer states are on a disk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from farflung.engines.offloaded_states import OffloadedStates
from farflung.engines.state_file import StateFile
from farflung.engines.torch.optimizers.wide_update import stage_optimizer
from farflung.job.spec import OptimizerSpec

__all__ = ["OffloadedOptimizer"]


class OffloadedOptimizer(OffloadedStates):
    """Steps the parameters of one stage, one after the other, each with an optimizer of its own."""

    def __init__(self, file: StateFile, spec: OptimizerSpec, parameters: Mapping[str, torch.Tensor], seed: int) -> None:
        """Errors as ``stage_optimizer``."""
        self._parameters = dict(parameters)
        self._single = {name: stage_optimizer(spec, {name: parameter}, seed) for name, parameter in parameters.items()}
        super().__init__(file, self._single)

    def step(self, rates: Sequence[float]) -> None:
        """One step of the parameters that have gradients; see ``StageOptimizer`` and ``RuleOptimizer``.

        Raises:
            TrainingError: the disk fails.
        """
        names = [name for name, parameter in self._parameters.items() if parameter.grad is not None]
        self.update(names, lambda name: self._single[name].step(rates))
