"""All runs: state, progress, and a comparison of those that are selected."""

from __future__ import annotations

from urllib.parse import quote

from nicegui import ui

from farflung.web.pages.page import View
from farflung.web.widgets.html_table import HtmlTable, link
from farflung.web.widgets.layout import card, grid, title

__all__ = ["build"]


def build(view: View) -> None:
    """Build the page."""
    with title("Runs"):
        pass
    with grid(), card("All runs"):
        table = HtmlTable("All runs", ("run", "state"), text_columns=2, empty="No run yet. Submit one: farflung submit JOB.toml")

    def show() -> None:
        table.show([(link(name, f"/run/{quote(name)}"), "") for name in reversed(view.sources.names)])

    show()
    ui.timer(1.0, show)
