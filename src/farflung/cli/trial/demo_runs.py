"""What ``farflung demo`` trains: one small language model, the same job under several codecs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from farflung.job import JobSpec
from farflung.job.spec import (
    CheckpointSpec,
    CodecSpec,
    DataSpec,
    EvaluateSpec,
    GenerateSpec,
    ModelSpec,
    OptimizerSpec,
    PlanSpec,
    ScheduleSpec,
)

__all__ = ["PRESET", "VICTIM", "DemoRun", "demo_job", "demo_runs", "share_of_time"]

#: Two regions of two workers, 8 Mbit/s and 20 ms apart.
PRESET = "local4-two-regions"
#: The worker that the demo kills: at the end of the pipeline, where the loss is computed.
VICTIM = "west-1"
_SEED = 1
#: Steps get slower than expected where a machine is not equally busy all the time.
_MARGIN = 1.25
#: A run that loses a worker makes so many steps however slow the machine is: some before the loss, and some after it.
_LEAST = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoRun:
    """One training run: at most ``steps`` steps and ``seconds`` seconds (whichever ends first).

    ``victim``: the worker that the demo kills in the middle of the run (empty: none). ``text``: the run ends with a text.
    """

    label: str
    codec: CodecSpec
    steps: int
    seconds: float
    text: bool = False
    victim: str = ""

    @property
    def death(self) -> int:
        """The number of completed steps after which the victim dies: late, so that most steps have all workers."""
        return max(1, self.steps * 6 // 10)

    def within(self, limit: float, before: Sequence[float]) -> DemoRun:
        """This run with so few steps that it ends by itself in ``limit`` seconds, if it shall write a text: a run that is stopped
        writes none. ``before``: seconds of a step of each run before, dense first.

        int4 computes as much as the run before it, and takes a sixth of dense's time on a link: fewer bytes, the same latency.
        """
        if not self.text or not before or not before[-1] > 0:
            return self
        expected = _MARGIN * max(before[-1], before[0] / 6)
        return replace(self, steps=max(self.least, min(self.steps, int(limit / expected))))

    @property
    def least(self) -> int:
        """The number of steps that the run makes however long they take."""
        return min(self.steps, _LEAST) if self.victim else 1

    @property
    def patience(self) -> float:
        """How many times its limit the run may take before it is stopped."""
        return 1.25 if self.text else 1.1 if self.codec.name == "identity" else 1.0


def demo_runs(*, quick: bool, steps: int | None) -> tuple[DemoRun, ...]:
    """Dense, AdaTopK at the published ratio, and the setting that reaches a loss first (docs/demo.md has the measurements).

    ``steps`` bounds every run. Dense steps are some ten times as long as the others, so dense gets fewer of them.
    """
    dense = DemoRun(label="dense", codec=CodecSpec(name="identity"), steps=24, seconds=45)
    sparse = DemoRun(label="adatopk 100", codec=CodecSpec(name="adatopk", ratio=100, where="slow"), steps=40, seconds=22)
    best = DemoRun(label="int4", codec=CodecSpec(name="int4", where="slow"), steps=110, seconds=60, text=True, victim=VICTIM)
    runs = (dense, sparse, best)
    limits = (4, 6, 8) if quick else tuple(run.steps for run in runs)
    return tuple(replace(run, steps=min(limit, steps or limit)) for run, limit in zip(runs, limits, strict=True))


def demo_job(run: DemoRun, *, quick: bool) -> JobSpec:
    """The job of ``run``; but for codec, number of steps and generated text it is the same for all.

    The learning rate is constant after its warm-up, so that runs of different lengths do the same in their common steps.
    ``equal_number`` makes all four workers take part: the other planner, op_fence, would keep a model as small as this inside
    one region, where the network is fast.
    """
    width, sequence, rows = (64, 32, 2) if quick else (96, 64, 8)
    return JobSpec(
        name=run.label,
        seed=_SEED,
        steps=run.steps,
        micro_batch_sizes=(rows,) * 4,
        # with a number of workers the run would wait for a new machine after a loss; without one it continues with the others
        workers=None if run.victim else 4,
        # also for a worker that missed its heartbeats on a busy machine: it joins again by itself
        on_loss="recover",
        checkpoint=CheckpointSpec(recover_every=20),
        model=ModelSpec(
            recipe="gpt", args={"vocab": 256, "sequence": sequence, "layers": 4, "width": width, "heads": 4, "tied": False}
        ),
        data=DataSpec(
            kind="text",
            path="{stdlib}",
            glob="json/*.py" if quick else "**/*.py",
            tokenizer="bytes",
            sequence=sequence,
            eval_fraction=0.05 if quick else 0.02,
        ),
        optimizer=OptimizerSpec(name="adamw", lr=3e-3, weight_decay=0.1, clip_norm=1.0),
        schedule=ScheduleSpec(name="constant", warmup=min(10, run.steps)),
        codec=run.codec,
        plan=PlanSpec(planner="equal_number"),
        evaluate=EvaluateSpec(batches=2 if quick else 4),
        generate=GenerateSpec(prompt="def ", tokens=20 if quick else 80) if run.text else GenerateSpec(),
    )


def share_of_time(runs: Sequence[DemoRun], left: float) -> float:
    """Seconds for the first of ``runs`` when ``left`` seconds are left for all: its own limit, or its share on slow machines."""
    return min(runs[0].seconds, max(0.0, left) * runs[0].seconds / sum(run.seconds for run in runs))
