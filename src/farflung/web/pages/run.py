"""One run, or several over each other."""

from __future__ import annotations

from nicegui import ui

from farflung.web.pages.page import View
from farflung.web.widgets.chart import Line, LineChart
from farflung.web.widgets.layout import card, grid, note, title

__all__ = ["build"]


def build(view: View) -> None:
    """Build the page."""
    name = view.parameters["run"]
    run = view.sources.run(name)
    if run is None:
        with title(name):
            pass
        note("This dashboard knows no such run.")
        return
    with title(name):
        pass
    with grid(), card("Loss", "half"):
        chart = LineChart("Loss", [Line(name="training")])
    shown = [0]

    def show() -> None:
        view.sources.run(name)
        columns, count = run.series.columns, len(run.series)
        chart.append([list(zip(columns["step"][shown[0] : count], columns["loss"][shown[0] : count], strict=True))])
        shown[0] = count

    ui.timer(1.0, show)
