"""Figures of links from training traffic, which workers report with each step.

``transports.goodput`` computes the figures where the bytes are counted. Here they are compared with the known ones:

- A rate that was measured alone replaces the known rate.
- A rate that was measured together with other traffic is a lower bound, because the traffic may share an up-link. It can only
  raise the known rate.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from farflung.broker.links.table import LinkFigures, LinkTable
from farflung.messages.conversions.link_reports import LinkReport

__all__ = ["update_from_traffic"]

#: Smaller changes (shares of the known value) are not stored: the table is a file.
_NEWS = 0.01
#: A lower bound must exceed the known rate by this share.
_MORE = 0.05


def update_from_traffic(
    table: LinkTable, worker: str, reports: Mapping[str, LinkReport], relay: Callable[[str], str] | None = None
) -> Mapping[tuple[str, str], LinkFigures]:
    """Store the new figures of the directions from ``worker`` to its peers in ``table``, and return them.

    ``relay``: returns the relay between the worker and a peer in the plan. Figures of another route are ignored.
    """
    found = {}
    for peer, seen in reports.items():
        if relay is not None and relay(peer) != seen.relay:
            continue
        known = table.get(worker, peer)
        if known is not None and known.relay != seen.relay:
            known = None
        figures = _weigh(known, seen)
        if figures is not None:
            table.put(worker, peer, figures)
            found[worker, peer] = figures
    return found


def _weigh(known: LinkFigures | None, seen: LinkReport) -> LinkFigures | None:
    """Return the new figures (None: nothing changes)."""
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
