"""What a gigabyte costs from one region to another: one rule for the limits of a job and for price tables."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

__all__ = ["Priced", "gigabyte_price"]


class Priced(Protocol):
    """An entry of a table: ``gigabyte`` is the price from region ``source`` to region ``target`` (``*``: any other region)."""

    @property
    def source(self) -> str:
        """The region, or ``*``."""

    @property
    def target(self) -> str:
        """The region, or ``*``."""

    @property
    def gigabyte(self) -> float:
        """The price of 10^9 bytes."""


def gigabyte_price(entries: Iterable[Priced], here: str, there: str) -> float:
    """The price of 10^9 bytes: the entry that names most of the way counts, of equals the last (none: 0).

    ``*`` is any other region: what stays inside of a region costs only what an entry says that names it twice.
    """
    best, price = -1, 0.0
    for entry in entries:
        fits = entry.source in (here, "*") and entry.target in (there, "*")
        named = (entry.source != "*") + (entry.target != "*")
        if fits and (here != there or named == 2) and named >= best:
            best, price = named, entry.gigabyte
    return price
