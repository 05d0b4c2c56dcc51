"""The cluster: machines by region, links, alerts, runs."""

from __future__ import annotations

from nicegui import ui

from farflung.web.pages.page import View
from farflung.web.widgets.figures import Figures
from farflung.web.widgets.html_table import HtmlTable
from farflung.web.widgets.layout import card, grid, title

__all__ = ["build"]


def build(view: View) -> None:
    """Build the page."""
    with title("Cluster") as state:
        pass
    figures = Figures()
    with grid(), card("Machines"):
        machines = HtmlTable("Machines", ("machine", "state", "device"), text_columns=3, empty="No worker has joined yet.")

    def show() -> None:
        cluster = view.sources.cluster
        state.show(*(("broker unreachable", "bad") if cluster.problem else ("connected", "good")))
        figures.show([("machines", str(len(cluster.members))), ("runs", str(len(cluster.runs)))])
        machines.show([(str(one["name"]), str(one["state"]), str(one["kind"])) for one in cluster.members])

    show()
    ui.timer(1.0, show)
