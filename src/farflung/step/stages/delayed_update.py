"""Delayed Parameter Update (``optimizer.delayed``): a step computes with the parameters of one update before the newest.

Let M(n) be the parameters after n steps. Step n computes its gradients with M(n - 1) (step 0 with M(0)), and these make M(n + 1)
of M(n). So M(n) is known when step n begins, and helpers get it for step n + 1 while they compute step n. In other words:
gradients are applied one step late. Source: Hybrid-PS, after ZeRO-Offload's delayed update. What differs: gradients are
exchanged, not parameters; between two steps a worker's states are M(n), and M(n - 1) is stored beside the optimizer's slots, in
checkpoints and copies too.
Cost: two copies of the trained parameters, and writing them three times per step.
"""

from __future__ import annotations

from collections.abc import Mapping

from farflung.engines.base import Array, StageRunner
from farflung.step.run_setup import RunSetup

__all__ = ["DelayedUpdate", "is_stale_slot"]

_PREFIX = "stale/"


def is_stale_slot(name: str) -> bool:
    """Return whether an optimizer slot ``<slot>/<parameter>`` is a parameter of one update before."""
    return name.startswith(_PREFIX)


class DelayedUpdate:
    """The older parameters of one worker's stages (compute thread). Does nothing where the job has no delayed update."""

    def __init__(self, setup: RunSetup) -> None:
        self._setup = setup
        self.on = setup.job.optimizer.delayed
        #: stage -> the parameters that the present step computes with (between steps: the next step)
        self.used: dict[int, Mapping[str, Array]] = {}
        #: stage -> the newest parameters, during a step
        self.newest: dict[int, Mapping[str, Array]] = {}

    def load(self, stage: int, slots: Mapping[str, Array]) -> None:
        """Take the older parameters of ``stage`` from ``slots``; those that ``slots`` lacks are as new as the states."""
        if self.on:
            found = {name: slots.get(_PREFIX + name) for name in self._names(stage)}
            self.used[stage] = {name: array for name, array in found.items() if array is not None}
            self.newest.pop(stage, None)

    def begin(self, runners: Mapping[int, StageRunner]) -> Mapping[int, Mapping[str, Array]]:
        """Load the older parameters into ``runners`` for the step that begins; return the newest ones, by stage."""
        for stage, runner in runners.items():
            newest = self.newest[stage] = runner.states(self._names(stage))
            self.used[stage] = {**newest, **self.used.get(stage, {})}
            runner.load(self.used[stage])
        return dict(self.newest)

    def end(self, runners: Mapping[int, StageRunner]) -> None:
        """Load the newest parameters again, to be updated; the next step computes with them."""
        for stage, newest in self.newest.items():
            runners[stage].load(newest)
        self.used |= self.newest
        self.newest = {}

    def slots(self, stage: int) -> dict[str, Array]:
        """Return the older parameters of ``stage``, to be stored beside the optimizer's slots."""
        return {_PREFIX + name: array for name, array in self.used.get(stage, {}).items()}

    def _names(self, stage: int) -> list[str]:
        """Return the parameters that ``stage`` trains, as helpers are sent them."""
        trained = self._setup.graph.trained
        return [name for name in self._setup.subgraphs[stage].states if name in trained]
