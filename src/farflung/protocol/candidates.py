"""Which of many free members a run is planned for.

The cost of planning grows with the square of the devices, and each of them measures its speed before. A run that asks for so many
workers needs no more candidates than this from one region, where links are alike: its fastest ones, and those with the most
memory. Few members are all candidates. Cost: O(n log n).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from farflung.protocol.members import Member

__all__ = ["candidates"]

#: So many members are all candidates.
_FEW = 128


def candidates(members: Sequence[Member], workers: int | None, keep: Collection[str] = ()) -> Sequence[Member]:
    """Return those of ``members`` for which a run that asks for ``workers`` is planned (None: all), in their order.

    ``keep``: names of members that are candidates whatever they are.
    """
    if workers is None or len(members) <= _FEW:
        return members
    regions: dict[str, list[Member]] = {}
    for member in members:
        regions.setdefault(member.offer.region, []).append(member)
    chosen = set(keep)
    for found in regions.values():
        fastest = sorted(found, key=lambda one: -one.speed)[:workers]
        largest = sorted(found, key=lambda one: -one.offer.memory)[:workers]
        chosen |= {one.name for one in (*fastest, *largest)}
    return [one for one in members if one.name in chosen]
