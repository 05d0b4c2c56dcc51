"""Ledgers as text for people: figures with units, rows of tables, and what the figures mean."""

from __future__ import annotations

import math
from collections.abc import Sequence

from farflung.ledger.entries import COLUMNS, Column, Entry, RunLedger
from farflung.ledger.totals import sum_of, totals
from farflung.units import Bytes, Flops, Seconds

__all__ = ["HEAD", "entry_row", "figure_text", "meanings", "money", "run_line", "total_row", "total_rows"]

#: Names of the columns of ``entry_row``.
HEAD: tuple[str, ...] = ("machine", "region", *(column.title for column in COLUMNS), "cost")


def figure_text(column: Column, value: float, currency: str) -> str:
    """Return a figure with its unit."""
    match column.unit:
        case "B":
            return str(Bytes(value))
        case "s":
            return str(Seconds(value)) if value else "0 s"
        case "FLOP":
            return str(Flops(value)) if value else "–"
        case "J":
            return f"{value / 3.6e6:.3g} kWh"
        case "money":
            return money(value, currency)
    return f"{value:,.0f}"


def money(value: float, currency: str) -> str:
    """Return an amount of money; less than a hundredth with three digits, as in ``0.0000259``."""
    if abs(value) >= 0.01 or not value:
        return f"{value:,.2f} {currency}"
    places = 2 - math.floor(math.log10(abs(value)))
    return f"{value:.{places}f} {currency}" if places <= 9 else f"{value:.2e} {currency}"


def entry_row(entry: Entry, currency: str) -> tuple[str, ...]:
    """Return the figures of ``entry`` in the order of ``HEAD``."""
    figures = (figure_text(column, float(getattr(entry, column.name)), currency) for column in COLUMNS)
    return (entry.machine, entry.region, *figures, money(entry.cost, currency))


def total_rows(ledgers: Sequence[RunLedger]) -> list[tuple[str, ...]]:
    """Return a row for each machine over all runs, and a last one for all machines (none: there are no runs)."""
    if not ledgers:
        return []
    currency = ledgers[0].currency
    return [*(entry_row(entry, currency) for entry in totals(ledgers)), total_row(ledgers)]


def total_row(ledgers: Sequence[RunLedger]) -> tuple[str, ...]:
    """Return a row for all machines over all runs (at least one)."""
    every = list(entry_row(sum_of(totals(ledgers)), ledgers[0].currency))
    for place, column in enumerate(COLUMNS, start=2):
        if column.name in ("samples", "wasted"):  # each sample passes through several machines
            every[place] = f"{sum(getattr(ledger, column.name) for ledger in ledgers):,}"
    return tuple(every)


def run_line(ledger: RunLedger) -> str:
    """Return what a run did, in a line."""
    recovered = f", {ledger.recoveries} recoveries" if ledger.recoveries != 1 else ", 1 recovery"
    return (
        f"{ledger.run} ({ledger.job}): {ledger.steps:,} steps, {ledger.samples:,} samples, {Bytes(ledger.bytes)} on links, "
        f"{Seconds(ledger.seconds)}{recovered if ledger.recoveries else ''}"
    )


def meanings() -> list[tuple[str, str]]:
    """Return what each column means, with the estimates marked as such."""
    return [(column.title, column.meaning) for column in COLUMNS]
