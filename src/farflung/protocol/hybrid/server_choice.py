"""Which reliable server a helper joins, and which helper should move to another one.

Source: Hybrid-PS section 3.4: a device measures its links to all servers and joins the stage with the best mean bandwidth.
Difference: with nearly equal links, noise of the measurements would send all helpers to one stage, and a pipeline is as fast as
its slowest stage. So a helper joins the stage that makes the slowest stages fastest, and its bandwidth counts by what it leaves
of its speed. Inside a stage, it joins a server with a link near the best and the fewest helpers. Cost: O(stages log stages).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from farflung.errors import InputError

__all__ = ["NEAR", "Server", "best_move", "choose_server", "effective_speed"]

#: Bandwidths of servers of one stage above this share of the best one count as equal.
NEAR = 0.8
#: Stages whose seconds differ by less than this share count as equally slow: speeds and links are measured.
_EQUAL = 0.02
#: A helper moves only if the slowest stage becomes shorter by this share.
_WORTH = 0.15


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A server of ``stage`` as a joining device sees it: ``bandwidth`` to it and back, bytes per second.

    ``work``: FLOPs of its slices in a step. ``traffic``: bytes of its slices in a step, if a helper computed all of them.
    ``power``: FLOP/s of the server and its helpers together.
    """

    name: str
    stage: int
    bandwidth: float
    work: float
    power: float
    traffic: float = 0.0
    helpers: int = 0


def effective_speed(server: Server, speed: float) -> float:
    """Return what a helper of ``speed`` FLOP/s adds to ``server``: transfers take time beside computing."""
    if speed <= 0.0 or server.work <= 0.0:
        return 0.0
    return 1.0 / (1.0 / speed + server.traffic / (server.work * server.bandwidth))


def choose_server(servers: Sequence[Server], speed: float) -> Server:
    """Return the server for one more helper of ``speed`` FLOP/s.

    Raises:
        InputError: there is no server.
    """
    if not servers:
        raise InputError("a helper needs a server to join, and can reach none; give it a way to a reliable worker")
    stages = _by_stage(servers)
    now = _seconds(servers)
    unit = _EQUAL * max(now.values()) or 1.0

    def after(stage: int) -> tuple[list[int], float, int]:
        added = fmean(effective_speed(server, speed) for server in stages[stage])
        seconds = now | {stage: _with(stages[stage], added)}
        rounded = sorted((round(value / unit) for value in seconds.values()), reverse=True)
        return rounded, -fmean(server.bandwidth for server in stages[stage]), stage

    chosen = stages[min(stages, key=after)]
    best = max(server.bandwidth for server in chosen)
    return min((s for s in chosen if s.bandwidth >= NEAR * best), key=lambda s: (s.helpers, -s.bandwidth, s.name))


def best_move(servers: Mapping[str, Sequence[Server]], speeds: Mapping[str, float], places: Mapping[str, int]) -> str:
    """Return the helper that should move to the slowest stage (empty: no move is worth it).

    ``servers``: for each helper, the servers as it sees them, with the power that they have now. ``places``: the stage of each
    helper.
    """
    best, name = 1.0 - _WORTH, ""
    for helper, seen in servers.items():
        stages, now = _by_stage(seen), _seconds(seen)
        here = places[helper]
        if here not in stages:
            continue
        slowest = max(now.values())
        there = max(now, key=lambda stage: (now[stage], -stage))
        if there == here:
            continue
        leaves = fmean(effective_speed(server, speeds[helper]) for server in stages[here])
        adds = fmean(effective_speed(server, speeds[helper]) for server in stages[there])
        moved = now | {here: _with(stages[here], -leaves), there: _with(stages[there], adds)}
        if max(moved.values()) < best * slowest:
            best, name = max(moved.values()) / slowest, helper
    return name


def _by_stage(servers: Sequence[Server]) -> dict[int, list[Server]]:
    stages: dict[int, list[Server]] = {}
    for server in servers:
        stages.setdefault(server.stage, []).append(server)
    return stages


def _seconds(servers: Sequence[Server]) -> dict[int, float]:
    """Seconds of a step's work in each stage."""
    return {stage: _with(members, 0.0) for stage, members in _by_stage(servers).items()}


def _with(members: Sequence[Server], added: float) -> float:
    return sum(server.work for server in members) / max(sum(server.power for server in members) + added, 1.0)
