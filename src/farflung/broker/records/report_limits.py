"""What workers may report of steps and evaluations. The job and the plan bound it, so that a lying worker takes little memory."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from itertools import chain

from farflung.errors import WireError
from farflung.job.spec import JobSpec
from farflung.messages.conversions.step_reports import StepReport

__all__ = ["ReportLimits"]

#: Evaluations of one step: one of ``evaluate.every``, and one at the end of the run.
_EVALUATIONS = 2


class ReportLimits:
    """Checks the reports of one attempt. Not thread-safe."""

    def __init__(self, job: JobSpec, stages: int | None = None, outputs: Collection[str] | None = None) -> None:
        """``stages``: of the plan. ``outputs``: the names of what an evaluation gives (``None``: not known, so not checked)."""
        self.job, self._stages = job, stages
        self._outputs = None if outputs is None else frozenset(outputs)
        #: The last step that was evaluated, and how often.
        self._evaluated = (-1, 0)

    def check_step(self, report: StepReport) -> None:
        """Check that ``report`` fits the job and the plan.

        Raises:
            WireError: it has more losses than the job has micro-batches, or names a stage that the plan does not have.
        """
        if len(report.losses) > len(self.job.micro_batch_sizes):
            losses, most = len(report.losses), len(self.job.micro_batch_sizes)
            raise WireError(f"a report of step {report.step} has {losses} losses, and the job has {most} micro-batches")
        if self._stages is None:
            return
        pairs = chain.from_iterable(chain(report.sent, report.dense, report.codecs, _digested(report)))
        stage = max(chain(pairs, report.stage_busy, (stage for stage, _ in report.helped)), default=0)
        if stage >= self._stages:
            raise WireError(f"a report of step {report.step} names stage {stage}, and the plan has {self._stages}")

    def check_evaluation(self, step: int, outputs: Mapping[str, float], latest: int) -> None:
        """Check an evaluation after ``step`` steps; ``latest``: the last step that an honest worker may have reached.

        Raises:
            WireError: the outputs have no loss or are not those of the job, or the step was evaluated or can't be reached yet.
        """
        if "loss" not in outputs:
            raise WireError(f"an evaluation must have a loss, this one has {', '.join(outputs)[:200] or 'nothing'}")
        if self._outputs is not None and (strange := outputs.keys() - self._outputs):
            raise WireError(f"an evaluation has {min(strange)!r:.60}, which the job does not evaluate")
        last, times = self._evaluated
        if not last <= step <= latest or (step == last and times == _EVALUATIONS):
            raise WireError(f"an evaluation of step {step} came after that of step {last}; at most step {latest} is reached")
        self._evaluated = step, times + 1 if step == last else 1


def _digested(report: StepReport) -> Iterator[tuple[int, int]]:
    """Yield the pairs of stages of which ``report`` has digests."""
    for digests in (report.gave, report.took, *(found for audit in report.audits for found in (audit.took, audit.gave))):
        for place in digests:
            yield place.source, place.target
