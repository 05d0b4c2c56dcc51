"""The entries of several runs, added up by machine."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import reduce

from farflung.ledger.entries import Entry, RunLedger

__all__ = ["sum_of", "totals"]


def totals(ledgers: Iterable[RunLedger]) -> tuple[Entry, ...]:
    """Return an entry for each machine of ``ledgers``, by name."""
    found: dict[str, Entry] = {}
    for ledger in ledgers:
        for entry in ledger.entries:
            found[entry.machine] = found[entry.machine].plus(entry) if entry.machine in found else entry
    return tuple(found[name] for name in sorted(found))


def sum_of(entries: Iterable[Entry]) -> Entry:
    """Return all entries together. Samples are not added up: each sample passes through several machines."""
    empty = Entry(machine="all machines", runs=0)
    return replace(reduce(Entry.plus, entries, empty), region="")
