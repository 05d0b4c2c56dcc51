"""The result of a bandwidth probe of one direction of a link."""

from __future__ import annotations

from dataclasses import dataclass

from farflung.errors import ConnectionLost, FarflungError
from farflung.messages.reports import Probed
from farflung.messages.schema import UnsetType

__all__ = ["Probe", "probe_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """What a probe found: seconds one way, payload bytes per second; through which relay (empty: directly). ``spread``: between
    the slowest and the fastest fifth of the time, as a share of the latter."""

    alpha: float
    beta: float
    spread: float = 0.0
    relay: str = ""


def probe_of(message: Probed) -> Probe | FarflungError:
    """Return what a worker's probe found, or the error that it met."""
    if isinstance(message.alpha, UnsetType) or isinstance(message.beta, UnsetType):
        return ConnectionLost(message.cause or "no answer")
    return Probe(alpha=message.alpha, beta=message.beta, spread=message.spread or 0.0, relay=message.relay or "")
