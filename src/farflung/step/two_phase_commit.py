"""The two phases of a step's end: a worker is ready when its gradients are complete and held; applied is when all are.

So no worker ever is more than one step ahead of another, and one that is behind can follow by itself (``protocol.holdings``).
Those that hold the first stage end a step's backwards last and begin the next step: they hear from everyone, and each other
worker hears from one of them that all are ready. It comes before what that worker waits for anyway, the first values of the next
step. Cost, per step: among N workers, F of them with the first stage, (N - F) (F + 1) + F (F - 1) messages of some ten bytes,
instead of N (N - 1), and the way of the slowest of them. A job that clips gradients, or asks for their norm, sends norms at this
point anyway, from each to each, and then these are the messages.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from farflung.checkpoint import pack
from farflung.engines.base import Array
from farflung.messages.step_reports import StepReport
from farflung.protocol.holdings import Decision, Holding, ahead
from farflung.telemetry.faults import fault_point

if TYPE_CHECKING:
    from farflung.step.executor import Executor

__all__ = ["Committing", "LiveStates"]

#: Reports that the broker may not have heard of from a worker that died: as many as may be open there.
_REPORTS = 64


class Committing:
    """Where one executor stands between two steps."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        setup = executor.setup
        #: Whether states outlive a loss: not with a sync strategy, whose pipelines differ.
        self.keeps = setup.survives and setup.plan.sync is None and setup.job.on_loss == "recover"
        #: Steps that the states are made of, those that were left out included.
        self.step = setup.first_step
        self.ready = False
        #: The states are those of a step's boundary, or nearly: not while they are written.
        self.whole = False
        self.decision: Decision | None = None
        #: What the forwards of the step under way have changed, as it was before them.
        self.before: Mapping[int, Mapping[str, Array]] = {}
        self.reports: deque[StepReport] = deque(maxlen=_REPORTS)
        self._first = setup.plan.stages[0].devices

    def begin(self) -> None:
        """A step begins: keep what it changes before its end, as it is now."""
        self.ready = False
        self.before = self._executor.delaying.begin() or self._carried()

    def _carried(self) -> dict[int, Mapping[str, Array]]:
        """Copies of what forwards themselves change (batch-norm statistics), by stage; models that do have no delayed update."""
        executor = self._executor
        if executor.setup.job.on_nan != "skip" and not self.keeps:
            return {}
        changed = {name for name, _ in executor.setup.graph.state_updates}
        found = {index: changed & set(executor.setup.subgraphs[index].states) for index in executor.setup.own_stages}
        return {index: executor.base(index).states(names) for index, names in found.items() if names}

    def prepared(self) -> None:
        """The gradients of the step are complete: from now on this worker can apply it whoever dies."""
        self.ready = self.keeps

    def agree(self, step: int) -> None:
        """Wait until all workers are ready."""
        setup, courier = self._executor.setup, self._executor.courier
        if not self.keeps:
            return
        fault_point("worker.prepared", step=step, device=setup.device)
        before = [peer for peer in self._first if peer != setup.device]
        later = [peer for peer in setup.peers if peer not in self._first]
        for peer in before:
            courier.post(peer, "prepared", step, {})
        if setup.device not in self._first:
            self._executor.mailbox.take(("prepared", step, self._herald(setup.device)))  # all are
            return
        for peer in (*before, *later):
            self._executor.mailbox.take(("prepared", step, peer))
        for peer in later:
            if self._herald(peer) == setup.device:
                courier.post(peer, "prepared", step, {})

    def _herald(self, device: str) -> str:
        """Who tells ``device``, which does not hold the first stage, that all are ready."""
        return self._first[sorted(self._executor.setup.plan.devices).index(device) % len(self._first)]

    def writing(self) -> None:
        """The states are being written."""
        self.whole = False

    def loaded(self) -> None:
        """The first states are there."""
        self.whole = True

    def done(self, step: int, decision: Decision | None) -> None:
        """The step is applied, or left out (None: in a way that others can't follow by themselves)."""
        self.step, self.decision = step + 1, decision
        self.ready, self.before, self.whole = False, {}, True

    def told(self, report: StepReport, losses: Sequence[float], mean: float | None) -> None:
        """Keep the report of a step, with the losses that all workers know, for the case that the leader's is lost."""
        self.reports.append(replace(report, loss=mean, losses=tuple(losses)))

    def held(self) -> LiveStates | None:
        """What this worker holds (None: nothing that others can go on from); no step may be under way any more."""
        return LiveStates(self._executor, self) if self.keeps and self.whole else None


class LiveStates:
    """The states of an executor that has ended; see ``holding.Held``."""

    def __init__(self, executor: Executor, standing: Committing) -> None:
        self._executor, self._before = executor, standing.before
        states = frozenset(name for index in executor.setup.own_stages for name in executor.setup.subgraphs[index].states)
        self._holding = Holding(
            step=standing.step,
            committed=executor.committed,
            states=states,
            ready=standing.ready,
            decision=standing.decision,
        )
        if not standing.ready:
            executor.discard()

    @property
    def holding(self) -> Holding:
        """What the states are."""
        return self._holding

    def advance(self, decision: Decision) -> None:
        """Apply the step that was prepared."""
        executor = self._executor
        if decision.applied:
            scale = None if decision.scale is None else np.asarray(decision.scale, np.float32)
            executor.apply(self._holding.step, scale)
        else:
            executor.leave_out(self._before)
        self._before = {}
        self._holding = ahead(self._holding, decision)

    def read(self, states: Collection[str]) -> Mapping[str, Array]:
        """``states`` with their optimizer slots, packed."""
        values: dict[str, Array] = {}
        slots: dict[str, Array] = {}
        for index in self._executor.setup.own_stages:
            runner = self._executor.base(index)
            here = [name for name in runner.subgraph.states if name in states]
            values |= runner.states(here, copy=False)
            values |= {name: value for name, value in self._before.get(index, {}).items() if name in states}
            kept = self._executor.slots(index, copy=False)
            slots |= {key: value for key, value in kept.items() if key.split("/", 1)[1] in states}
        return pack(values, slots)
