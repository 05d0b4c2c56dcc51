"""Which reliable server a helper joins.

Source: Hybrid-PS section 3.4: a device measures its links to all servers and joins the stage with the best mean bandwidth.
Difference: stages whose mean bandwidth is within ``NEAR`` of the best count as equally near. Of these, the stage with the most
work for its power is chosen; of its servers, one with a link near the best and with the fewest helpers. Cost: O(servers).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from farflung.errors import InputError

__all__ = ["NEAR", "Server", "choose_server"]

#: Bandwidths above this share of the best one count as equal.
NEAR = 0.8


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A server of ``stage`` as a joining device sees it: ``bandwidth`` to it and back, bytes per second.

    ``work``: FLOPs of its slices in a step. ``power``: FLOP/s of the server and its helpers together.
    """

    name: str
    stage: int
    bandwidth: float
    work: float
    power: float
    helpers: int = 0


def choose_server(servers: Sequence[Server]) -> Server:
    """Return the server for one more helper.

    Raises:
        InputError: there is no server.
    """
    if not servers:
        raise InputError("a helper needs a server to join, and can reach none; give it a way to a reliable worker")
    stages: dict[int, list[Server]] = {}
    for server in servers:
        stages.setdefault(server.stage, []).append(server)
    mean = {stage: fmean(server.bandwidth for server in held) for stage, held in stages.items()}
    near = [stage for stage in stages if mean[stage] >= NEAR * max(mean.values())]
    load = {stage: sum(s.work for s in stages[stage]) / sum(s.power for s in stages[stage]) for stage in near}
    chosen = stages[max(near, key=lambda stage: (load[stage], -stage))]
    best = max(server.bandwidth for server in chosen)
    return min((s for s in chosen if s.bandwidth >= NEAR * best), key=lambda s: (s.helpers, -s.bandwidth, s.name))
