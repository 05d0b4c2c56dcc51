"""Where a divided dimension goes when an operator changes the shape of a tensor."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

from farflung.graph.tensor_parallel.split import ComputedWhole, Split, SplitBySections

__all__ = ["pieces_of", "reshaped"]

#: More equal sections than that are no queries, keys and values.
_MOST_SECTIONS = 8


def reshaped(before: Sequence[int], after: Sequence[int], split: Split, ranks: int) -> Split:
    """Where ``split`` of a tensor of shape ``before`` is in the shape ``after``, which has the same elements in the same order.

    Raises:
        ComputedWhole: a rank's elements are no equal part of one dimension.
        SplitBySections: they are if the dimension has other sections.
    """
    lead = _product(before[: split.dim])
    dim, passed = 0, 1
    while dim < len(after) and (passed < lead or after[dim] == 1):
        passed *= after[dim]
        dim += 1
    if passed != lead or dim == len(after):
        raise ComputedWhole
    size, found = split.size, after[dim]
    if found % size == 0:  # merged with dimensions behind it
        return Split(dim, tuple(section * (found // size) for section in split.sections))
    if size % found:
        raise ComputedWhole
    rest = size // found
    parts = split.sections
    if all(part % rest == 0 and part // rest % ranks == 0 for part in parts):
        return Split(dim, tuple(part // rest for part in parts))
    if len(parts) == found and len(set(parts)) == 1:  # the sections have got a dimension of their own
        return reshaped([*after[:dim], found, rest], after, Split(dim + 1, (rest,)), ranks)
    raise SplitBySections((rest,) * found) if len(parts) == 1 and found <= _MOST_SECTIONS else ComputedWhole


def pieces_of(split: Split, pieces: Sequence[int]) -> list[tuple[int, ...]]:
    """The sections of each of the ``pieces`` into which an operator cuts the divided dimension.

    Raises:
        SplitBySections: a piece ends inside of a section. The dimension could have sections that end there, too.
        ComputedWhole: there would be too many sections.
    """
    found: list[tuple[int, ...]] = []
    left = list(split.sections)
    for piece in pieces:
        taken: list[int] = []
        while sum(taken) < piece and left:
            taken.append(left.pop(0))
        if sum(taken) != piece or not taken:
            ends = sorted({*accumulate(split.sections), *accumulate(pieces)})
            sections = [end - begin for begin, end in pairwise([0, *ends])]
            raise SplitBySections(sections) if len(sections) <= _MOST_SECTIONS else ComputedWhole
        found.append(tuple(taken))
    return found


def _product(sizes: Sequence[int]) -> int:
    found = 1
    for size in sizes:
        found *= size
    return found
