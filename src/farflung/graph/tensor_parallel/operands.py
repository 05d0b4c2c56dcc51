"""An operator of which ranks may compute a part: what it reads, and what a rank computes of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from farflung.graph.nodes import Arg, Op, StateRef, TensorSpec, ValueRef
from farflung.graph.tensor_parallel.split import ComputedWhole, Split

__all__ = ["Divided", "Operands", "Rule"]


@dataclass(frozen=True, slots=True)
class Divided:
    """What a rank computes of an operator.

    ``splits``: of each result. ``args``: None: as they are. ``states``: what it reads of states that are divided for it alone.
    ``summed``: the results of the ranks are added. ``sums``: bytes of each sum; empty: one of the whole result.
    """

    splits: tuple[Split | None, ...]
    args: tuple[Arg, ...] | None = None
    states: Mapping[str, Split] = field(default_factory=dict)
    summed: bool = False
    sums: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Operands:
    """An operator, the whole specs of what it reads, and how ranks divide that. ``split`` and ``spec`` take references."""

    op: Op
    ranks: int
    spec: Callable[[ValueRef | StateRef], TensorSpec]
    split: Callable[[ValueRef | StateRef], Split | None]

    def arg(self, place: int, name: str = "", default: Arg = None) -> Arg:
        """The argument at ``place``, or the keyword ``name``."""
        return self.op.args[place] if place < len(self.op.args) else dict(self.op.kwargs).get(name, default)

    def tensor(self, place: int = 0) -> ValueRef | StateRef:
        """The tensor at ``place``.

        Raises:
            ComputedWhole: there is another argument.
        """
        found = self.arg(place)
        if not isinstance(found, (ValueRef, StateRef)):
            raise ComputedWhole
        return found

    def only(self) -> tuple[ValueRef | StateRef, Split]:
        """The first argument and its split.

        Raises:
            ComputedWhole: it is not divided.
        """
        ref = self.tensor()
        split = self.split(ref)
        if split is None:
            raise ComputedWhole
        return ref, split

    def dim(self, place: int, default: int, ranks: int, name: str = "dim") -> int:
        """The dimension that the argument at ``place`` names of a tensor with ``ranks`` dimensions."""
        found = self.arg(place, name, default)
        if not isinstance(found, int):
            raise ComputedWhole
        return found % ranks

    def replaced(self, place: int, arg: Arg) -> tuple[Arg, ...]:
        """The arguments with another one at ``place``.

        Raises:
            ComputedWhole: that one is a keyword.
        """
        if place >= len(self.op.args):
            raise ComputedWhole
        return (*self.op.args[:place], arg, *self.op.args[place + 1 :])


Rule = Callable[[Operands], Divided]
