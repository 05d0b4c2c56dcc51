"""Deaths injected into a run in virtual time, from a seed: checkpoints, pauses, steps made again, machines that stay away.

It plays the story that ``plan.fault_tolerance`` has formulas for, life by life: each machine draws an exponential life from its
rate; a death in a step or a pause ends it; what was made since the newest checkpoint is made again. Between two events nothing is
drawn, so whole checkpoint intervals are passed at once. Cost: O((devices + log devices) per death).
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable
from dataclasses import dataclass

from farflung.errors import InputError
from farflung.plan.fault_tolerance.faults import FaultModel

__all__ = ["FailureRun", "simulate_failures"]

#: Step seconds of the plan without the machines of a set (infinite: there is none, the run waits).
StepWithout = Callable[[frozenset[str]], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureRun:
    """What happened in ``seconds`` of virtual time: steps that lasted, steps that were made again, deaths, seconds of pauses."""

    seconds: float
    steps: int
    again: float
    deaths: int
    paused: float
    waited: float
    samples_per_second: float


def simulate_failures(model: FaultModel, *, deaths: int = 1000, seed: int = 0, without: StepWithout | None = None) -> FailureRun:
    """Play until ``deaths`` machines have died.

    ``without``: step seconds with machines missing; default ``model.without`` for one, and waiting with more.

    Raises:
        InputError: no machine ever dies, or fewer than one death is asked for.
    """
    if model.rate <= 0 or deaths < 1:
        raise InputError(f"injecting {deaths} deaths needs machines with a failure rate; give them an mtbf, or --mtbf")
    return _Story(model, deaths, seed, without or (lambda missing: _single(model, missing))).play()


def _single(model: FaultModel, missing: frozenset[str]) -> float:
    return model.without.get(next(iter(missing)), math.inf) if len(missing) == 1 else math.inf


class _Story:
    """Time passes from event to event; ``done`` whole steps are in the newest checkpoint, ``made`` seconds are not."""

    def __init__(self, model: FaultModel, deaths: int, seed: int, without: StepWithout) -> None:
        self.model, self.deaths, self.without = model, deaths, without
        self.random = random.Random(seed)
        self.now = self.paused = self.waited = self.again = self.made = 0.0
        self.done = self.died = 0
        self.missing: set[str] = set()
        self.pause = 0.0
        #: (time, device, whether it dies; otherwise it is back)
        self.events: list[tuple[float, str, bool]] = []
        for device in model.rates:
            self._live(device)

    def _live(self, device: str) -> None:
        rate = self.model.rates[device]
        if rate > 0:
            heapq.heappush(self.events, (self.now + self.random.expovariate(rate), device, True))

    def play(self) -> FailureRun:
        """Until the last death."""
        while self.died < self.deaths:
            at, device, dies = heapq.heappop(self.events)
            self._pass(at - self.now)
            self.now = at
            if dies:
                self._death(device)
            else:
                self._keep_whole_steps()
                self.missing.discard(device)
                self._live(device)
            self.pause = self.model.recovery
        return FailureRun(
            seconds=self.now,
            steps=self.done,
            again=self.again,
            deaths=self.died,
            paused=self.paused,
            waited=self.waited,
            samples_per_second=self.done * self.model.samples / self.now,
        )

    def _death(self, device: str) -> None:
        self.died += 1
        step = self._step
        if math.isfinite(step):
            steps = min(self.made, self.model.interval * step)  # the rest was spent on a checkpoint
            kept = int(steps / step) * step if self._spared(device) else 0.0
            self.again += (steps - kept) / step
            self.made = kept
        if self.model.away > 0:
            self.missing.add(device)
            heapq.heappush(self.events, (self.now + self.model.away * self.random.expovariate(1.0), device, False))
        else:
            self._live(device)

    def _spared(self, device: str) -> bool:
        """Whether all that ``device`` holds has another copy (with machines missing: perhaps they had it)."""
        return device in self.model.spared and not self.missing

    def _keep_whole_steps(self) -> None:
        """A machine that comes back is handed its part between two steps, with a checkpoint: whole steps are kept."""
        step = self._step
        if math.isfinite(step):
            self.done += min(int(self.made / step), self.model.interval)
        self.made = 0.0

    @property
    def _step(self) -> float:
        return self.without(frozenset(self.missing)) if self.missing else self.model.step_seconds

    def _pass(self, seconds: float) -> None:
        """``seconds`` without a death: first the rest of a pause, then steps and checkpoints."""
        spent = min(self.pause, seconds)
        self.pause -= spent
        self.paused += spent
        left, step = seconds - spent, self._step
        if not math.isfinite(step):
            self.waited += left
            return
        segment = self.model.interval * step + self.model.checkpoint
        whole, self.made = divmod(self.made + left, segment)
        self.done += int(whole) * self.model.interval
