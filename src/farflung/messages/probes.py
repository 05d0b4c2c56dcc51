"""The result of a bandwidth probe of one direction of a link."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from farflung.errors import ConnectionLost, FarflungError
from farflung.messages.fields import number, text

__all__ = ["Probe", "read_probe"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """What a probe found: seconds one way, payload bytes per second; through which relay (empty: directly). ``spread``: between
    the slowest and the fastest fifth of the time, as a share of the latter."""

    alpha: float
    beta: float
    spread: float = 0.0
    relay: str = ""


def read_probe(header: Mapping[str, Any]) -> Probe | FarflungError:
    """A worker's answer: what it found, or why it could not.

    Raises:
        WireError: it is malformed.
    """
    if "cause" in header:
        return ConnectionLost(text(header, "cause"))
    spread = number(header, "spread", low=0.0) if "spread" in header else 0.0
    relay = text(header, "relay", limit=300) if "relay" in header else ""
    return Probe(alpha=number(header, "alpha", low=0.0), beta=number(header, "beta", low=1.0), spread=spread, relay=relay)
