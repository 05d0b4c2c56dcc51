"""Zeroth-order training: the loss is measured twice, at parameters moved along a seeded direction and against it.

Each worker moves its own stages, so a direction is drawn by parameter (``seeded_directions``), which no cut of the model changes.
The device that makes a pipeline's loss sends the slope to all others: a step's traffic between replicas is one number from each.
With local steps, it sends the slope to its pipeline alone. At the end of a sync round, the replicas of a stage send each other
all slopes of the round.
Moved parameters are restored from a copy, so rounding leaves no trace, and replicas that began equal stay equal bit for bit.
Memory: a copy of the parameters, a step's inputs; activations are not kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from farflung.engines.base import Array, EngineSettings, StageRunner
from farflung.errors import WireError
from farflung.graph.cut import SubGraph
from farflung.messages.data import Slope
from farflung.schedules.base import Action, ActionKind
from farflung.step.actions import ActionResult
from farflung.step.context import StepContext
from farflung.step.ready_loop import QueuedActions, run_actions
from farflung.step.run_setup import Phase
from farflung.step.stages.local_stages import LocalStages
from farflung.step.step_meter import StepMeter
from farflung.step.step_vote import StepVote
from farflung.step.sync.interpreter import Synchronizer
from farflung.step.sync.seeded_directions import direction
from farflung.step.transfer.outbox import OutgoingMessage
from farflung.step.transfer.value_transfer import StepRoutes
from farflung.sync.base import ZerothOrder
from farflung.sync.commands import Probe
from farflung.sync.strategies.seed_and_scalar import narrow, widened
from farflung.transports.base import Urgency

__all__ = ["ZerothOrderMode"]

Inputs = dict[tuple[int, int], Mapping[str, Array]]


class ZerothOrderMode:
    """Two finite-difference probes in place of a backward."""

    makes_gradients = False

    def __init__(
        self, context: StepContext, stages: LocalStages, vote: StepVote, sync: Synchronizer, settings: ZerothOrder
    ) -> None:
        self._context, self._stages, self._vote, self._sync, self._settings = context, stages, vote, sync, settings
        #: Whether pipelines take local steps, whose slopes others need only at the end of a sync round.
        self._local = sync.drifts
        #: stage -> samples in the micro-batch -> runner
        self._runners: dict[int, dict[int, StageRunner]] = {}

    def open(self) -> None:
        """Open runners that keep nothing for a backward, over the memory of the runners that train."""
        job, engine, cuts = self._context.setup.job, self._context.engine, self._stages.cuts
        settings = EngineSettings(device=self._context.device, seed=job.seed, precision=job.precision, training=False)
        for stage, base in self._stages.bases.items():
            self._runners[stage] = {rows: engine.open(cuts[rows][stage], settings, share=base) for rows in cuts}

    def run(self, step: int, meter: StepMeter) -> None:
        """See ``TrainingMode``; each loss is the mean of both probes."""
        self._vote.report(step, self._measure(step, meter))
        with meter.waiting():
            self._sync.use_derivatives(self._gather(step))

    def close(self) -> None:
        """There are no threads."""

    def receive(self, peer: str, slope: Slope) -> None:
        """Store slopes of ``peer`` (transport thread).

        Raises:
            WireError: they have another size than the strategy says.
        """
        data, bits, most = memoryview(slope.sections[0]), self._settings.bits, self._settings.most
        if data.nbytes not in {bits // 8, most * bits // 8}:
            raise WireError(f"slopes of {bits} bits, {most} of them at most, came as {data.nbytes} bytes")
        self._context.inbox.put(("slope", slope.step, peer), widened(bytes(data), bits))

    def _measure(self, step: int, meter: StepMeter) -> dict[int, float]:
        """Compute both probes and send the slope; the parameters are as before."""
        setup, probes = self._context.setup, self._sync.probes
        before = {stage: self._stages.base(stage).states(probe.names) for stage, probe in probes.items()}
        data: Inputs = {}
        found = []
        for phase, sign in ((Phase.TRAIN, 1.0), (Phase.PROBE, -1.0)):
            for stage, probe in probes.items():
                with meter.computing(stage):
                    self._move(stage, probe.command, sign, before[stage])
            source = _Probe(self._context, self._runners, (step, phase), data)
            run_actions(source, self._context, meter)
            found.append(source.losses)
        for stage, states in before.items():
            self._stages.base(stage).load(states)
        there, back = found
        if there:
            weights = {index: setup.job.weight(index) / setup.part for index in sorted(there)}
            gap = sum(weight * (there[index] - back[index]) for index, weight in weights.items())
            self._send(step, gap / (2 * self._settings.scale))
        return {index: (there[index] + back[index]) / 2 for index in there}

    def _gather(self, step: int) -> dict[int, list[float]]:
        """Wait for the slopes that arrive in ``step``; return them by rank, as they were sent.

        Raises:
            WireError: another number of them came than the strategy's program asks for.
        """
        setup, probes = self._context.setup, self._sync.probes
        makers = dict(enumerate(setup.plan.stages[setup.loss_stage].devices))
        if not self._local:
            return {rank: self._take(step, device, 1) for rank, device in makers.items()}
        own = self._take(step, makers[setup.number], 1)
        probe = next(iter(probes.values()), None)  # the same in all stages
        if probe is None or len(probe.command.group) == 1:
            return {setup.number: own}
        found = {setup.number: [*probe.slopes, *own]}
        stages = [setup.plan.stages[stage] for stage in probes]
        others = {device: rank for stage in stages for rank, device in enumerate(stage.devices) if rank != setup.number}
        self._post(step, found[setup.number], tuple(others))
        for device, rank in others.items():  # two devices of a pipeline send the same
            found[rank] = self._take(step, device, probe.command.last)
        return found

    def _take(self, step: int, device: str, due: int) -> list[float]:
        """Wait for the slopes of ``device``, as many as are ``due``."""
        found: list[float] = self._context.inbox.take(("slope", step, device))
        if len(found) != due:
            raise WireError(f"{device} sent {len(found)} slopes in step {step}, and {due} were due")
        return found

    def _move(self, stage: int, probe: Probe, sign: float, before: Mapping[str, Array]) -> None:
        moved = {}
        for name, array in before.items():
            moved[name] = array + direction(probe.seed, name, array) * array.dtype.type(sign * probe.scale)
        self._stages.base(stage).load(moved)

    def _send(self, step: int, slope: float) -> None:
        """Send the slope, and store it here as narrow as it is sent, so that all workers count the same number."""
        setup, bits = self._context.setup, self._settings.bits
        self._context.inbox.put(("slope", step, setup.device), widened(narrow(slope, bits).tobytes(), bits))
        self._post(step, [slope], setup.update_group if self._local else setup.peers)

    def _post(self, step: int, slopes: Sequence[float], peers: Sequence[str]) -> None:
        setup, bits = self._context.setup, self._settings.bits
        data = b"".join(narrow(slope, bits).tobytes() for slope in slopes)
        message = Slope(run=setup.run, step=step, sections=(data,))
        pair = (setup.loss_stage, setup.loss_stage)
        for peer in peers:
            outgoing = OutgoingMessage(make=lambda: message, urgency=Urgency.CONTROL, step=step, pair=pair, dense=len(data))
            self._context.outbox.post(peer, outgoing)


class _Probe(QueuedActions):
    """A forward of all own micro-batches through all own stages."""

    def __init__(
        self, context: StepContext, runners: Mapping[int, Mapping[int, StageRunner]], at: tuple[int, Phase], data: Inputs
    ) -> None:
        """``at``: step and phase. ``data``: inputs of the step, which both probes read; the first one fills it."""
        step, phase = at
        super().__init__(context.inbox, StepRoutes(context.transfer, phase, step), step)
        self._context, self._runners, self._data = context, runners, data
        #: micro-batch -> loss
        self.losses: dict[int, float] = {}
        setup = context.setup
        self._queues = {
            stage: [
                Action(stage, ActionKind.FORWARD, index)
                for index, device in enumerate(setup.places[stage])
                if device == setup.device
            ]
            for stage in setup.own_stages
        }

    def heads(self) -> Sequence[Action]:
        return [queue[0] for queue in self._queues.values() if queue]

    def piece(self, action: Action) -> SubGraph:
        return self.runner(action).subgraph

    def runner(self, action: Action) -> StageRunner:
        return self._runners[action.stage][self._context.setup.job.micro_batch_sizes[action.micro_batch]]

    def data(self, action: Action) -> Mapping[str, Array]:
        place = (action.stage, action.micro_batch)
        if place not in self._data:  # the submitter sends a step's samples once
            self._data[place] = self._context.data(self.piece(action), Phase.TRAIN, self.step, action.micro_batch)
        return self._data[place]

    def completed(self, action: Action, result: ActionResult) -> None:
        self._queues[action.stage].pop(0)
        if result.loss is not None:
            self.losses[action.micro_batch] = result.loss
