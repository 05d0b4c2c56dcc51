"""A report as one HTML page that needs nothing else: no script, no network, all text escaped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from farflung.web.reports.plots import Plot
from farflung.web.reports.tables import Table

__all__ = ["Page", "to_html"]

_STYLE = """
:root { --ink: #1d2a30; --soft: #5c6a71; --line: #e1e6e9; --paper: #ffffff; --ground: #f4f6f7; --accent: #0072b2; }
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--ink);
  font: 15px/1.5 Inter, "Helvetica Neue", Arial, sans-serif; }
main { max-width: 1180px; margin: 0 auto; padding: 36px 24px 60px; }
h1 { font-size: 26px; margin: 0; letter-spacing: -0.01em; overflow-wrap: anywhere; }
h2 { font-size: 17px; margin: 36px 0 12px; }
.lead { color: var(--soft); margin: 6px 0 22px; overflow-wrap: anywhere; }
.badge { display: inline-block; padding: 1px 10px; margin-left: 10px; border-radius: 99px; font-size: 13px; vertical-align: 4px;
  background: #fbefd7; color: #7a5200; }
.badge.finished { background: #d9f0e7; color: #00634a; }
.badge.failed { background: #fae0d6; color: #8f3800; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(140px, 1fr)); gap: 12px; }
.figures div, .card, figure { background: var(--paper); border: 1px solid var(--line); border-radius: 10px; }
.figures div { padding: 12px 16px; }
.figures b { display: block; font-size: 21px; font-weight: 600; font-variant-numeric: tabular-nums; white-space: nowrap; }
.figures span { color: var(--soft); font-size: 13px; }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 500px), 1fr)); gap: 16px; margin-top: 16px; }
figure { margin: 0; padding: 16px 18px 14px; }
figure b { font-size: 15px; }
figure svg { width: 100%; height: auto; display: block; }
figcaption { color: var(--soft); font-size: 13px; margin: 0 0 6px; }
.pairs { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 420px), 1fr)); gap: 0 16px; align-items: start; }
.card { overflow-x: auto; padding: 4px 0; }
table { border-collapse: collapse; width: 100%; font-size: 14px; }
th, td { padding: 7px 14px; text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
th { color: var(--soft); font-weight: 500; font-size: 13px; white-space: normal; vertical-align: bottom;
  border-bottom: 1px solid var(--line); }
tbody tr + tr td { border-top: 1px solid #f0f3f4; }
.text { text-align: left; }
.wrap { white-space: normal; overflow-wrap: anywhere; }
.note { color: var(--soft); font-size: 13px; margin: 8px 2px 0; }
pre { background: var(--paper); border: 1px solid var(--line); border-radius: 10px; padding: 14px 18px; margin: 0;
  white-space: pre-wrap; overflow-wrap: anywhere; font-size: 13.5px; }
footer { color: var(--soft); font-size: 13px; margin-top: 40px; }
figure.wide { grid-column: 1 / -1; }
@media (max-width: 700px) {
  main { padding: 20px 10px 40px; }
  figure { padding: 12px 10px; overflow-x: auto; }
  figure.wide svg { width: auto; min-width: 960px; }
  h1 { font-size: 22px; }
  th, td { padding: 6px 9px; }
}
@media (prefers-color-scheme: dark) {
  :root { color-scheme: dark; --ink: #e8edf0; --soft: #a3b0b7; --line: #364249; --paper: #14191c; --ground: #0d1113;
    --accent: #5aa9de; }
  .badge { background: #4d3a10; color: #ffdf9e; }
  .badge.finished { background: #0f3d2e; color: #9fe3c6; }
  .badge.failed { background: #4a2011; color: #ffb899; }
  tbody tr + tr td { border-top-color: #232c31; }
  figure:not(.wide) svg { filter: invert(0.9) hue-rotate(180deg); }
}
@media print { body { background: none; } main { padding: 0; } }
"""
_WIDE = ' class="wide"'
#: The page may style itself and nothing else: even a text that escaped escaping could not load or run anything.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A report before it is written down. ``badge`` is one word on how it went; ``figures`` are (what, value)."""

    title: str
    lead: str
    badge: str = ""
    figures: tuple[tuple[str, str], ...] = ()
    plots: tuple[Plot, ...] = ()
    tables: tuple[Table, ...] = ()
    texts: tuple[tuple[str, str], ...] = ()


def to_html(page: Page) -> str:
    """The page as HTML text."""
    badge = f'<span class="badge {escape(page.badge.replace(" ", "-"))}">{escape(page.badge)}</span>' if page.badge else ""
    figures = "".join(f"<div><b>{escape(value)}</b><span>{escape(what)}</span></div>" for what, value in page.figures)
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(page.title)} – farflung</title><style>{_STYLE}</style></head><body><main>",
        f"<h1>{escape(page.title)}{badge}</h1>",
        f'<p class="lead">{escape(page.lead)}</p>',
        f'<div class="figures">{figures}</div>' if figures else "",
        _plots(page.plots),
        *(_table(table) for table in page.tables if table.rows and not table.narrow),
        _pairs([table for table in page.tables if table.rows and table.narrow]),
        *(f"<h2>{escape(title)}</h2><pre>{escape(text)}</pre>" for title, text in page.texts),
        "<footer>Written by farflung.</footer></main></body></html>\n",
    ]
    return "\n".join(part for part in parts if part)


def _plots(plots: Sequence[Plot]) -> str:
    if not plots:
        return ""
    pictures = (
        f"<figure{_WIDE if plot.wide else ''}><b>{escape(plot.title)}</b>"
        f"<figcaption>{escape(plot.caption)}</figcaption>{plot.svg}</figure>"
        for plot in plots
    )
    return f'<div class="plots">{"".join(pictures)}</div>'


def _pairs(tables: Sequence[Table]) -> str:
    return f'<div class="pairs">{"".join(f"<section>{_table(table)}</section>" for table in tables)}</div>' if tables else ""


def _table(table: Table) -> str:
    head = "".join(f"<th{_class(i, table, '')}>{escape(cell)}</th>" for i, cell in enumerate(table.head))
    rows = (
        "<tr>" + "".join(f"<td{_class(i, table, cell)}>{escape(cell)}</td>" for i, cell in enumerate(row)) + "</tr>"
        for row in table.rows
    )
    note = f'<p class="note">{escape(table.note)}</p>' if table.note else ""
    body = f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    return f'<h2>{escape(table.title)}</h2><div class="card">{body}</div>{note}'


def _class(column: int, table: Table, cell: str) -> str:
    names = ["text"] * (column < table.text_columns) + ["wrap"] * (len(cell) > 60)
    return f' class="{" ".join(names)}"' if names else ""
