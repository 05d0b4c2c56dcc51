"""The comparison that ``farflung demo`` ends with."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from farflung.units import Bytes, Seconds
from farflung.web.reports import Run
from farflung.web.reports.tables import common_loss

__all__ = ["Comparison", "Outcome", "best_of", "compare", "explanation", "results_table"]

NOTHING = "-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What counts of one run. ``bytes_slow``: bytes per step on the link that limits the first run, ``bytes_all``: on all links.

    ``loss``: smoothed training loss at the end; ``evaluation``: loss on held-out text. ``reached``: seconds of training until
    the smoothed loss was first at most the common loss; ``matched``: until it was first at most the first run's lowest.
    """

    label: str
    steps: int
    step_seconds: float
    predicted_seconds: float | None
    bytes_slow: float
    bytes_all: float
    loss: float
    evaluation: float | None
    seconds: float
    reached: float | None
    matched: float | None
    #: Whether the run ended before its last step.
    stopped: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """``common``: the lowest smoothed loss that every run reached; ``base``: that of the first run (None: there is none)."""

    common: float | None
    base: float | None
    outcomes: tuple[Outcome, ...]


def compare(runs: Sequence[Run]) -> Comparison:
    """The runs at equal loss; ``runs[0]`` is what the others are measured against. Runs without a step are left out."""
    common, base = common_loss(runs), common_loss(runs[:1])
    slow = next((link for run in runs if (link := run.slowest_link) is not None), None)
    outcomes = tuple(_outcome(run, common, base, slow) for run in runs if run.steps)
    return Comparison(common=common, base=base, outcomes=outcomes)


def _outcome(run: Run, common: float | None, base: float | None, slow: tuple[int, int] | None) -> Outcome:
    return Outcome(
        label=run.label,
        steps=len(run.steps),
        step_seconds=run.median_seconds or 0.0,
        predicted_seconds=_predicted(run),
        bytes_slow=0.0 if slow is None else run.link_mean(slow),
        bytes_all=run.total_bytes / len(run.steps),
        loss=run.smooth_losses[-1],
        evaluation=run.evaluations[-1].loss if run.evaluations else None,
        seconds=run.seconds,
        reached=_time_to(run, common),
        matched=_time_to(run, base),
        stopped=run.result is not None and run.result.status == "stopped",
    )


def _predicted(run: Run) -> float | None:
    """The median prediction, beside the median step time: after a recovery the plan, and with it the prediction, is another."""
    predictions = [record.predicted_seconds for record in run.steps if record.predicted_seconds is not None]
    return statistics.median(predictions) if predictions else None


def _time_to(run: Run, loss: float | None) -> float | None:
    index = None if loss is None else run.first_below(loss)
    return None if index is None else run.clock[index]


def best_of(comparison: Comparison) -> Outcome | None:
    """The run that matched the first run's loss first (None: there is no run)."""
    done = [one for one in comparison.outcomes if one.matched is not None]
    return min(done, key=lambda one: one.matched or 0.0, default=None)


def results_table(comparison: Comparison) -> str:
    """Head and one row for each run, as plain text."""
    targets = ["-" if loss is None else f"to {loss:.2f}" for loss in (comparison.common, comparison.base)]
    head = (
        "run",
        "steps",
        "step time",
        "predicted",
        "bytes/step: slow link",
        "all links",
        "training loss",
        "held-out loss",
        *targets,
    )
    rows = [head, *(_row(one) for one in comparison.outcomes)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    lines = ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows]
    return "\n".join([lines[0], "  ".join("-" * width for width in widths), *lines[1:]])


def _row(one: Outcome) -> tuple[str, ...]:
    return (
        one.label,
        str(one.steps),
        str(Seconds(one.step_seconds)),
        _seconds(one.predicted_seconds),
        str(Bytes(one.bytes_slow)),
        str(Bytes(one.bytes_all)),
        f"{one.loss:.3f}",
        NOTHING if one.evaluation is None else f"{one.evaluation:.3f}",
        _seconds(one.reached),
        _seconds(one.matched),
    )


def _seconds(value: float | None) -> str:
    return NOTHING if value is None else str(Seconds(value))


def explanation(comparison: Comparison) -> str:
    """What the table's columns mean, and what they say."""
    best, found = best_of(comparison), comparison.outcomes
    if comparison.common is None or comparison.base is None or best is None:
        return "Not every run has a loss, so there is nothing to compare."
    first = found[0]
    lines = [
        "training loss: at the end of each run, smoothed over its last steps; runs differ in their number of steps: compare",
        "the times to an equal loss. held-out loss: on text that was not trained on (- : stopped before).",
        f"to {comparison.common:.2f}: time to the lowest loss that every run reached.",
        f"to {comparison.base:.2f}: time to the lowest loss of {first.label}; - : never reached.",
    ]
    if stopped := [one.label for one in found if one.stopped]:
        lines.append(
            f"The time of {' and '.join(stopped)} was up before the last step: runs this short show no order of the codecs."
        )
    elif best is first:
        lines.append(f"{first.label} was the first at its own loss: no other setting was worth its error here.")
    elif first.matched is not None and best.matched:
        times = first.matched / best.matched
        lines.append(
            f"{best.label} was as good as {first.label} after {_seconds(best.matched)} instead of {_seconds(first.matched)}: "
            f"{times:.1f} times sooner."
        )
    return "\n".join(lines)
