"""Carries out the commands of ``farflung.sync`` on the replicas of one worker, on the compute thread.

Which of two ways an exchange goes depends on the command alone: a weighted mean without a codec is added up on the way
(``mean_exchange``), everything else sends values one by one (``value_exchange``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from farflung.engines.base import Array
from farflung.errors import TrainingError
from farflung.step.reduction.averaging import Outcome
from farflung.step.reduction.clipping import PreviousNorm
from farflung.step.sync.arithmetic import aggregated, axpy, norm_of, rescale, weighted_mean
from farflung.step.sync.mean_exchange import MeanExchange
from farflung.step.sync.seeded_directions import replayed
from farflung.step.sync.stage_replica import MeanUnderWay, StageReplica, ranges
from farflung.step.sync.value_exchange import ValueExchange
from farflung.sync import Sent, Traits
from farflung.sync.commands import Aggregate, Axpy, Clip, Command, Damp, Exchange, Mean, Probe, Replay, Update
from farflung.telemetry.events import SpanKind
from farflung.telemetry.trace import Span, SpanRing

__all__ = ["CommandRunner", "StepFacts"]


@dataclass(slots=True, kw_only=True)
class StepFacts:
    """What the commands of one step need and find.

    ``rates``: learning rates of the parameter groups. ``scale``: what to multiply gradients by (``None``: nothing). ``updates``:
    whether updates are carried out, not left out after an overflow. ``slopes``: those of each replica by rank that arrived in
    this step, where it has no backward. ``divergence``: the largest relative distance of a replica's parameters from the mean
    (``None``: the step averaged no parameters). ``excluded``: devices whose gradients were not finite, and which a robust rule
    left out.
    """

    step: int
    rates: Sequence[float] = ()
    scale: Array | None = None
    updates: bool = True
    slopes: Mapping[int, Sequence[float]] = field(default_factory=dict)
    divergence: float | None = None
    excluded: set[str] = field(default_factory=set)


class CommandRunner:
    """One worker's commands. ``facts``: of the step under way."""

    def __init__(
        self,
        traits: Traits,
        exchanges: tuple[ValueExchange, MeanExchange],
        norm: PreviousNorm,
        devices: Sequence[Sequence[str]],
        reports: tuple[SpanRing, Callable[[str], None]],
    ) -> None:
        """``devices``: of the replicas of each stage. ``reports``: the trace, and what takes lines for people."""
        self._traits, self._norm, self._devices = traits, norm, devices
        self._values, self._means = exchanges
        self._trace, self._notify = reports
        self.facts = StepFacts(step=0)

    def begin_step(self, step: int, rates: Sequence[float]) -> None:
        """Commands of ``step`` follow."""
        self.facts = StepFacts(step=step, rates=rates)

    def use_derivatives(self, slopes: Mapping[int, Sequence[float]]) -> None:
        """Commands of this step use ``slopes``, by rank."""
        self.facts.slopes = slopes

    def scale_gradients(self, scale: Array | None, *, updates: bool) -> None:
        """``updates`` of this step multiply gradients by ``scale`` (``None``: by nothing), or are left out."""
        self.facts.scale, self.facts.updates = scale, updates

    def end_step(self) -> None:
        """All commands of the step are done."""
        self._norm.end_step(self.facts.step)

    def run(self, replica: StageReplica, commands: Sequence[Command]) -> None:
        """Carry ``commands`` out, one after the other."""
        for command in commands:
            self._run_one(replica, command, replica.names(command.layers))

    def run_early(self, replica: StageReplica, layer: int) -> None:
        """Carry out the commands of ``layer``, unless that has been done in this step."""
        if layer not in replica.begun:
            replica.begun.add(layer)
            self.run(replica, replica.program.ready[layer])

    def _run_one(self, replica: StageReplica, command: Command, names: Sequence[str]) -> None:
        match command:
            case Update() if self.facts.updates:
                self._update(replica, names)
            case Axpy():
                axpy(replica, command, names)
            case Exchange():
                self._exchange(replica, command, names)
            case Mean():
                self._mean(replica, command, names)
            case Aggregate():
                self._aggregate(replica, command, names)
            case Clip() | Damp():
                rescale(replica, command, names)
            case Replay():
                replica.write("gradient", replayed(command, self.facts.slopes, replica.read("parameters", names)))
            case Probe() | Update():
                pass  # measured and sent before the verdict on the step; an update that is left out

    def _aggregate(self, replica: StageReplica, command: Aggregate, names: Sequence[str]) -> None:
        arrived = self._values.end(replica, command, names)
        self._record(replica, command, _nbytes(arrived[0]), None)
        merged, excluded = aggregated(command, arrived, names)
        devices = [self._devices[replica.stage][rank] for rank in excluded]
        if len(devices) > command.faulty:
            raise TrainingError(
                f"step {self.facts.step}: the gradients of {', '.join(devices)} in stage {replica.stage} are not finite numbers, "
                f"with sync.settings.faulty = {command.faulty}: lower the learning rate, or raise faulty"
            )
        self.facts.excluded.update(devices)
        replica.write(command.into, merged)

    def _update(self, replica: StageReplica, names: Sequence[str]) -> None:
        scale = self.facts.scale
        if self._norm.wanted:
            self._norm.record(replica.stage, replica.runner.gradient_views(names))
            scale = self._norm.scale()
        replica.runner.update(self.facts.rates, scale, names)

    def _exchange(self, replica: StageReplica, command: Exchange, names: Sequence[str]) -> None:
        if replica.world.rank in command.group:
            replica.exchanges.since[command.tag] = self._trace.now()
        way = self._means if command.codec == "identity" and command.weights else self._values
        way.begin(replica, command, names)

    def _mean(self, replica: StageReplica, command: Mean, names: Sequence[str]) -> None:
        if command.tag in replica.exchanges.means:
            ended, outcome = self._means.end(replica, command)
            self._report_mean(replica, command, ended, outcome)
            self._means.write(replica, command, ended)
            return
        arrived = self._values.end(replica, command, names)
        self._record(replica, command, _nbytes(arrived[0]), None)
        # The own parameters are copied: the mean may be written into their memory.
        own = {name: np.array(a) for name, a in replica.read("parameters", names).items()} if command.into == "parameters" else {}
        mean = weighted_mean(replica, command, arrived)
        if self._traits.sent is Sent.PSEUDO_GRADIENTS and len(command.group) > 1:
            own = arrived[command.group.index(replica.world.rank)]
        if own:
            self._diverged(replica, names, norm_of({name: mean[name] - own[name] for name in own}), None)
        replica.write(command.into, mean)

    def _report_mean(self, replica: StageReplica, command: Mean, ended: MeanUnderWay, outcome: Outcome) -> None:
        nbytes = _nbytes(ended.arrays)
        self._record(replica, command, nbytes, outcome.end - outcome.begin)
        if replica.times is not None:
            replica.times.exchanged(nbytes, outcome.begin, outcome.end)
        # One of those that came reports who was missing.
        if outcome.missing and replica.world.rank == min(set(command.group) - outcome.missing, default=-1):
            names = ", ".join(self._devices[replica.stage][rank] for rank in sorted(outcome.missing))
            step = self.facts.step
            self._notify(f"step {step}: an exchange of stage {replica.stage} ended without {names}; the others' weights grew")
        if self._traits.drifts:
            whole = float(np.sqrt(outcome.norm)) if command.into == "parameters" else None
            self._diverged(replica, list(ended.arrays), float(np.sqrt(outcome.gap)), whole)

    def _diverged(self, replica: StageReplica, names: Sequence[str], gap: float, norm: float | None) -> None:
        """The own values of ``names``, or what moved them, were ``gap`` from the mean; ``norm``: of the values, if known."""
        norm = norm_of(replica.read("parameters", names)) if norm is None else norm
        self.facts.divergence = max(gap / max(norm, 1e-30), self.facts.divergence or 0.0)

    def _record(self, replica: StageReplica, command: Mean | Aggregate, nbytes: int, seconds: float | None) -> None:
        """Put an exchange on the trace; ``seconds``: how long it took (``None``: until now)."""
        begin = replica.exchanges.since.pop(command.tag, None)
        if begin is not None:  # it began in this attempt
            took = self._trace.now() - begin if seconds is None else seconds
            span = Span(
                what=SpanKind.EXCHANGE,
                name=f"layers {ranges(command.layers)}",
                start=begin,
                seconds=max(took, 0.0),
                stage=replica.stage,
                step=self.facts.step,
                nbytes=nbytes,
            )
            self._trace.add(span)


def _nbytes(arrays: Mapping[str, Array]) -> int:
    return sum(array.nbytes for array in arrays.values())
