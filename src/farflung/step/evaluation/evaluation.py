"""Evaluation during and after training: means of the evaluation graph's outputs over the job's evaluation micro-batches."""

from __future__ import annotations

from collections.abc import Sequence

from farflung.errors import FailedBatch
from farflung.graph.cut import SubGraph
from farflung.messages.data import EvaluationVote
from farflung.step.context import StepContext
from farflung.step.evaluation.forward_pass import ForwardGraph, open_graph, run_forward
from farflung.step.failed_batch import blaming
from farflung.step.run_position import EVALUATIONS_AHEAD, RunPosition
from farflung.step.run_setup import Phase
from farflung.step.stages.local_stages import LocalStages

__all__ = ["Evaluation"]


class Evaluation:
    """The evaluations of one worker (compute thread)."""

    def __init__(self, context: StepContext, stages: LocalStages, position: RunPosition) -> None:
        self._context, self._stages, self._position = context, stages, position
        #: Opened by the first evaluation.
        self._opened: ForwardGraph | None = None

    @property
    def local_pieces(self) -> Sequence[SubGraph]:
        """The sub-graphs that this worker evaluates, once the first evaluation has begun."""
        return () if self._opened is None else self._opened.local

    def run(self) -> bool:
        """Give the means to ``hooks.on_evaluation``; return whether somebody asked for the run's end meanwhile.

        Workers upstream run at most a few micro-batches ahead of the worker that makes the loss, so memory stays bounded. That
        worker also decides, after each micro-batch, whether the evaluation ends early. Then all workers end after the same
        micro-batch, those under way are finished, and nothing is reported.
        """
        context, setup = self._context, self._context.setup
        if setup.eval_graph is None:
            return False
        if self._opened is None:
            self._opened = open_graph(context, self._stages, setup.eval_graph, Phase.EVAL)
        work, batches, done = self._opened, setup.job.evaluate.batches, 0
        leads = setup.primary(work.pieces[work.maker("loss")][0]) == setup.device
        verdicts = _EndVerdicts(context, self._position.step, leads=leads)
        totals: dict[str, float] = {}
        while done < batches and not (done >= EVALUATIONS_AHEAD and verdicts.ends(done - EVALUATIONS_AHEAD)):
            with blaming(FailedBatch(self._position.step, done, evaluates=True)):
                outputs = run_forward(context, work, (self._position.step, done))
            for name, value in outputs.items():
                if value.size == 1:
                    totals[name] = totals.get(name, 0.0) + float(value.reshape(()))
            verdicts.announce(done)
            done += 1
            self._position.evaluated(done)
        self._position.evaluation_done()
        last = [verdicts.ends(index) for index in range(max(0, done - EVALUATIONS_AHEAD), done)]  # takes all messages
        if leads and done < batches:
            context.note(f"stopped: the evaluation was left out after {done} of its {batches} micro-batches")
        elif leads:
            context.hooks.on_evaluation(self._position.step, {name: total / batches for name, total in totals.items()})
        return any(last)

    def receive(self, peer: str, message: EvaluationVote) -> None:
        """Store whether the evaluation ends after a micro-batch (transport thread)."""
        self._context.inbox.put(("eval-done", message.step, message.index), message.stop)


class _EndVerdicts:
    """After each micro-batch, the worker that makes the loss reports to all others whether the evaluation ends."""

    def __init__(self, context: StepContext, step: int, *, leads: bool) -> None:
        self._context, self._step, self._leads = context, step, leads
        self._known: list[bool] = []

    def announce(self, index: int) -> None:
        """Micro-batch ``index`` is done: the leader sends its verdict."""
        if not self._leads:
            return
        self._known.append(self._context.hooks.stop_requested())
        for peer in self._context.setup.peers:
            vote = EvaluationVote(run=self._context.setup.run, step=self._step, index=index, stop=self._known[index])
            self._context.transfer.post(peer, vote)

    def ends(self, index: int) -> bool:
        """Return the verdict after micro-batch ``index``; workers other than the leader wait for it. Ask in ascending order."""
        if not self._leads and index == len(self._known):
            self._known.append(self._context.inbox.take(("eval-done", self._step, index)))
        return self._known[index]
