"""The gradients of a stage whose parameters are divided: during a backward, owners add those of one block after the other.

A rank has whole gradients of two blocks at most: one is computed, and that of the block before is on its way. Micro-batches that
compute together are added by their order in the job, so the sums have the bits of a plain loop.
Source: ZeRO stage 2 (Rajbhandari et al. 2020, section 5.2), a reduce-scatter. What differs: the owner adds, in the job's order.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch

from farflung.engines.isolated.control import Fold
from farflung.engines.torch.ranks.group import Buffer, Layout, RankGroup
from farflung.graph.ir import Use

__all__ = ["BlockGradients"]

Tensors = Mapping[Use, torch.Tensor]


class BlockGradients:
    """The sums of what this rank owns, and the block whose gradients are on their way. All ranks leave all blocks in turn."""

    def __init__(
        self,
        layouts: Sequence[Sequence[Layout[Use]]],
        at: tuple[torch.device, RankGroup],
        ends: Sequence[int],
        take: Callable[[Collection[Use]], Mapping[Use, torch.Tensor]],
        share: BlockGradients | None,
    ) -> None:
        """``layouts``: of each block in the order of a backward, the uses that each rank owns. ``ends``: the micro-batches before
        which parts of the sum end. ``take``: takes the gradients of uses from the leaves. ``share``: whose sums are continued.
        """
        self._layouts, self._ends, self._take = layouts, tuple(ends), take
        self._device, self._group = at
        #: The sum of each part of the step that has not ended, by the number of the part.
        self._sums: dict[int, dict[Use, torch.Tensor]] = {} if share is None else share._sums
        self._order: tuple[Fold, ...] = ()
        #: The block on its way: for each micro-batch what to wait for, and the gradients that this rank owns.
        self._arriving: list[tuple[Fold, list[Any], Tensors]] = []
        #: Transfers to other ranks, with the memory that they read.
        self._leaving: list[tuple[Any, Buffer[Use]]] = []

    def expect(self, order: Sequence[Fold]) -> None:
        """The micro-batches of the next backward and their ranks, in the order in which owners add them."""
        self._order = tuple(order)

    def leave(self, step: int) -> None:
        """The backward has left block ``step``: add the block before, and begin to send this one to its owners."""
        self.finish()
        mine, layouts = self._group.rank, self._layouts[step]
        for number, fold in enumerate(self._order):
            tag = step * len(self._order) + number
            if fold.rank != mine:
                if layouts[mine].nbytes:
                    buffer = Buffer(layouts[mine], self._device)
                    self._arriving.append((fold, [self._group.receive(buffer, fold.rank, tag)], buffer.tensors))
                continue
            gradients = self._take([use for layout in layouts for use in layout.places])
            self._arriving.append((fold, [], {use: gradients[use] for use in layouts[mine].places if use in gradients}))
            for rank, layout in enumerate(layouts):
                if rank != mine and layout.nbytes:
                    buffer = Buffer(layout, self._device)
                    buffer.write(gradients)
                    self._leaving.append((self._group.send(buffer, rank, tag), buffer))

    def finish(self) -> None:
        """Wait for the block on its way, and add it."""
        arriving, self._arriving = self._arriving, []
        leaving, self._leaving = self._leaving, []
        for fold, works, gradients in arriving:
            for work in works:
                work.wait()
            total = self._sums.setdefault(bisect_right(self._ends, fold.index), {})
            for use, gradient in gradients.items():
                total[use] = total[use].add_(gradient) if use in total else gradient
        for work, _ in leaving:
            work.wait()

    def take(self) -> Mapping[Use, torch.Tensor]:
        """The sum of the part that ends first, gone from here."""
        return self._sums.pop(min(self._sums)) if self._sums else {}

    def clear(self) -> None:
        """Forget all sums."""
        self._sums.clear()
