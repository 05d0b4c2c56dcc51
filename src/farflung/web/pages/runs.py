"""All runs: state, progress and loss, and a choice of those that are compared."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from urllib.parse import quote

from nicegui import ui

from farflung.web.pages.page import View
from farflung.web.pages.run_tables import state_of
from farflung.web.widgets.html_table import Cell, HtmlTable, Markup, badge, link
from farflung.web.widgets.layout import button, card, grid, title

__all__ = ["build"]

#: Rows at most; the newest runs come first.
_MOST = 100
_COMPARE = """
const chosen = [...document.querySelectorAll("input[data-run]:checked")].map((box) => box.dataset.run);
if (chosen.length) location.assign("/compare/" + chosen.map(encodeURIComponent).join(","));
"""


def build(view: View) -> None:
    """Build the page."""
    with title("Runs"):
        button("Compare selected", lambda: ui.run_javascript(_COMPARE), "main")
    with grid(), card("All runs"):
        head = ("select", "run", "job", "state", "steps", "loss")
        table = HtmlTable("All runs", head, text_columns=4, empty="No run yet. Submit one: farflung submit JOB.toml")

    def show() -> None:
        table.show([_row(view, name) for name in reversed(view.sources.names[-_MOST:]) if view.sees(name)])

    show()
    ui.timer(2.0, show)


def _row(view: View, name: str) -> Sequence[Cell]:
    status = view.sources.status(name)
    run = view.sources.summary(name)
    state, tone = state_of(run, status)
    steps = run.job.steps if run.job is not None else 0
    done = int(status["step"]) if status is not None else run.result.steps if run.result is not None else 0
    loss = run.loss if status is None or status["loss"] is None else status["loss"]
    box = f'<input type="checkbox" data-run="{escape(name)}" aria-label="Select {escape(name)}">'
    return [
        Markup(box),
        link(name, f"/run/{quote(name)}"),
        run.job.name if run.job is not None else "–",
        badge(state, tone),
        f"{done} / {steps}",
        "–" if loss is None else f"{loss:.4f}",
    ]
