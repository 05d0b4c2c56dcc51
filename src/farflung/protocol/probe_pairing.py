"""Who probes whom, when: rounds in which no device takes part twice, so that no probe disturbs another one.

Pairs: a round-robin tournament by the circle method (Kirkman, 1847): one device stays, the others turn. N devices meet in N - 1
rounds (N if N is odd), each pair once. Stars: devices that send to two others at once, so that a cap on all that a device sends
shows; about three rounds whatever N is.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["star_rounds", "tournament"]


def tournament(names: Sequence[str]) -> list[list[tuple[str, str]]]:
    """Rounds of disjoint pairs in which every two of ``names`` meet once. O(n^2)."""
    circle: list[str | None] = list(names)
    if len(circle) < 2:
        return []
    if len(circle) % 2:
        circle.append(None)  # who meets nobody rests
    rounds = []
    for _ in range(len(circle) - 1):
        half = len(circle) // 2
        meetings = zip(circle[:half], reversed(circle[half:]), strict=True)
        rounds.append([(a, b) for a, b in meetings if a is not None and b is not None])
        circle = [circle[0], circle[-1], *circle[1:-1]]
    return rounds


def star_rounds(names: Sequence[str]) -> list[list[tuple[str, str, str]]]:
    """Rounds of disjoint triples; the first of each sends to the other two. Each of ``names`` (three or more) is first once."""
    count = len(names)
    if count < 3:
        return []
    rounds: list[list[tuple[str, str, str]]] = []
    waiting = list(range(count))
    while waiting:
        used: set[int] = set()
        triples = []
        for first in list(waiting):
            others = [(first + step) % count for step in range(1, count)]
            free = [other for other in others if other not in used]
            if first not in used and len(free) >= 2:
                triples.append((names[first], names[free[0]], names[free[1]]))
                used |= {first, free[0], free[1]}
                waiting.remove(first)
        rounds.append(triples)
    return rounds
