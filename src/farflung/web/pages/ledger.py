"""The ledger: what each machine contributed to runs, and what that cost."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import quote

from nicegui import ui

from farflung.ledger import COLUMNS, Entry, RunLedger, ledger_csv, sum_of, totals
from farflung.ledger.words import entry_row, meanings, money, total_row
from farflung.units import Bytes, Flops, Seconds
from farflung.web.pages.page import View
from farflung.web.sources.ledgers import Ledgers
from farflung.web.widgets.chart import Chart
from farflung.web.widgets.figures import Figures
from farflung.web.widgets.form import Choice, Form
from farflung.web.widgets.html_table import Cell, HtmlTable, Markup, cell, link, markup
from farflung.web.widgets.layout import button, card, grid, lead, note, title

__all__ = ["build"]

_LEDGERS = Ledgers()
#: Seconds between two readings, and runs that are offered, the newest first.
_SLOW, _MOST = 5.0, 200
_ALL = ""
#: The columns about work, and those about money, which have a table of their own.
_WORK = tuple(column for column in COLUMNS if column.unit != "money")
_HEAD = ("machine", "region", "runs", *(column.title for column in _WORK))
_COST = ("machine", "rent", "energy (est.)", "traffic", "total")
_RUNS = ("run", "job", "steps", "samples", "repeated samples", "on links", "time", "recoveries", "cost")
_SHARES = ("machine", "samples", "FLOPs (estimated)", "sent", "computing", "energy (estimated)", "cost")


def build(view: View) -> None:
    """Build the page."""
    page = _LedgerPage(view)
    ui.timer(_SLOW, page.read, immediate=True)


class _LedgerPage:
    """The page in one browser."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._run = _ALL
        self._shown: list[RunLedger] = []
        names = [name for name in reversed(view.sources.names) if view.sees(name)][:_MOST]
        with title("Ledger"):
            Form(
                self._choose, [Choice(name="run", label="Show", options=[(_ALL, "all runs"), *((name, name) for name in names)])]
            )
            button("Download CSV", self._download)
        lead("What each machine contributed to runs: samples, work, traffic, hours and energy; and what it cost.")
        self._error = markup(tag="p").classes("ff-error").props('role="status"')
        self._figures = Figures([(name, "–") for name, _ in _headline([])])
        with grid():
            with card("Cost", "half", "Without prices.toml in the folder of the broker, nothing has a price."):
                self._costs = HtmlTable("Cost", _COST, empty="No machine has trained yet.")
            with card("Shares of the machines", "half", "Of the total of all machines."):
                self._shares = Chart("Shares of the machines", _SHARES)
            with card("Machines"):
                self._machines = HtmlTable("Machines", _HEAD, text_columns=2, empty="No machine has trained yet.")
            with card("Each run"):
                self._runs = HtmlTable("Each run", _RUNS, text_columns=2, empty="No run yet: farflung submit JOB.toml")
            with card("What the columns mean"):
                items = "".join(f"<li><strong>{cell(name)}</strong>: {cell(meaning)}</li>" for name, meaning in meanings())
                markup(Markup(f'<ul class="ff-list">{items}</ul>'))
                note("The traffic of helpers of hybrid plans is not counted.")

    def _choose(self, name: str, value: str) -> Any:
        self._run = value if name == "run" else self._run
        return self.read()

    async def read(self) -> None:
        """Read the runs on a thread, and show their ledgers."""
        sources = self._view.sources
        names = [name for name in sources.names if self._view.sees(name) and self._run in (_ALL, name)][-_MOST:]
        folders = [folder for name in names if (folder := sources.folder(name)) is not None]
        prices = None if sources.home is None else sources.home / "prices.toml"
        self._shown, problems = await asyncio.to_thread(_LEDGERS.of, folders, prices)
        self._error.set_content(cell("; ".join(problems[:3])))
        self._figures.show(_headline(self._shown))
        entries = totals(self._shown)
        self._machines.show(_machine_rows(self._shown, entries))
        self._costs.show(_cost_rows(self._shown, entries))
        self._runs.show([_run_row(ledger) for ledger in reversed(self._shown)])
        self._shares.show(_shares(entries), _share_rows(entries, self._shown))

    def _download(self) -> None:
        name = f"ledger-{self._run or 'all'}.csv"
        ui.download.content(ledger_csv(self._shown, COLUMNS).encode(), name, "text/csv")


def _headline(ledgers: Sequence[RunLedger]) -> list[tuple[str, str]]:
    every = sum_of(totals(ledgers))
    currency = ledgers[0].currency if ledgers else "USD"
    return [
        ("runs", f"{len(ledgers):,}"),
        ("committed samples", f"{sum(ledger.samples for ledger in ledgers):,}"),
        ("repeated samples", f"{sum(ledger.wasted for ledger in ledgers):,}"),
        ("machine time", str(Seconds(every.member_seconds)) if every.member_seconds else "0 s"),
        ("computing", str(Seconds(every.busy_seconds)) if every.busy_seconds else "0 s"),
        ("FLOPs, estimated", str(Flops(every.flops)) if every.flops else "–"),
        ("energy, estimated", f"{every.joules / 3.6e6:.3g} kWh"),
        ("cost", money(every.cost, currency)),
    ]


def _machine_rows(ledgers: Sequence[RunLedger], entries: Sequence[Entry]) -> list[Sequence[Cell]]:
    """Return the work of each machine, and of all."""
    if not entries:
        return []
    rows = [_work(entry, entry_row(entry, "")) for entry in entries]
    every = _work(replace(sum_of(entries), runs=len(ledgers)), total_row(ledgers))
    return [*rows, [_bold(text) for text in every]]


def _work(entry: Entry, row: Sequence[str]) -> list[str]:
    figures = dict(zip((column.name for column in COLUMNS), row[2:], strict=False))
    return [entry.machine, entry.region, f"{entry.runs:,}", *(figures[column.name] for column in _WORK)]


def _cost_rows(ledgers: Sequence[RunLedger], entries: Sequence[Entry]) -> list[Sequence[Cell]]:
    """Return the cost of each machine, and of all."""
    if not entries:
        return []
    currency = ledgers[0].currency
    rows = [
        [one.machine, *(money(amount, currency) for amount in (one.rent, one.energy_cost, one.traffic_cost, one.cost))]
        for one in (*entries, sum_of(entries))
    ]
    return [*rows[:-1], [_bold(text) for text in rows[-1]]]


def _bold(text: str) -> Markup:
    return Markup(f"<strong>{cell(text)}</strong>")


def _run_row(ledger: RunLedger) -> Sequence[Cell]:
    return (
        link(ledger.run, f"/run/{quote(ledger.run)}"),
        ledger.job,
        f"{ledger.steps:,}",
        f"{ledger.samples:,}",
        f"{ledger.wasted:,}",
        str(Bytes(ledger.bytes)),
        str(Seconds(ledger.seconds)) if ledger.seconds else "0 s",
        f"{ledger.recoveries:,}",
        money(sum(entry.cost for entry in ledger.entries), ledger.currency),
    )


_BARS = (("FLOPs", "flops"), ("sent", "sent"), ("computing", "busy_seconds"), ("energy", "joules"), ("cost", "cost"))


def _shares(entries: Sequence[Entry]) -> dict[str, Any]:
    """Return bars of 100 %, one for each figure, with a part for each machine."""
    sums = {name: sum(getattr(entry, name) for entry in entries) for _, name in _BARS}
    bars = [(text, name) for text, name in _BARS if sums[name] > 0]
    series = [
        {
            "type": "bar",
            "stack": "all",
            "name": entry.machine,
            "barMaxWidth": 26,
            "itemStyle": {"color": f"--c{i % 8}", "borderColor": "--paper", "borderWidth": 1},
            "data": [round(100 * getattr(entry, name) / sums[name], 2) for _, name in bars],
        }
        for i, entry in enumerate(entries)
    ]
    axis = {"axisTick": {"show": False}, "axisLine": {"show": False}, "axisLabel": {"color": "--soft"}}
    return {
        "animation": False,
        "grid": {"left": 4, "right": 22, "top": 34, "bottom": 6, "containLabel": True},
        "legend": {"type": "scroll", "top": 0, "left": 0, "icon": "roundRect", "textStyle": {"color": "--soft"}},
        "tooltip": {
            "trigger": "item",
            "confine": True,
            "backgroundColor": "--paper",
            "borderColor": "--line",
            "textStyle": {"color": "--ink"},
        },
        "xAxis": {
            "type": "value",
            "max": 100,
            **axis,
            "axisLabel": {"color": "--soft", "formatter": "{value} %"},
            "splitLine": {"lineStyle": {"color": "--hair"}},
        },
        "yAxis": {"type": "category", "inverse": True, "data": [text for text, _ in bars], **axis},
        "series": series,
    }


def _share_rows(entries: Sequence[Entry], ledgers: Sequence[RunLedger]) -> list[list[str]]:
    """Return the table beside the bars."""
    every = sum_of(entries)
    samples = sum(ledger.samples for ledger in ledgers)
    names = ("flops", "sent", "busy_seconds", "joules", "cost")
    return [
        [
            entry.machine,
            _percent(entry.samples, samples),
            *(_percent(getattr(entry, name), getattr(every, name)) for name in names),
        ]
        for entry in entries
    ]


def _percent(part: float, whole: float) -> str:
    return f"{part / whole:.1%}" if whole > 0 else "–"
