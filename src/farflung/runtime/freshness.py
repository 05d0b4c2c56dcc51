"""Keeping the table of links fresh from training: workers tell what their own traffic says of their links, with each step.

What is told is worked out where the bytes are counted (``transports.goodput``). Here it is weighed against what is known: a rate
that was seen alone replaces the probe's, one that was seen in company (others may have shared the line) only raises it, and what
traffic says nothing of stays.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from farflung.errors import WireError
from farflung.runtime.link_table import LinkFigures, LinkTable
from farflung.transports.base import LinkStatistics

__all__ = ["Freshness", "Told", "read_links", "write_links"]

_MOST, _NAME = 4096, 200
#: Smaller changes, as shares of what is known, are no news: the table is a file.
_NEWS = 0.01
#: What was seen in company passes what is known by more than this share, or it says nothing.
_MORE = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """``LinkStatistics.alpha``, ``beta`` and ``least`` of the way to a peer, and through which relay it went."""

    alpha: float
    beta: float = 0.0
    least: float = 0.0
    relay: str = ""


class Freshness:
    """What training says, for ``table``."""

    def __init__(self, table: LinkTable) -> None:
        self._table = table

    def take(
        self, worker: str, told: Mapping[str, Told], relay: Callable[[str], str] | None = None
    ) -> Mapping[tuple[str, str], LinkFigures]:
        """Weigh what ``worker`` tells of its ways to peers: the directions that have new figures. ``relay``: through whom the
        plan lets a peer be reached; what went another way says nothing of it."""
        found = {}
        for peer, seen in told.items():
            if relay is not None and relay(peer) != seen.relay:
                continue
            known = self._table.get(worker, peer)
            if known is not None and known.relay != seen.relay:
                known = None
            figures = _weigh(known, seen)
            if figures is not None:
                self._table.put(worker, peer, figures)
                found[worker, peer] = figures
        return found


def _weigh(known: LinkFigures | None, seen: Told) -> LinkFigures | None:
    """The new figures (None: there are none)."""
    if known is None:
        if not (seen.beta and seen.alpha):
            return None
        return LinkFigures(alpha=seen.alpha, beta=seen.beta, source="training", relay=seen.relay)
    fresh = replace(known, alpha=seen.alpha or known.alpha)
    if seen.beta:
        fresh = replace(fresh, beta=seen.beta, source="training")
    if seen.least > (1 + _MORE) * fresh.beta:
        fresh = replace(fresh, beta=seen.least, source="training")
    news = fresh.source != known.source or _differ(fresh.alpha, known.alpha) or _differ(fresh.beta, known.beta)
    return fresh if news else None


def _differ(one: float, other: float) -> bool:
    return abs(one - other) > _NEWS * max(one, other)


def write_links(seen: Mapping[str, LinkStatistics]) -> list[list[Any]]:
    """What a worker tells: of each link that traffic said something of."""
    return [
        [peer, float(link.alpha), link.beta, link.least, link.relay] for peer, link in seen.items() if link.beta or link.least
    ]


def read_links(value: object) -> dict[str, Told]:
    """What ``write_links`` wrote.

    Raises:
        WireError: it is none.
    """
    if not isinstance(value, list) or len(value) > _MOST:
        raise WireError(f"what traffic says of links must be a list of at most {_MOST}")
    found = {}
    for entry in value:
        if not isinstance(entry, list) or len(entry) != 5:
            raise WireError("what traffic says of a link must be five values")
        peer, alpha, beta, least, relay = entry
        good = all(isinstance(x, float) and math.isfinite(x) and x >= 0 for x in (alpha, beta, least))
        if not good or not all(isinstance(name, str) and len(name) <= _NAME for name in (peer, relay)):
            raise WireError("what traffic says of a link must be two names and three numbers from 0")
        found[peer] = Told(alpha=alpha, beta=beta, least=least, relay=relay)
    return found
