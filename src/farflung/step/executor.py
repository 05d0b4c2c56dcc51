"""The executor: one worker's part in one run, from its first states to its last checkpoint.

One compute thread runs the steps, evaluations and checkpoints. Transport threads fill the inbox (``router``); sender threads
encode and send (``outbox``). The order of additions never depends on arrival (docs/exactness.md).
"""

from __future__ import annotations

from collections.abc import Sequence

from farflung.engines.base import Array, Engine
from farflung.graph.cut import SubGraph
from farflung.messages.conversions.step_reports import StepReport
from farflung.messages.data import (
    Batch,
    EvaluationVote,
    Losses,
    LossScaleState,
    Norms,
    SideValues,
    Slope,
    StepReady,
    Token,
    Value,
    Verdict,
)
from farflung.messages.router import PeerRouter
from farflung.messages.schema import Message
from farflung.messages.serving import ServedBatch
from farflung.step.context import StepContext
from farflung.step.evaluation.evaluation import Evaluation
from farflung.step.evaluation.generation import generate
from farflung.step.evaluation.serving import Serving
from farflung.step.gradient_check import GradientCheck
from farflung.step.hybrid.stage_server import StageServer
from farflung.step.inbox import Inbox
from farflung.step.optimizer_step import OptimizerStep, StepParts, send_trace
from farflung.step.pipeline import PipelineMode, PipelineParts, TrainingMode
from farflung.step.reduction.gradient_exchange import gradient_exchange
from farflung.step.router import Router
from farflung.step.run_position import RunPosition
from farflung.step.run_setup import Committed, Phase, RunHooks, RunSetup, sender_of
from farflung.step.stages.local_stages import LocalStages
from farflung.step.stages.retained_stages import RetainedStages
from farflung.step.stages.scale_agreement import ScaleAgreement
from farflung.step.stages.state_copies import StateCopies, StateCopy
from farflung.step.step_vote import StepVote
from farflung.step.sync.interpreter import synchronized
from farflung.step.sync.participation import Participation
from farflung.step.two_phase_commit import TwoPhaseCommit
from farflung.step.verification.verification import Verification
from farflung.step.zeroth_order import ZerothOrderMode
from farflung.telemetry.faults import fault_point
from farflung.transports.base import Arrival, Endpoint

__all__ = ["Executor"]


class Executor:
    """One worker's part in one run. ``prepare`` and ``run`` are called on the same thread; ``receive`` on any."""

    def __init__(
        self,
        setup: RunSetup,
        endpoint: Endpoint,
        hooks: RunHooks,
        engine: Engine,
        device: str = "cpu",
        *,
        keep_gradients: bool = False,
    ) -> None:
        """``device``: the device that computes. ``keep_gradients``: see ``gradients``."""
        self.setup = setup
        self._context = StepContext.open(setup, endpoint, hooks, engine, device)
        self._position = RunPosition(setup.first_step, self._context.inbox)
        self.stages = LocalStages(setup)
        self._evaluation = Evaluation(self._context, self.stages, self._position)
        #: Of a served model, what ``run`` is for one that trains.
        self.serving = Serving(self._context, self.stages) if setup.graph.serves else None
        self._parts, self._router = self._wire()
        #: Units of other workers that are verified here.
        self.verification = self._parts.verification
        self._step = OptimizerStep(self._context, self.stages, self._parts, keep_gradients=keep_gradients)
        #: Whether the last step asked for a checkpoint.
        self._save = False

    def _wire(self) -> tuple[StepParts, Router]:
        """Make the parts of a step as the plan asks, and register which messages each of them takes."""
        context, stages, setup = self._context, self.stages, self.setup
        verification = Verification(context, stages)
        sums = gradient_exchange(setup, context.inbox, context.outbox, context.transfer.spoilt, verification.part)
        reports = context.note, context.trace, context.transfer.gauge
        sync = synchronized(setup, context.inbox, context.outbox, reports, stages.loss_scale)
        participation = Participation(setup, sync)
        copies = StateCopies(context, stages)
        vote = StepVote(context, copies.due, participation.due)
        faulty = 0 if sync is None else sync.strategy.traits.faulty
        check, commit = GradientCheck(context, stages, faulty), TwoPhaseCommit(context, stages)
        messages = PeerRouter()
        messages.register(Losses, vote.receive_losses)
        messages.register(Verdict, vote.receive_verdict)
        messages.register(Norms, check.receive)
        messages.register(StepReady, commit.receive)
        messages.register(EvaluationVote, self._evaluation.receive)
        scale = ScaleAgreement(context, stages)
        messages.register(LossScaleState, scale.receive)
        messages.register(Token, lambda _, token: context.inbox.put(("token", token.step, token.index), token))
        messages.register(Value, context.transfer.receive)
        messages.register(SideValues, context.transfer.receive_side)
        messages.register(Batch, context.transfer.receive_batch)
        sums.register(messages)
        verification.register(messages)
        copies.register(messages)
        if sync is not None:
            sync.register(messages)
        if self.serving is not None:
            messages.register(ServedBatch, self.serving.receive)
        mode: TrainingMode
        if setup.job.plan.helpers:
            mode = StageServer(context, stages, vote, sums)
            mode.register(messages)
        elif sync is not None and sync.strategy.traits.zeroth_order is not None:
            mode = ZerothOrderMode(context, stages, vote, sync, sync.strategy.traits.zeroth_order)
            messages.register(Slope, mode.receive)
        else:
            mode = PipelineMode(
                PipelineParts(context=context, stages=stages, vote=vote, sums=sums, sync=sync, verification=verification)
            )
        parts = StepParts(
            scale=scale,
            sync=sync,
            participation=participation,
            mode=mode,
            vote=vote,
            check=check,
            sums=sums,
            commit=commit,
            copies=copies,
            verification=verification,
        )
        return parts, Router(context, self._position, messages)

    # -- life ---------------------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Open the stages and load their first states.

        Raises:
            FarflungError: a graph is refused, data are missing, or states do not fit.
        """
        context = self._context
        self.stages.open(context.engine, context.device)
        self._step.begin_states(self._position.step)
        samples = context.transfer.samples
        samples.load(context.hooks.first_optimizer(samples.marks) if samples.marks else {})
        self._parts.mode.open()

    def run(self) -> None:
        """Run all steps, with evaluations and checkpoints where the job wants them.

        Raises:
            TrainingError: the loss is not finite and the job says stop, or the run was aborted.
            FarflungError: what ``abort`` was given.
        """
        setup, job, sync = self.setup, self.setup.job, self._parts.sync
        saved = (self.step if setup.checkpoint_step is None else setup.checkpoint_step) or -1
        if setup.keeps(self.step) and saved < self.step:
            self._checkpoint()  # the worker may have been lost before it was complete
            saved = self.step
        stop = setup.recovered and setup.evaluates(self.step) and self._evaluate()
        drifts, drained = sync is not None and sync.drifts, False
        while self.step < job.steps and not stop:
            stop = self._train_step()
            drained = stop and self._save  # another attempt continues: the replicas do not end here
            evaluates = setup.evaluates(self.step)
            stop = (drifts and evaluates and self._evaluate()) or stop  # before the checkpoint: it may end the run
            ends = drifts and not drained and (stop or self.step == job.steps)  # its checkpoint comes when replicas agree
            if (self._save or setup.keeps(self.step)) and not ends:
                self._checkpoint()
                saved = self.step
            stop = (evaluates and not drifts and self._evaluate()) or stop
        if sync is not None and drifts and not drained:
            sync.agree(self.step)
            saved = -1  # the checkpoint of an earlier attempt is not what replicas agree on now
        if (job.checkpoint.at_end or self._save or setup.keeps(self.step)) and saved != self.step:
            self._checkpoint()
        if job.evaluate.batches and not stop:
            stop = self._evaluate()
        if job.generate.tokens and not stop:
            generate(self._context, self.stages, self.step)
        self._context.outbox.flush()
        send_trace(self._context)
        for cost in (self.server.cost if self.server is not None else "", self._parts.copies.cost):
            if cost:
                self._context.note(f"{setup.device}: {cost}", detail=True)

    def abort(self, error: BaseException) -> None:
        """End the run from any thread; ``run`` raises ``error``, wherever it waits: for a value, for a link, for a flush."""
        self.inbox.abort(error)
        self._context.outbox.abort(error)

    def close(self) -> None:
        """Stop the sender threads."""
        self._parts.mode.close()
        self._context.outbox.close()
        self._parts.copies.close()
        self.inbox.clear()

    def receive(self, peer: str, message: Message, nbytes: int = 0) -> None:
        """Store a message of this run (transport thread); a batch that is due only later waits here.

        ``nbytes``: of the frame (0: not known).
        """
        self._router.receive(peer, message, nbytes)

    def on_arrival(self, arrival: Arrival) -> None:
        """Log for the trace when a frame came in (transport thread)."""
        self._context.frames.arrived(arrival)

    # -- what others see ----------------------------------------------------------------------------------------------

    @property
    def step(self) -> int:
        """Completed steps."""
        return self._position.step

    @property
    def inbox(self) -> Inbox:
        """Where received values wait."""
        return self._context.inbox

    def awaited(self) -> tuple[tuple[str, ...], float]:
        """Return the peers for whose messages the compute thread waits, and for how many seconds it has waited (any thread)."""
        keys, seconds = self.inbox.awaited()
        senders = {sender for key in keys if (sender := sender_of(self.setup, key)) != self.setup.device}
        return tuple(sorted(senders - {""})), seconds

    @property
    def server(self) -> StageServer | None:
        """The server of this worker's stages, in a hybrid plan."""
        mode = self._parts.mode
        return mode if isinstance(mode, StageServer) else None

    @property
    def gradients(self) -> dict[str, Array]:
        """The gradients of the last step, before clipping; empty unless ``keep_gradients`` was given."""
        return self._step.gradients

    @property
    def reports(self) -> tuple[StepReport, ...]:
        """The reports of the last steps, with the losses of all workers."""
        return self._parts.commit.reports

    def local_pieces(self, phase: Phase, micro_batch: int) -> Sequence[SubGraph]:
        """Return the sub-graphs that this worker computes for one micro-batch."""
        if phase is Phase.EVAL:
            return self._evaluation.local_pieces
        setup = self.setup
        return [setup.subgraphs[index] for index in setup.own_stages if setup.places[index][micro_batch] == setup.device]

    def retained(self) -> list[StateCopy | RetainedStages]:
        """Return the states that this worker retains now that its part has ended (empty: training cannot continue from them)."""
        if self.serving is not None:
            return []  # the next attempt reads the weights from their source
        if self._context.engine.lost:  # with the states; the copies of other workers' states lie in this process
            return [*self._parts.copies.retained()] if self._parts.commit.survives else []
        own = self._parts.commit.retained()
        return [] if own is None else [*self._parts.copies.retained(), own]

    # -- steps --------------------------------------------------------------------------------------------------------

    def _train_step(self) -> bool:
        """Run one step; return whether it is the last."""
        end = self._step.run(self.step)
        self._save = end.save
        stop = end.stop or self._ends_here(Phase.TRAIN)
        self._position.step_done()
        return stop

    def _evaluate(self) -> bool:
        """Evaluate; return whether the run ends here."""
        return self._evaluation.run() or self._ends_here(Phase.EVAL)

    def _ends_here(self, phase: Phase) -> bool:
        """Return whether the run ends after the step (or evaluation) that is just done; wait until that is known."""
        hooks, answers = self._context.hooks, list[bool]()

        def known() -> bool:
            answer = hooks.ends_after(phase, self.step)
            answers.extend([] if answer is None else [answer])
            return answer is not None

        if not known():
            self.inbox.wait_until(known)
        return answers[-1]

    def _checkpoint(self) -> None:
        fault_point("checkpoint.before_shard", step=self.step, device=self.setup.device)
        samples = self._context.transfer.samples
        for device in () if samples.on else self.stages.reproduced():
            self._context.hooks.on_copy(self.step, device, *self.stages.shard(device))
        states, optimizer = self.stages.shard(self.setup.device)
        if self._parts.sync is not None:
            optimizer |= self._parts.sync.retained()
        if samples.on:
            self.inbox.wait_until(lambda: samples.settled)
            optimizer |= samples.kept()
        committed = Committed(steps=self.stages.committed, rested=self._step.rested, left_out=self._step.left_out)
        self._context.hooks.on_checkpoint(self.step, committed, states, optimizer)
        self.stages.saved()
