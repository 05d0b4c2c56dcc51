"""The charts of runs: which lines they have, and how new steps reach them."""

from __future__ import annotations

import math
import sys
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from farflung.web.sources.downsampling import chosen_rows
from farflung.web.sources.live_run import LiveRun
from farflung.web.sources.run_figures import smoothed
from farflung.web.widgets.chart import STEPS, Axis, Line, LineChart, Points, Unit

__all__ = ["RunChart", "column", "evaluation_points", "has_traffic", "per_second", "smooth"]

Columns = Mapping[str, "array[float]"]
#: Steps of which a rate is the mean.
_STEPS = 10
#: Points of a line in the first paint.
_MOST = 700
#: Column of the x axis -> the axis.
_AXES = {
    "step": STEPS,
    "clock": Axis(name="time", unit="seconds"),
    "traffic": Axis(name="bytes on the links", unit="bytes"),
}


@dataclass(frozen=True, slots=True)
class Value:
    """The value of a line ``at`` a row. ``shape``: the column whose shape decides which rows the first paint shows."""

    shape: str
    at: Callable[[Columns, int], float]


def column(name: str) -> Value:
    """The values of a column."""
    return Value(name, lambda columns, row: columns[name][row])


def per_second(name: str) -> Value:
    """The sum of a column by the seconds of the newest steps."""

    def value(columns: Columns, row: int) -> float:
        first = max(0, row + 1 - _STEPS)
        seconds = sum(columns["seconds"][first : row + 1])
        return sum(columns[name][first : row + 1]) / seconds if seconds > 0 else math.nan

    return Value("seconds", value)


def smooth(name: str) -> Value:
    """Means of the newest values of a column."""
    return Value(name, lambda columns, row: smoothed(columns[name], row))


class RunChart:
    """A chart of one or several runs. ``update`` sends what was added since."""

    def __init__(
        self,
        label: str,
        lines: Sequence[tuple[LiveRun, Line, Value]],
        *,
        unit: Unit = "number",
        zero: bool = False,
        x: str = "step",
        evaluations: Sequence[LiveRun] = (),
    ) -> None:
        """``x``: ``step``, ``clock`` (seconds of training) or ``traffic`` (bytes on all links, logarithmic for several runs).

        ``evaluations``: runs whose evaluations are lines of their own, not against ``traffic``.
        """
        self._lines, self._x, self._evaluations = lines, x, evaluations
        axis = replace(_AXES[x], logarithmic=x == "traffic" and len(lines) > 1)
        #: A logarithmic axis has no place for points below this x: one of them would leave the chart empty.
        self._least = sys.float_info.min if axis.logarithmic else 0.0
        several = len(evaluations) > 1
        names = [
            Line(name=(f"evaluation {run.name}" if lines else run.name) if several else "evaluation", symbols=True)
            for run in evaluations
        ]
        self._shown = [(run.series.rewritten, len(run.series)) for run, _, _ in lines]
        self._evaluated = [_evaluations(run) for run in evaluations]
        data = [*(self._first(i, count) for i, (_, count) in enumerate(self._shown)), *self._points()]
        looks = [*(line for _, line, _ in lines), *names]
        self._chart = LineChart(label, looks, data, x=axis, unit=unit, zero=zero)

    def update(self) -> None:
        """Send new points; all points if rows were removed after a loss."""
        now = [(run.series.rewritten, len(run.series)) for run, _, _ in self._lines]
        evaluated = [_evaluations(run) for run in self._evaluations]
        if now == self._shown and evaluated == self._evaluated:
            return
        before, self._shown = self._shown, now
        anew = any(old[0] != new[0] or new[1] < old[1] for old, new in zip(before, now, strict=True))
        if anew or evaluated != self._evaluated:
            self._evaluated = evaluated
            self._chart.show([*(self._first(i, count) for i, (_, count) in enumerate(now)), *self._points()])
        else:
            rows = [self._rows(i, range(old[1], new[1])) for i, (old, new) in enumerate(zip(before, now, strict=True))]
            self._chart.append([*rows, *([] for _ in self._evaluations)])

    def _first(self, number: int, count: int) -> Points:
        run, _, value = self._lines[number]
        columns = run.series.columns
        return self._rows(number, chosen_rows(columns[value.shape][:count], _MOST))

    def _rows(self, number: int, rows: Iterable[int]) -> Points:
        run, line, value = self._lines[number]
        columns = run.series.columns
        points = [(_short(columns[self._x][row]), _finite(value.at(columns, row))) for row in rows]
        return [one for one in points if one[0] >= self._least and (one[1] is not None or not line.symbols)]

    def _points(self) -> list[Points]:
        return [evaluation_points(run, self._x) for run in self._evaluations]


def evaluation_points(run: LiveRun, x: str = "step") -> Points:
    """The losses of the evaluations."""
    return [(one.step if x == "step" else one.elapsed, _finite(one.loss)) for one in run.series.evaluations]


def has_traffic(run: LiveRun) -> bool:
    """Whether the links have carried anything: a run on one machine sends nothing."""
    return any(run.series.columns["traffic"][-1:])


def _evaluations(run: LiveRun) -> int:
    return len(run.series.evaluations)


def _finite(value: float) -> float | None:
    return _short(value) if math.isfinite(value) else None


def _short(value: float) -> float:
    """Six digits, which is more than a pixel shows."""
    return float(f"{value:.6g}")
