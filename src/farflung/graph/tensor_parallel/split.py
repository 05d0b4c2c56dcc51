"""How one dimension of a tensor is divided among the ranks of a site."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from farflung.graph.nodes import TensorSpec, ValueRef

__all__ = ["ComputedWhole", "Split", "SplitBySections", "SplitOfView"]


@dataclass(frozen=True, slots=True)
class Split:
    """Dimension ``dim`` consists of ``sections``, and each rank has an equal part of each section.

    One section is usual. A weight that makes queries, keys and values at once has three. The part of the last rank is padded
    where a section is no multiple of the ranks, so that all ranks have tensors of one shape. Only vocabularies have that.
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

    def even(self, ranks: int) -> bool:
        """Whether no part is padded."""
        return not any(section % ranks for section in self.sections)

    def part(self, ranks: int) -> int:
        """The size of the dimension on a rank, padding included."""
        return sum(-(-section // ranks) for section in self.sections)

    def ranges(self, rank: int, ranks: int) -> list[tuple[int, int]]:
        """Where the parts of ``rank`` start and end in the whole dimension."""
        found, begin = [], 0
        for section in self.sections:
            part = -(-section // ranks)
            found.append((begin + min(rank * part, section), begin + min((rank + 1) * part, section)))
            begin += section
        return found

    def local(self, spec: TensorSpec, ranks: int) -> TensorSpec:
        """What one rank has of a tensor of ``spec``."""
        shape = list(spec.shape)
        shape[self.dim] = self.part(ranks)
        return TensorSpec(dtype=spec.dtype, shape=tuple(shape))


class ComputedWhole(Exception):
    """Ranks cannot divide an operator: all of them compute the whole of it."""


class SplitBySections(Exception):
    """An operator would cut a divided dimension elsewhere than between sections. It needs the sections ``parts``."""

    def __init__(self, parts: Sequence[int]) -> None:
        super().__init__()
        self.parts = tuple(parts)


class SplitOfView(Exception):
    """An operator needs ``value``, which is a view of a weight, divided as ``split`` says."""

    def __init__(self, value: ValueRef, split: Split) -> None:
        super().__init__()
        self.value, self.split = value, split
