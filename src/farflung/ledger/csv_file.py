"""A ledger as a CSV file: one line for each run and machine."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from io import StringIO

from farflung.ledger.entries import Column, Entry, RunLedger

__all__ = ["ledger_csv"]

#: Unit of a column -> what the names of the file's columns end with.
_ENDINGS = {"": "", "FLOP": "", "B": "_bytes", "s": "_seconds", "J": "_joules", "money": ""}
_ESTIMATED = " (estimated)"
#: Spreadsheets take text that begins with one of these for a formula.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def ledger_csv(ledgers: Iterable[RunLedger], columns: Iterable[Column]) -> str:
    """Return the lines of ``ledgers``, with a head, in base units.

    Names are the titles of the columns, with ``_`` between words and a unit at the end. An estimate begins with ``estimated_``.
    """
    columns = tuple(columns)
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["run", "job", "machine", "region", *(_head(column) for column in columns), "cost", "currency"])
    for ledger in ledgers:
        for entry in ledger.entries:
            figures = [_figure(entry, column) for column in columns]
            texts = [_safe(one) for one in (ledger.run, ledger.job, entry.machine, entry.region)]
            writer.writerow([*texts, *figures, f"{entry.cost:.9g}", _safe(ledger.currency)])
    return text.getvalue()


def _head(column: Column) -> str:
    name = column.title.removesuffix(_ESTIMATED).lower().replace(" ", "_")
    return ("estimated_" if column.estimated else "") + name + _ENDINGS[column.unit]


def _figure(entry: Entry, column: Column) -> str:
    return f"{float(getattr(entry, column.name)):.12g}"


def _safe(text: str) -> str:
    """Return ``text`` such that no spreadsheet runs it: names come from other people's machines."""
    return f"'{text}" if text.startswith(_FORMULA) else text
