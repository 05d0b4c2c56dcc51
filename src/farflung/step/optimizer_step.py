"""One optimizer step of one worker: losses and gradients, sums over replicas, the vote, the two-phase commit, the report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

from farflung.clock import precise_time
from farflung.engines.base import Array
from farflung.job.rates import rates
from farflung.messages.conversions.step_reports import StepReport
from farflung.messages.data import Verdict
from farflung.step.context import StepContext
from farflung.step.gradient_check import GradientCheck
from farflung.step.pipeline import TrainingMode
from farflung.step.reduction.gradient_exchange import GradientExchange
from farflung.step.run_setup import Phase
from farflung.step.stages.local_stages import LocalStages
from farflung.step.stages.scale_agreement import ScaleAgreement
from farflung.step.stages.state_copies import StateCopies
from farflung.step.step_meter import StepMeter
from farflung.step.step_vote import StepVote
from farflung.step.sync.interpreter import Synchronizer
from farflung.step.sync.participation import Participation
from farflung.step.tied_gradients import exchange_uses
from farflung.step.transfer.outbox import LinkUse
from farflung.step.two_phase_commit import TwoPhaseCommit
from farflung.step.verification.verification import Verification
from farflung.telemetry.events import SpanKind
from farflung.telemetry.faults import fault_point

__all__ = ["OptimizerStep", "StepEnd", "StepParts", "send_trace"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepParts:
    """The parts of a step, in the order in which it uses them. ``sync``: None: gradients are summed over replicas."""

    scale: ScaleAgreement
    sync: Synchronizer | None
    participation: Participation
    mode: TrainingMode
    vote: StepVote
    check: GradientCheck
    sums: GradientExchange
    commit: TwoPhaseCommit
    copies: StateCopies
    verification: Verification


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEnd:
    """What a step decided for the run: ``stop`` after it, and whether to ``save`` a checkpoint."""

    stop: bool
    save: bool


class OptimizerStep:
    """The steps of one worker, one after the other (compute thread)."""

    def __init__(self, context: StepContext, stages: LocalStages, parts: StepParts, *, keep_gradients: bool = False) -> None:
        """``keep_gradients``: store the gradients of the job's last step, unclipped, in ``gradients``."""
        self._context, self._stages, self._parts = context, stages, parts
        self._keep_gradients = keep_gradients
        self.gradients: dict[str, Array] = {}
        #: Samples of applied steps that nobody computed, because replicas did not take part.
        self.rested = 0
        #: Samples of the own pipeline in steps that it left out alone; counted by the worker that makes its losses.
        self.left_out = 0

    def begin_states(self, step: int) -> None:
        """Load the states that the run begins with; ``step`` steps are done."""
        self._open_sync(step, self._stages.load_first(self._context.hooks))

    def _open_sync(self, step: int, slots: Mapping[str, Array]) -> None:
        if self._parts.sync is not None:
            self._parts.sync.open(self._stages.bases, step, slots)

    def run(self, step: int) -> StepEnd:
        """Run ``step``.

        Raises:
            TrainingError: a loss or gradient is not finite, and the job says stop.
            BaseException: the error that ended the run meanwhile.
        """
        meter, parts, context = StepMeter(), self._parts, self._context
        parts.scale.agree(step)
        setup, trace = context.setup, context.trace
        context.transfer.samples.begin(step)
        if parts.sync is not None:
            parts.sync.begin(step, rates(setup.job, step))
        parts.commit.begin()
        rests = not parts.participation.takes_part(step, setup.device)
        if rests:
            self._rest(step)
        else:
            parts.mode.run(step, meter)
        begin = trace.now()
        with meter.waiting():
            # The order matters from here on. The vote comes first: its messages travel while sums are added.
            losses = parts.vote.gather(step)
            if parts.sync is None:
                parts.sums.finish(step, self._stages.bases)
            # After the sums: the uses of a tied parameter are added as totals over the replicas.
            if parts.mode.makes_gradients and not rests:
                exchange_uses(context, self._stages, step)
            # The norm needs complete gradients. Sending it reports that this worker is prepared.
            verdict: Verdict = context.inbox.take(("verdict", step))
            norm, scale = (None, None) if rests or not self._parts.check.needs_norm else self._norm(step)
        on_nan = self._parts.check.judge(step, verdict, norm)
        with meter.waiting():
            if norm is None:
                self._parts.check.check_local(step)
                parts.commit.prepared()
                parts.commit.agree(step)
        trace.note(SpanKind.WAIT, "for the end of the step", begin, step=step)
        fault_point("worker.before_update", step=step, device=setup.device)
        parts.verification.before_update(step)
        begin = trace.now()
        with meter.computing(setup.own_stages[0]):
            self._commit(step, scale, on_nan)
            if verdict.copy_states:
                parts.copies.take(step)
        trace.note(SpanKind.COMPUTE, "update", begin, step=step, stage=setup.own_stages[0])
        self._report(step, meter, losses, (verdict, norm, on_nan))
        parts.verification.end_step(step)
        fault_point("worker.after_update", step=step, device=setup.device)
        return StepEnd(stop=verdict.stop, save=verdict.save)

    def _rest(self, step: int) -> None:
        """Take no part in ``step``: drop the data that the submitter sends for it."""
        setup = self._context.setup
        if setup.job.data.kind == "caller":
            for index in setup.own_stages:
                replica = next(r for r in setup.plan.replicas_of(index) if r.device == setup.device)
                for micro_batch in replica.micro_batches:
                    self._context.data(setup.subgraphs[index], Phase.TRAIN, step, micro_batch)

    def _norm(self, step: int) -> tuple[float, Array | None]:
        """Exchange norms, which also report to all workers that this one is prepared."""
        norms = self._parts.check.local_norms()
        self._parts.commit.prepared()  # before the norms leave: a worker that gets them may commit the step
        fault_point("worker.prepared", step=step, device=self._context.setup.device)
        return self._parts.check.exchange(step, norms)

    def _commit(self, step: int, scale: Array | None, on_nan: str | None) -> None:
        """The second phase: all workers are prepared."""
        parts = self._parts
        if on_nan is None:
            if self._keep_gradients and step == self._context.setup.job.steps - 1:
                found = [item for runner in self._stages.bases.values() for item in runner.gradients().items()]
                self.gradients = {name: self._stages.loss_scale.unscaled(gradient) for name, gradient in found}
            parts.commit.apply(step, scale, None if parts.sync is None else parts.sync.finish)
            self.rested += parts.participation.rested(step)
        elif on_nan == "skip":
            parts.commit.skip(step, None if parts.sync is None else partial(parts.sync.finish, None, updates=False))
            if parts.sync is not None:  # the step counts for the other pipelines
                self.rested += parts.participation.rested(step)
                self.left_out += parts.participation.own_samples
            parts.scale.report(step)
        else:
            self._open_sync(step, self._stages.roll_back(self._context.hooks))
            parts.commit.rolled_back(step)

    def _report(
        self, step: int, meter: StepMeter, losses: Mapping[int, float], ended: tuple[Verdict, float | None, str | None]
    ) -> None:
        """Store the step's report, and give it to the hooks once its last frame has been encoded.

        ``ended``: the verdict, the norm of the gradients, and what was done instead of an update (see ``GradientCheck.judge``).
        """
        verdict, norm, instead = ended
        context, participation, sync = self._context, self._parts.participation, self._parts.sync
        ordered = tuple(losses[index] for index in sorted(losses))
        everyone = verdict.losses
        busy = dict(meter.busy)
        gave, took, audits = self._parts.verification.take_report(step)
        report = StepReport(
            step=step,
            seconds=precise_time() - meter.begin,
            busy=sum(busy.values()),
            wait=meter.wait,
            sent={},
            dense={},
            stage_busy=busy,
            loss=participation.mean(step, ordered) if ordered else None,
            losses=ordered,
            samples=participation.samples(step),
            skipped=instead is not None and sync is None,
            left_out=participation.own_samples if instead is not None and sync is not None else 0,
            rate=rates(context.setup.job, step)[len(context.setup.job.optimizer.groups)],
            grad_norm=norm,
            divergence=None if sync is None else sync.divergence,
            excluded=frozenset() if sync is None else sync.excluded,
            helped=dict(meter.helped),
            spoilers=frozenset({context.transfer.spoilt.source(step)} - {"", context.setup.device}),
            gave=gave,
            took=took,
            audits=audits,
        )
        # Logged before it is sent: if this worker is lost, another one has the losses of the step.
        self._parts.commit.log(report, everyone, participation.mean(step, everyone))

        def send(use: LinkUse) -> None:
            codecs = context.transfer.gauge.take(step)
            context.hooks.on_step(replace(report, sent=use.sent, dense=use.dense, codecs=codecs))
            send_trace(context)

        context.outbox.when_sent(step, send)


def send_trace(context: StepContext) -> None:
    """Give the spans of the trace so far to the hooks."""
    spans, lost = context.trace.drain()
    if spans or lost:
        context.hooks.on_trace(spans, lost)
