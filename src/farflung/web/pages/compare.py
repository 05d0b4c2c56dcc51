"""Several runs over each other: loss against steps, time and bytes, step time, and a table."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import quote

from nicegui import ui

from farflung.units import Bytes, Seconds
from farflung.web.pages.page import View
from farflung.web.pages.run_charts import RunChart, column, has_traffic, per_second, smooth
from farflung.web.pages.run_tables import state_of
from farflung.web.sources.live_run import LiveRun
from farflung.web.sources.run_figures import pace, smoothed
from farflung.web.widgets.chart import Line
from farflung.web.widgets.html_table import Cell, HtmlTable, badge, link
from farflung.web.widgets.layout import card, grid, note, row, title

__all__ = ["build"]

#: Runs in one comparison: there are so many colors.
_MOST = 8
_NOTHING = "–"


def build(view: View) -> None:
    """Build the page."""
    names = [name for name in view.parameters["runs"].split(",") if name][:_MOST]
    runs = [run for name in names if view.sees(name) and (run := view.sources.run(name)) is not None]
    with title("Comparison"):
        pass
    if not runs:
        note("This dashboard has none of these runs.")
        return
    if len(runs) < len(names):
        note(f"Not found: {', '.join(name for name in names if name not in {run.name for run in runs})}.")
    with grid():
        charts, of_bytes = _loss_charts(runs)
        charts += _charts(runs)
        with card("Runs"):
            head = ("run", "job", "state", "step", "loss", "evaluation", "step time", "over the links")
            table = HtmlTable("Runs", head, text_columns=3)

    def show() -> None:
        for run in runs:
            view.sources.run(run.name)
        for chart in charts:
            chart.update()
        of_bytes.set_visibility(any(map(has_traffic, runs)))
        table.show([_row(view, run) for run in runs])

    view.follow(show)


def _loss_charts(runs: Sequence[LiveRun]) -> tuple[list[RunChart], ui.element]:
    """Return the charts of the loss, and the card of that against bytes."""
    lines = [(run, line, smooth("loss")) for run, line in _lines(runs)]
    with row():
        with card("Loss against steps", remark="Mean of 10 steps."):
            steps = RunChart("Loss against steps", lines)
        with card("Loss against time", remark="Mean of 10 steps."):
            time = RunChart("Loss against time", lines, x="clock")
        with card("Loss against bytes", remark="Bytes on all links.") as box:
            sent = RunChart("Loss against bytes", lines, x="traffic")
    return [steps, time, sent], box


def _lines(runs: Sequence[LiveRun]) -> list[tuple[LiveRun, Line]]:
    return [(run, Line(name=run.name, color=i)) for i, run in enumerate(runs)]


def _charts(runs: Sequence[LiveRun]) -> list[RunChart]:
    lines, found = _lines(runs), []
    with card("Step time", "half", "Mean of 10 steps."):
        found.append(RunChart("Step time", [(run, line, smooth("seconds")) for run, line in lines], unit="seconds", zero=True))
    with card("Samples per second", "half"):
        found.append(RunChart("Samples per second", [(run, line, per_second("samples")) for run, line in lines], zero=True))
    with card("Learning rate", "half"):
        found.append(RunChart("Learning rate", [(run, line, column("learning_rate")) for run, line in lines], zero=True))
    with card("Evaluation", "half", "Loss."):
        found.append(RunChart("Evaluation", [], evaluations=runs))
    return found


def _row(view: View, run: LiveRun) -> Sequence[Cell]:
    now, count = pace(run), len(run.series)
    columns = run.series.columns
    return [
        link(run.name, f"/run/{quote(run.name)}"),
        run.job.name if run.job is not None else _NOTHING,
        badge(*state_of(run, view.sources.status(run.name))),
        f"{columns['step'][count - 1]:.0f}" if count else "0",
        f"{smoothed(columns['loss'], count - 1):.4f}" if count else _NOTHING,
        f"{run.series.evaluations[-1].loss:.4f}" if run.series.evaluations else _NOTHING,
        str(Seconds(now.step_seconds)) if now is not None else _NOTHING,
        str(Bytes(columns["traffic"][count - 1] if count else 0.0)),
    ]
