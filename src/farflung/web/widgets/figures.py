"""A row of large figures with what they are."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from nicegui import ui

from farflung.web.widgets.html_table import Markup, markup

__all__ = ["Figures"]


class Figures:
    """(what, value) pairs, the most useful first."""

    def __init__(self, figures: Sequence[tuple[str, str]] = ()) -> None:
        self._shown: Sequence[tuple[str, str]] = ()
        self._box = markup(tag="dl").classes("ff-figures")
        self.show(figures)

    @property
    def box(self) -> ui.html:
        """The element."""
        return self._box

    def show(self, figures: Sequence[tuple[str, str]]) -> None:
        """Show other figures; nothing is sent if they are as before."""
        if figures != self._shown:
            self._shown = figures
            pairs = (f"<div><dt>{escape(what)}</dt><dd>{_value(value)}</dd></div>" for what, value in figures)
            self._box.set_content(Markup("".join(pairs)))


def _value(text: str) -> str:
    """The value, its unit in smaller type."""
    number, space, unit = text.partition(" ")
    return f"{escape(number)}{space}<small>{escape(unit)}</small>" if unit else escape(text)
