"""Who probes whom, when: rounds in which no device takes part twice, so that no probe disturbs another one.

Pairs: a round-robin tournament by the circle method (Kirkman, 1847): one device stays, the others turn. N devices meet in N - 1
rounds (N if N is odd), each pair once. Stars: devices that send to two others at once, so that a cap on all that a device sends
shows; about three rounds whatever N is.

Samples: in large clusters the links inside a region are alike, and so are those between two regions. So each device meets a few
of its region, and of each two regions a few devices meet. The rounds grow with the regions, not with the devices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

__all__ = ["sampled_rounds", "star_rounds", "tournament"]

#: How many of its region a device meets, and how many pairs of each two regions meet.
_WITHIN, _BETWEEN = 4, 3


def tournament(names: Sequence[str], most: int | None = None) -> list[list[tuple[str, str]]]:
    """Rounds of disjoint pairs in which every two of ``names`` meet once; only the first ``most`` rounds. O(n^2)."""
    circle: list[str | None] = list(names)
    if len(circle) < 2:
        return []
    if len(circle) % 2:
        circle.append(None)  # who meets nobody rests
    rounds = []
    for _ in range(min(len(circle) - 1, most or len(circle))):
        half = len(circle) // 2
        meetings = zip(circle[:half], reversed(circle[half:]), strict=True)
        rounds.append([(a, b) for a, b in meetings if a is not None and b is not None])
        circle = [circle[0], circle[-1], *circle[1:-1]]
    return rounds


def sampled_rounds(regions: Mapping[str, str]) -> list[list[tuple[str, str]]]:
    """Rounds of disjoint pairs that sample the links of ``regions`` (name -> region; without one, a region of its own).

    Each device meets ``_WITHIN`` others of its region. Then ``_BETWEEN`` pairs of each two regions meet, one pair at a time:
    pairs that probe at once would share the line between the regions. O(n) for each region.
    """
    groups: dict[tuple[str, str], list[str]] = {}
    for name, region in regions.items():
        groups.setdefault((region, "" if region else name), []).append(name)
    inside = [tournament(group, _WITHIN) for group in groups.values()]
    rounds = [[pair for one in inside if turn < len(one) for pair in one[turn]] for turn in range(_WITHIN)]
    members = {str(number): group for number, group in enumerate(groups.values())}
    for turn in range(_BETWEEN):
        for number, meetings in enumerate(tournament(list(members)), start=turn):
            pairs = [(members[a], members[b]) for a, b in meetings]
            # other members each time, until all of both regions have met
            met = [(a[number % len(a)], b[number % len(b)]) for a, b in pairs if turn < max(len(a), len(b))]
            rounds.append(met)
    return [found for found in rounds if found]


def star_rounds(names: Sequence[str], peers: Mapping[str, Sequence[str]] | None = None) -> list[list[tuple[str, str, str]]]:
    """Rounds of disjoint triples; the first of each sends to the other two. Each of ``names`` (three or more) is first once.

    ``peers``: to whom each may send; one with fewer than two peers is never first.
    """
    if len(names) < 3:
        return []
    rounds: list[list[tuple[str, str, str]]] = []
    places = {name: place for place, name in enumerate(names)}
    waiting = [name for name in names if peers is None or len(peers.get(name, ())) > 1]
    while waiting:
        used: set[str] = set()
        triples = []
        for first in list(waiting):
            if first in used:
                continue
            others = peers[first] if peers is not None else [*names[places[first] + 1 :], *names[: places[first]]]
            free = [other for other in others if other not in used][:2]
            if len(free) == 2:
                triples.append((first, *free))
                used |= {first, *free}
                waiting.remove(first)
        rounds.append([(a, b, c) for a, b, c in triples])
    return rounds
