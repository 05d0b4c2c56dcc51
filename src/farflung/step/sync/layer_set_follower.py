"""Sets of layers follow measured times: at a period's end members report times, and decide alike on those of the period before.

Nobody waits for reports: those of a period are read at the end of the next one, when they have long arrived.
"""

from __future__ import annotations

from collections.abc import Callable

from farflung.step.sync.stage_replica import StageReplica
from farflung.step.sync.value_exchange import ValueExchange
from farflung.sync import Strategy
from farflung.sync.timeline import leaving, period_seconds

__all__ = ["LayerSetFollower"]


class LayerSetFollower:
    """For the replicas of one worker. ``notify``: takes lines for people."""

    def __init__(self, strategy: Strategy, values: ValueExchange, notify: Callable[[str], None]) -> None:
        self._strategy, self._values, self._notify = strategy, values, notify

    def gradients_complete(self, replica: StageReplica, place: int) -> None:
        """Nothing is measured then."""

    def end_step(self, replica: StageReplica, step: int, place: int) -> None:
        """All exchanges of ``step`` have ended; ``place``: the step counted from where the strategy began."""
        times = replica.times
        if times is None:
            return
        times.step_over()
        if (place + 1) % self._strategy.traits.sync_every:
            return
        for measured in self._values.end_reports(replica):
            world = self._strategy.follow(replica.world, measured)
            if world != replica.world:
                replica.follow(world)
                self._report(replica, step)
        self._values.begin_report(replica, step, times.take())

    def _report(self, replica: StageReplica, step: int) -> None:
        if replica.world.rank != 0:
            return
        sets = "; ".join(", ".join(map(str, layers)) for layers in leaving(self._strategy, replica.world))
        text = f"step {step + 1}: measured times ask for other sets of layers in stage {replica.stage}: {sets}"
        self._notify(f"{text}; the backwards of a period take {period_seconds(self._strategy, replica.world)}")
