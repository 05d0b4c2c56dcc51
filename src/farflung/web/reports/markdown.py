"""A report as Markdown with its plots as SVG files beside it."""

from __future__ import annotations

import re

from farflung.web.reports.page import Page
from farflung.web.reports.plots import Plot
from farflung.web.reports.tables import Table

__all__ = ["picture_names", "to_markdown"]

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|!~$&])")


def to_markdown(page: Page, pictures: str) -> str:
    """The page as Markdown; plot ``name`` is taken from the file ``<pictures>-<name>.svg``."""
    badge = f" ({page.badge})" if page.badge else ""
    blocks = [f"# {_escape(page.title + badge)}", _escape(page.lead)]
    if page.figures:
        blocks.append("\n".join(f"- {_escape(what)}: **{_escape(value)}**" for what, value in page.figures))
    blocks += [_plot(plot, pictures) for plot in page.plots]
    blocks += [_table(table) for table in page.tables if table.rows]
    blocks += [f"## {_escape(title)}\n\n{_fenced(text)}" for title, text in page.texts]
    return "\n\n".join(blocks) + "\n"


def picture_names(text: str, pictures: str) -> list[str]:
    """The files of the plots that ``to_markdown`` has put into ``text`` with the same ``pictures``."""
    return re.findall(rf"^!\[.*\]\(({re.escape(pictures)}-[\w-]+\.svg)\)$", text, flags=re.MULTILINE)


def _plot(plot: Plot, pictures: str) -> str:
    title = _escape(plot.title)
    return f"## {title}\n\n{_escape(plot.caption)}\n\n![{title}]({pictures}-{plot.name}.svg)"


def _table(table: Table) -> str:
    rule = (":--" if i < table.text_columns else "--:" for i in range(len(table.head)))
    lines = [_row(table.head), f"| {' | '.join(rule)} |", *(_row(row) for row in table.rows)]
    note = f"\n\n{_escape(table.note)}" if table.note else ""
    return f"## {_escape(table.title)}\n\n" + "\n".join(lines) + note


def _row(cells: tuple[str, ...]) -> str:
    return f"| {' | '.join(_escape(cell) for cell in cells)} |"


def _escape(text: str) -> str:
    return _SPECIAL.sub(r"\\\1", " ".join(text.split()))


def _fenced(text: str) -> str:
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}text\n{text.rstrip()}\n{fence}"
