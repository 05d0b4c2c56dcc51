"""Delayed Parameter Update (``optimizer.delayed``): a step computes with the parameters of one update before the newest.

Let M(n) be the parameters after n steps. Step n computes its gradients with M(n - 1) (step 0 with M(0)), and these make M(n + 1)
of M(n). So M(n) is known when step n begins, and helpers get it for step n + 1 while they compute step n. In other words:
gradients are applied one step late. Source: Hybrid-PS, after ZeRO-Offload's delayed update. What differs: gradients are
exchanged, not parameters; between two steps a worker's states are M(n), and M(n - 1) is kept beside the optimizer's slots, in
checkpoints and copies too.
Cost: two copies of the trained parameters, and writing them three times per step.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from farflung.engines.base import Array

if TYPE_CHECKING:
    from farflung.step.executor import Executor

__all__ = ["Delaying", "is_stale_slot"]

_PREFIX = "stale/"


def is_stale_slot(name: str) -> bool:
    """Whether an optimizer slot ``<slot>/<parameter>`` is a parameter of one update before."""
    return name.startswith(_PREFIX)


class Delaying:
    """One executor's older parameters (compute thread). Where the job wants no delay, all is as if this were not there."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self.on = executor.setup.job.optimizer.delayed
        #: stage -> what the step under way computes with (between steps: what the next one will)
        self.used: dict[int, Mapping[str, Array]] = {}
        #: stage -> the newest parameters, while a step is under way
        self.newest: dict[int, Mapping[str, Array]] = {}

    def load(self, stage: int, slots: Mapping[str, Array]) -> None:
        """Take from ``slots`` what is of ``stage``; what they lack is as new as the states."""
        if self.on:
            held = {name: slots.get(_PREFIX + name) for name in self._names(stage)}
            self.used[stage] = {name: array for name, array in held.items() if array is not None}
            self.newest.pop(stage, None)

    def begin(self) -> Mapping[int, Mapping[str, Array]]:
        """A step begins: the runners hold the older parameters from now on. The newest ones, by stage."""
        if not self.on:
            return {}
        executor = self._executor
        executor.commits.writing()
        for stage in executor.setup.own_stages:
            newest = self.newest[stage] = executor.base(stage).states(self._names(stage))
            self.used[stage] = {**newest, **self.used.get(stage, {})}
            executor.base(stage).load(self.used[stage])
        executor.commits.loaded()
        return dict(self.newest)

    def end(self) -> None:
        """The step is over: the runners hold the newest parameters again, which the next step computes with, to be updated."""
        for stage, newest in self.newest.items():
            self._executor.base(stage).load(newest)
        self.used |= self.newest
        self.newest = {}

    def slots(self, stage: int) -> dict[str, Array]:
        """What belongs to the states of ``stage``, beside the optimizer's slots."""
        return {_PREFIX + name: array for name, array in self.used.get(stage, {}).items()}

    def _names(self, stage: int) -> list[str]:
        """The parameters that ``stage`` trains, as helpers are sent them."""
        graph, names = self._executor.setup.graph, self._executor.setup.subgraphs[stage].states
        return [name for name in names if name in graph.trained]
