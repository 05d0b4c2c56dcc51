"""What a worker reports of its links after a step, from the traffic of training itself."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from farflung.errors import WireError
from farflung.transports.base import LinkStatistics

__all__ = ["Told", "read_links", "write_links"]

_MOST, _NAME = 4096, 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """``LinkStatistics.alpha``, ``beta`` and ``least`` of the way to a peer, and through which relay it went."""

    alpha: float
    beta: float = 0.0
    least: float = 0.0
    relay: str = ""


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
