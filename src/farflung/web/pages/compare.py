"""Several runs over each other: loss against steps and against time, step time, and a table."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import quote

from farflung.units import Bytes, Seconds
from farflung.web.pages.page import View
from farflung.web.pages.run_charts import RunChart, column, per_second, smooth
from farflung.web.pages.run_tables import state_of
from farflung.web.sources.live_run import LiveRun
from farflung.web.sources.run_figures import pace, smoothed
from farflung.web.widgets.chart import Line
from farflung.web.widgets.html_table import Cell, HtmlTable, badge, link
from farflung.web.widgets.layout import card, grid, note, title

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
        charts = _charts(runs)
        with card("Runs"):
            head = ("run", "job", "state", "step", "loss", "evaluation", "step time", "over the links")
            table = HtmlTable("Runs", head, text_columns=3)

    def show() -> None:
        for run in runs:
            view.sources.run(run.name)
        for chart in charts:
            chart.update()
        table.show([_row(view, run) for run in runs])

    view.follow(show)


def _charts(runs: Sequence[LiveRun]) -> list[RunChart]:
    lines = [(run, Line(name=run.name, color=i)) for i, run in enumerate(runs)]
    found = []
    with card("Loss against steps", "half", "Mean of 10 steps."):
        found.append(RunChart("Loss against steps", [(run, line, smooth("loss")) for run, line in lines]))
    with card("Loss against time", "half", "Mean of 10 steps."):
        found.append(RunChart("Loss against time", [(run, line, smooth("loss")) for run, line in lines], x="clock"))
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
        str(Bytes(sum(columns["sent"][:count]))),
    ]
