"""Tables, badges and links as HTML. All text is escaped, unless it is ``Markup`` that was made here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from typing import Any

from nicegui import ui

__all__ = ["Cell", "HtmlTable", "Markup", "action", "badge", "cell", "link", "markup", "meter", "table_html"]


class Markup(str):
    """Text that is HTML already: parts from outside are escaped."""

    __slots__ = ()


Cell = str | Markup


def cell(text: Cell) -> str:
    """Return ``text`` as HTML."""
    return str(text) if isinstance(text, Markup) else escape(text)


def badge(text: str, tone: str = "") -> Markup:
    """Return a word with a colored ground. ``tone``: ``good``, ``warn``, ``bad`` or empty."""
    return Markup(f'<span class="ff-badge {escape(tone)}">{escape(text)}</span>')


def link(text: str, path: str) -> Markup:
    """Return a link to ``path`` of this dashboard."""
    return Markup(f'<a href="{escape(path)}">{escape(text)}</a>')


def meter(share: float, text: str) -> Markup:
    """Return a bar of ``share`` (0 to 1), and ``text``."""
    width = f"{100 * min(max(share, 0.0), 1.0):.0f}%"
    return Markup(f'<span class="ff-meter" aria-hidden="true"><span style="width:{width}"></span></span>{escape(text)}')


def action(text: str, name: str, subject: str, tone: str = "") -> Markup:
    """Return a button. ``HtmlTable.on_action`` receives ``name`` and ``subject``."""
    words = f'data-action="{escape(name)}" data-subject="{escape(subject)}" aria-label="{escape(text)} {escape(subject)}"'
    return Markup(f'<button type="button" class="ff-button small {escape(tone)}" {words}>{escape(text)}</button>')


def markup(content: Markup | None = None, tag: str = "div") -> ui.html:
    """Return an element with ``content``."""
    return ui.html(str(content or ""), sanitize=False, tag=tag)


_PICKED = """(event) => {
  const button = event.target.closest("[data-action]");
  if (button) emit(button.dataset.action, button.dataset.subject);
}"""


class HtmlTable:
    """A table. The first ``text_columns`` columns are text, the others are numbers. A row of one cell heads a group."""

    def __init__(self, label: str, head: Sequence[str], *, text_columns: int = 1, empty: str = "Nothing yet.") -> None:
        """``label`` names the table for screen readers. ``empty`` is shown in place of no rows, once that is known."""
        self._label, self._head, self._text_columns, self._empty = label, tuple(head), text_columns, empty
        self._rows: Sequence[Sequence[Cell]] | None = None
        self._box = markup(Markup('<p class="ff-empty">Loading ...</p>'))

    def on_action(self, handler: Callable[[str, str], Any]) -> HtmlTable:
        """Call ``handler(name, subject)`` when a person presses a button made by ``action``."""
        self._box.on("click", lambda event: handler(str(event.args[0]), str(event.args[1])), js_handler=_PICKED)
        return self

    def show(self, rows: Sequence[Sequence[Cell]]) -> None:
        """Show ``rows``; nothing is sent if they are as before."""
        if rows != self._rows:
            self._rows = rows
            empty = f'<p class="ff-empty">{escape(self._empty)}</p>'
            self._box.set_content(table_html(self._label, self._head, rows, self._text_columns) if rows else empty)


def table_html(label: str, head: Sequence[str], rows: Sequence[Sequence[Cell]], text_columns: int = 1) -> Markup:
    """Return a table that scrolls within its place (see ``HtmlTable``)."""
    names = "".join(f'<th scope="col"{_class(i, text_columns)}>{escape(name)}</th>' for i, name in enumerate(head))
    body = "".join(_row(row, len(head), text_columns) for row in rows)
    return Markup(
        f'<div class="ff-scroll" tabindex="0" role="region" aria-label="{escape(label)}, table"><table class="ff-table">'
        f"<thead><tr>{names}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _row(row: Sequence[Cell], width: int, text_columns: int) -> str:
    if len(row) == 1 < width:
        return f'<tr class="group"><th scope="rowgroup" colspan="{width}">{cell(row[0])}</th></tr>'
    return "<tr>" + "".join(f"<td{_class(i, text_columns, text)}>{cell(text)}</td>" for i, text in enumerate(row)) + "</tr>"


def _class(column: int, text_columns: int, text: Cell = "") -> str:
    wrap = " wrap" if len(text) > 48 and not isinstance(text, Markup) else ""
    return f' class="text{wrap}"' if column < text_columns else ""
