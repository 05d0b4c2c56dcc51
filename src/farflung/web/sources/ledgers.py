"""The ledgers of runs, computed again only when the run or the prices have changed."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

from farflung.errors import FarflungError
from farflung.ledger import RunLedger, ledger_of
from farflung.simulator import PriceTable
from farflung.telemetry import RunFolder

__all__ = ["Ledgers"]

Stamp = tuple[tuple[int, int], ...]


class Ledgers:
    """Any thread may call; one at a time computes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[Path, tuple[Stamp, RunLedger]] = {}

    def of(self, folders: Sequence[RunFolder], prices: Path | None) -> tuple[list[RunLedger], list[str]]:
        """Return the ledgers of ``folders``, and why others could not be read. ``prices``: a price file that may not exist."""
        found, problems = [], []
        with self._lock:
            table = None
            if prices is not None and prices.is_file():
                try:
                    table = PriceTable.from_toml(prices)
                except FarflungError as error:
                    problems.append(str(error))
            for folder in folders:
                stamp = _stamp(folder.metrics, folder.attempts, folder.result, prices)
                known = self._known.get(folder.root)
                if known is None or known[0] != stamp:
                    try:
                        known = stamp, ledger_of(folder, table)
                    except FarflungError as error:
                        problems.append(f"{folder.root.name}: {error}")
                        continue
                    self._known[folder.root] = known
                found.append(known[1])
        return found, problems


def _stamp(*paths: Path | None) -> Stamp:
    """Return time and size of files (zeros: there is none)."""
    stamps = []
    for path in paths:
        try:
            status = None if path is None else path.stat()
        except OSError:
            status = None
        stamps.append((0, 0) if status is None else (status.st_mtime_ns, status.st_size))
    return tuple(stamps)
