"""The end of ``farflung demo``: the recovery from the killed worker, a summary, and what to do next."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from farflung.cli.trial.demo_results import Comparison, best_of
from farflung.telemetry import RecoveryRecord, StepRecord
from farflung.units import Seconds, counted
from farflung.web.reports import Run

__all__ = ["demo_facts", "last_lines", "recovery_lines"]

#: The first steps after a recovery fill the pipeline and caches again.
_WARM = 1
_SOURCES = {
    "memory": "the memory of the remaining workers",
    "copies": "the copy of its stage on another worker",
    "checkpoint": "the newest checkpoint",
    "start": "the first weights",
}


def recovery_lines(run: Run) -> str:
    """Return lines on the last recovery of ``run`` and on the steps before and after it (empty: there was none)."""
    if not run.recoveries:
        return ""
    recovery = run.recoveries[-1]
    before = [record for record in run.steps if record.step < recovery.step]
    after = [record for record in run.steps if record.step >= recovery.step]
    workers = f"{counted(len(recovery.devices), 'worker')} ({', '.join(recovery.devices)})"
    source = _SOURCES.get(recovery.source, recovery.source)
    lines = [
        f"training continued after {Seconds(recovery.pause)} with {workers}, from {source}; {_repeated(recovery)}",
        f"before: {_steps(before)}",
        f"after:  {_steps(after[_WARM:] or after)}",
    ]
    return "\n".join(lines)


def _repeated(recovery: RecoveryRecord) -> str:
    if not recovery.replayed:
        return "no step had to be repeated"
    return f"{counted(recovery.replayed, 'step')} had to be repeated"


def _steps(records: Sequence[StepRecord]) -> str:
    if not records:
        return "no step"
    predicted = records[-1].predicted_seconds
    expected = "" if predicted is None else f" (predicted {Seconds(predicted)})"
    median = Seconds(statistics.median(record.seconds for record in records))
    numbers = f"step {records[0].step + 1} to {records[-1].step + 1}"
    return f"{numbers}, {median} per step{expected}, loss {records[-1].loss:.2f} at the end"


def last_lines(comparison: Comparison, runs: Sequence[Run], page: Path, folders: Sequence[Path]) -> str:
    """What happened and what to do next, for somebody who has read nothing else.

    ``page`` is the report that compares the runs, which are in ``folders``.
    """
    ended = [run.result is None or run.result.status != "stopped" for run in runs]
    *_, folder = max(zip(ended, map(len, (run.steps for run in runs)), folders, strict=True), key=lambda one: one[:2])
    workers = counted(len(runs[0].plan.devices), "worker process", "worker processes")
    lines = [f"- {workers} trained the same model {len(runs)} times over a slow link, each time with another codec."]
    best, first = best_of(comparison), comparison.outcomes[0] if comparison.outcomes else None
    whole = not any(one.stopped for one in comparison.outcomes)
    if whole and best is not None and first is not None and best is not first and best.matched and first.matched:
        lines.append(f"- {best.label} reached the loss of {first.label} {first.matched / best.matched:.1f} times sooner.")
    for run in runs:
        if run.recoveries:
            lost = run.recoveries[-1]
            lines.append(f"- One worker was killed. The run continued without it after {Seconds(lost.pause)}; {_repeated(lost)}.")
    lines += [
        f"- See losses, step times and links:  open {page} in a browser",
        f"- Let the trained model write:       farflung generate {folder} --prompt 'import '",
        "- Train on your own machines:        farflung broker, farflung join TICKET, farflung submit JOB (docs/machines.md)",
        "- Train your own model from Python:  from farflung import train (README.md)",
    ]
    return "\n".join(lines)


def demo_facts(comparison: Comparison, runs: Sequence[Run], folders: Sequence[Path]) -> dict[str, object]:
    """Return the comparison as JSON values. ``runs``: all runs, in ``folders``; one without a step has no figures.

    Seconds, and bytes per step. ``first``: the label of the run that was the first at the loss of the first run.
    """
    best, outcomes = best_of(comparison), {one.label: asdict(one) for one in comparison.outcomes}
    found = [
        {
            "label": run.label,
            "folder": str(folder),
            **{name: _finite(value) for name, value in outcomes.get(run.label, {}).items()},
            "status": None if run.result is None else run.result.status,
            "text": "" if run.result is None else run.result.sample,
            "recoveries": [asdict(one) for one in run.recoveries],
        }
        for run, folder in zip(runs, folders, strict=True)
    ]
    losses = {"common_loss": comparison.common, "base_loss": comparison.base}
    return losses | {"first": None if best is None else best.label, "runs": found}


def _finite(value: object) -> object:
    """JSON has no word for what is no number."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
