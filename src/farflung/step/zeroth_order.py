"""Steps without a backward: the loss is measured twice, at parameters moved along a seeded direction and against it.

Each worker moves its own stages, so a direction is drawn by parameter (``codecs.keys.signs``), which no cut of the model changes.
The device that makes a pipeline's loss sends the slope to all others: a step's traffic between replicas is one number from each.
Moved parameters are put back from a copy, so rounding leaves no trace, and replicas that began equal stay equal bit for bit.
Memory: a copy of the parameters, a step's inputs; activations are not kept.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from farflung.codecs.keys import derive, signs
from farflung.engines.base import Array, EngineSettings, Forward, MicroBatch, StageRunner
from farflung.errors import WireError
from farflung.graph.cut import SubGraph
from farflung.messages.fields import whole
from farflung.step.outbox import OutgoingFrame
from farflung.step.run_setup import Phase
from farflung.step.step_meter import StepMeter
from farflung.sync.base import ZerothOrder
from farflung.sync.commands import Probe, Replay
from farflung.sync.strategies.seed_and_scalar import narrow, widened
from farflung.telemetry.events import SpanKind
from farflung.telemetry.faults import fault_point
from farflung.transports.base import Urgency
from farflung.wire.frames import Frame

if TYPE_CHECKING:
    from farflung.step.executor import Executor

__all__ = ["Slopes", "direction", "replayed"]


def direction(seed: int, name: str, like: Array) -> Array:
    """The signs of parameter ``name``, in ``like``'s shape and element type."""
    found: Array = signs(derive(seed, name), like.size).reshape(like.shape).astype(like.dtype)
    return found


def replayed(command: Replay, slopes: Mapping[int, float], states: Mapping[str, Array]) -> dict[str, Array]:
    """What all members' ``slopes`` (by rank) say of the gradient of ``states``."""
    found: dict[str, Array] = {}
    for name, like in states.items():
        total = np.zeros(like.shape, like.dtype)
        for rank, seed, weight in zip(command.group, command.seeds, command.weights, strict=True):
            total += direction(seed, name, like) * like.dtype.type(weight * slopes[rank])
        found[name] = total
    return found


class Slopes:
    """One executor's steps without a backward."""

    def __init__(self, executor: Executor, probing: ZerothOrder) -> None:
        self._executor, self._probing = executor, probing
        self._runners: dict[int, dict[int, StageRunner]] = {}
        self._data: dict[tuple[int, int], Mapping[str, Array]] = {}

    def open(self, cuts: Mapping[int, tuple[SubGraph, ...]]) -> None:
        """Runners that keep nothing for a backward, over the memory of those that train; ``cuts``: by samples."""
        executor = self._executor
        job = executor.setup.job
        settings = EngineSettings(device=executor.compute_device, seed=job.seed, precision=job.precision, training=False)
        for stage in executor.setup.own_stages:
            base = executor.base(stage)
            self._runners[stage] = {rows: executor.engine.open(cuts[rows][stage], settings, share=base) for rows in cuts}

    def measure(self, step: int, meter: StepMeter) -> dict[int, float]:
        """The losses of ``step`` that are made here, each the mean of both points; the slope is sent, parameters are as before.

        Raises:
            BaseException: what ended the run meanwhile.
        """
        executor = self._executor
        assert executor.sync is not None
        probes = executor.sync.probes
        before = {stage: executor.base(stage).states(names) for stage, (_, names) in probes.items()}
        found = []
        for phase, sign in ((Phase.TRAIN, 1.0), (Phase.PROBE, -1.0)):
            for stage, (probe, _) in probes.items():
                with meter.computing(stage):
                    self._move(stage, probe, sign, before[stage])
            found.append(self._pass(step, phase, meter))
        for stage, states in before.items():
            executor.base(stage).load(states)
        self._data.clear()
        there, back = found
        if there:
            weights = {index: executor.setup.job.weight(index) / executor.setup.part for index in sorted(there)}
            gap = sum(weight * (there[index] - back[index]) for index, weight in weights.items())
            self._send(step, gap / (2 * self._probing.scale))
        return {index: (there[index] + back[index]) / 2 for index in there}

    def gather(self, step: int) -> dict[int, float]:
        """The slope of each pipeline, by rank, as it was sent; waits for them."""
        makers = self._executor.setup.plan.stages[self._executor.setup.loss_stage].devices
        return {rank: self._executor.mailbox.take(("slope", step, device)) for rank, device in enumerate(makers)}

    def receive(self, peer: str, frame: Frame) -> None:
        """A slope came from ``peer`` (transport thread).

        Raises:
            WireError: it has another size than the strategy says.
        """
        data, bits = b"".join(bytes(memoryview(section)[:9]) for section in frame.sections[:2]), self._probing.bits
        if len(data) != bits // 8:
            raise WireError(f"a slope of {bits} bits came in {len(frame.sections)} sections of {len(data)} bytes or more")
        self._executor.mailbox.put(("slope", whole(frame.header, "step"), peer), widened(data, bits))

    def _move(self, stage: int, probe: Probe, sign: float, before: Mapping[str, Array]) -> None:
        moved = {}
        for name, array in before.items():
            moved[name] = array + direction(probe.seed, name, array) * array.dtype.type(sign * probe.scale)
        self._executor.base(stage).load(moved)

    def _pass(self, step: int, phase: Phase, meter: StepMeter) -> dict[int, float]:
        """A forward of all own micro-batches through all own stages; the losses that are made here."""
        setup, mailbox, courier = self._executor.setup, self._executor.mailbox, self._executor.courier
        todo = {
            stage: deque(index for index, device in enumerate(setup.places[stage]) if device == setup.device)
            for stage in setup.own_stages
        }
        losses: dict[int, float] = {}
        while any(todo.values()):
            heads = [(stage, waiting[0]) for stage, waiting in todo.items() if waiting]
            needs = [(stage, index, self._needs(step, phase, stage, index)) for stage, index in heads]
            chosen: list[tuple[int, int]] = []

            def ready(needs: list[tuple[int, int, list[Hashable]]] = needs, chosen: list[tuple[int, int]] = chosen) -> bool:
                chosen.extend((stage, index) for stage, index, keys in needs if not chosen and mailbox.holds(keys))
                return bool(chosen)

            with meter.waiting():
                mailbox.wait_until(ready)
            stage, index = chosen[0]
            todo[stage].popleft()
            with meter.computing(stage):
                result = self._forward(step, phase, stage, index)
            for edge in setup.subgraphs[stage].gives:
                courier.send(phase, step, index, edge, result.values[edge.value], gradient=False)
            if "loss" in result.outputs:
                losses[index] = float(result.outputs["loss"])
        return losses

    def _needs(self, step: int, phase: Phase, stage: int, index: int) -> list[Hashable]:
        executor = self._executor
        edges = executor.setup.subgraphs[stage].takes
        return [executor.courier.key(phase, step, index, edge, gradient=False) for edge in edges]

    def _forward(self, step: int, phase: Phase, stage: int, index: int) -> Forward:
        executor = self._executor
        fault_point("worker.before_forward", step=step, device=executor.setup.device)
        runner = self._runners[stage][executor.setup.job.micro_batch_sizes[index]]
        edges = runner.subgraph.takes
        keys = {edge.value: executor.courier.key(phase, step, index, edge, gradient=False) for edge in edges}
        values = {value: executor.mailbox.take(key) for value, key in keys.items()}
        if (stage, index) not in self._data:  # the feed gives a step's samples once
            self._data[stage, index] = executor.data(runner.subgraph, Phase.TRAIN, step, index)
        begin = executor.trace.now()
        result = runner.forward(MicroBatch(step, index), values, self._data[stage, index])
        executor.trace.note(SpanKind.COMPUTE, "F", begin, stage=stage, micro_batch=index, step=step)
        return result

    def _send(self, step: int, slope: float) -> None:
        """As narrow as it is sent, here too, so that all count the same."""
        setup = self._executor.setup
        data = narrow(slope, self._probing.bits).tobytes()
        self._executor.mailbox.put(("slope", step, setup.device), widened(data, self._probing.bits))
        frame = Frame("slope", {"run": setup.run, "step": step}, (data,))
        pair = (setup.loss_stage, setup.loss_stage)
        for peer in setup.peers:
            parcel = OutgoingFrame(make=lambda: frame, urgency=Urgency.CONTROL, step=step, pair=pair, dense=len(data))
            self._executor.links.post(peer, parcel)
