"""How one dimension of a tensor is divided among the ranks of a site."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from farflung.graph.nodes import TensorSpec

__all__ = ["ComputedWhole", "Split", "SplitBySections"]


@dataclass(frozen=True, slots=True)
class Split:
    """Dimension ``dim`` consists of ``sections``, and each rank has an equal part of each section.

    One section is usual. A weight that makes queries, keys and values at once has three.
    """

    dim: int
    sections: tuple[int, ...]

    @property
    def size(self) -> int:
        """The size of the whole dimension."""
        return sum(self.sections)

    def at(self, dim: int) -> Split:
        """The same of another dimension."""
        return Split(dim, self.sections)

    def ranges(self, rank: int, ranks: int) -> list[tuple[int, int]]:
        """Where the parts of ``rank`` start and end in the whole dimension."""
        found, begin = [], 0
        for section in self.sections:
            part = section // ranks
            found.append((begin + rank * part, begin + (rank + 1) * part))
            begin += section
        return found

    def local(self, spec: TensorSpec, ranks: int) -> TensorSpec:
        """What one rank has of a tensor of ``spec``."""
        shape = list(spec.shape)
        shape[self.dim] //= ranks
        return TensorSpec(dtype=spec.dtype, shape=tuple(shape))


class ComputedWhole(Exception):
    """Ranks cannot divide an operator: all of them compute the whole of it."""


class SplitBySections(Exception):
    """An operator would cut a divided dimension elsewhere than between sections. It needs the sections ``parts``."""

    def __init__(self, parts: Sequence[int]) -> None:
        super().__init__()
        self.parts = tuple(parts)
