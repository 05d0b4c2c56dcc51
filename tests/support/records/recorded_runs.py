"""Run folders as a broker writes them, with a recovery that makes three steps again."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from farflung.job import make_job, to_json
from farflung.job.spec import ReportSpec
from farflung.telemetry import EvaluationRecord, RecoveryRecord, RunFolder, RunResult, StepRecord
from farflung.tracking import TrackedRun

STEPS = 20


class RecordingTracker:
    """Remembers all calls. ``stored``: what ``begin`` answers. ``fails``: the next calls of ``log`` raise these."""

    def __init__(self, stored: Mapping[str, int] | None = None, fails: tuple[Exception, ...] = ()) -> None:
        self.stored, self.fails = stored, list(fails)
        self.run: TrackedRun | None = None
        self.logged: list[tuple[int, Mapping[str, float]]] = []
        self.texts: list[tuple[int, str, str]] = []
        self.flushed = self.begun = 0
        self.status = ""

    def __call__(self, spec: ReportSpec) -> RecordingTracker:
        return self

    def begin(self, run: TrackedRun) -> Mapping[str, int] | None:
        self.run = run
        self.begun += 1
        return self.stored

    def log(self, step: int, values: Mapping[str, float]) -> None:
        if self.fails:
            raise self.fails.pop(0)
        self.logged.append((step, values))

    def text(self, step: int, name: str, text: str) -> None:
        self.texts.append((step, name, text))

    def flush(self) -> None:
        self.flushed = len(self.logged)

    def end(self, status: str) -> None:
        self.status = status

    def steps(self, name: str) -> list[int]:
        """The steps that have a value ``name``, in the order in which they came."""
        return [step for step, values in self.logged if name in values]


def step_record(step: int) -> StepRecord:
    return StepRecord(
        step=step,
        loss=3.0 / (step + 1),
        seconds=0.1,
        elapsed=0.1 * step,
        samples=4,
        tokens=64,
        learning_rate=1e-3,
        predicted_seconds=0.09,
        link_bytes={(0, 1): 100},
        dense_bytes={(0, 1): 400},
        grad_norm=1.5,
    )


def begin_run(root: Path, **report: object) -> RunFolder:
    """The folder of a run of 20 steps that has not made one."""
    root.mkdir(parents=True)
    folder = RunFolder(root)
    folder.job.write_text(to_json(make_job({"name": "gpt", "steps": STEPS, "report": report})))
    return folder


def add_steps(folder: RunFolder, first: int, end: int) -> None:
    """Steps ``first`` to ``end`` (exclusive), with an evaluation after each fifth one."""
    for step in range(first, end):
        folder.append(step_record(step))
        if step % 5 == 4:
            folder.append(EvaluationRecord(step=step + 1, elapsed=0.1, loss=2.0, perplexity=7.4))


def add_recovery(folder: RunFolder, step: int, attempt: int = 2) -> None:
    record = RecoveryRecord(
        step=step,
        attempt=attempt,
        replayed=3,
        pause=1.5,
        elapsed=2.0,
        cause="attic-pc was lost",
        devices=("a", "b"),
        source="memory",
    )
    folder.append(record)


def end_run(folder: RunFolder) -> None:
    folder.result.write_text(RunResult(status="finished", steps=STEPS, seconds=3.0, sample="once upon a time").to_json())


def recorded_run(root: Path, **report: object) -> RunFolder:
    """A whole run: after 12 steps a worker is lost, and the run continues after step 9."""
    folder = begin_run(root, **report)
    add_steps(folder, 0, 12)
    add_recovery(folder, 9)
    add_steps(folder, 9, STEPS)
    end_run(folder)
    return folder
