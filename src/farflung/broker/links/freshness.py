"""Keeping the table of links fresh from training: workers tell what their own traffic says of their links, with each step.

What is told is worked out where the bytes are counted (``transports.goodput``). Here it is weighed against what is known: a rate
that was seen alone replaces the probe's, one that was seen in company (others may have shared the line) only raises it, and what
traffic says nothing of stays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from farflung.broker.links.table import LinkFigures, LinkTable
from farflung.messages.link_reports import Told

__all__ = ["Freshness"]

#: Smaller changes, as shares of what is known, are no news: the table is a file.
_NEWS = 0.01
#: What was seen in company passes what is known by more than this share, or it says nothing.
_MORE = 0.05


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
