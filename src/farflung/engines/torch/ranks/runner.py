"""A stage on one rank of a site."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch

from farflung.engines.base import Array, EngineSettings, MicroBatch
from farflung.engines.encoded_value import SentValues
from farflung.engines.isolated.control import Fold
from farflung.engines.site.shards import owners
from farflung.engines.torch.arrays import TORCH_DTYPES
from farflung.engines.torch.ranks.group import Buffer, Layout, RankGroup
from farflung.engines.torch.runner import TorchRunner
from farflung.errors import GraphError
from farflung.graph.cut import SubGraph
from farflung.graph.ir import Use, ValueRef

__all__ = ["RankRunner"]


class RankRunner(TorchRunner):
    """Computes micro-batches; adds and applies the gradients of the parameters that this rank owns.

    All ranks call ``fold`` and ``update`` in the same order, with the same arguments.
    """

    def __init__(
        self, subgraph: SubGraph, settings: EngineSettings, at: tuple[torch.device, RankGroup], share: RankRunner | None
    ) -> None:
        """``at``: the device of this rank, and the group."""
        device, self._group = at
        super().__init__(subgraph, settings, device, share)
        #: The gradients of micro-batches that were computed here and not added yet. Runners of one stage share them.
        self._apart: dict[tuple[int, int], dict[Use, torch.Tensor]] = {} if share is None else share._apart
        #: The sum of what this rank owns, since the last part of it ended.
        self._sum: dict[Use, torch.Tensor] = {} if share is None else share._sum
        owner, graph, own = owners(subgraph, settings, self._group.size), subgraph.graph, range(subgraph.start, subgraph.stop)
        trained = [name for name in subgraph.states if name in self.state.trained]
        spec = {name: (TORCH_DTYPES[graph.state[name].spec.dtype], graph.state[name].spec.shape) for name in trained}
        uses = [use for name in trained for use in graph.gradient_uses[name] if graph.position[use.op] in own]
        ranks = range(self._group.size)
        self._uses = [Layout({use: spec[use.state] for use in uses if owner[use.state] == rank}) for rank in ranks]
        self._parameters = [[name for name in trained if owner[name] == rank] for rank in ranks]
        self._spec = spec

    # -- gradients ----------------------------------------------------------------------------------------------------

    def backward(self, key: MicroBatch, gradients: Mapping[ValueRef, Sequence[Array]], weight: float) -> SentValues:
        """See ``StageRunner``."""
        found = super().backward(key, gradients, weight)
        if not self._settings.split_backward:
            self._set_apart(key)
        return found

    def backward_weights(self, key: MicroBatch) -> None:
        """See ``StageRunner``."""
        super().backward_weights(key)
        self._set_apart(key)

    def _set_apart(self, key: MicroBatch) -> None:
        if not self._settings.any_order:
            self._apart[key.step, key.index] = self.state.take_leaves()

    def fold(self, folds: Sequence[Fold], *, whole: bool) -> None:
        """Add gradients at the ranks that own them: in the order of ``folds``, or in any order when the sum is ``whole``.

        Raises:
            GraphError: a micro-batch has no gradients here.
        """
        if self._settings.any_order:
            if whole:
                self._reduce()
            return
        begun = {tag: self._begin(tag, fold) for tag, fold in enumerate(folds)}  # all transfers before the first addition
        for tag, fold in enumerate(folds):
            self._add(fold, begun[tag])
            if fold.close:
                self._show_sum()
                self.close_part(last=fold.last)
        if whole:
            self._show_sum()
        for tag, fold in enumerate(folds):
            for work, _ in begun[tag] if fold.rank == self._group.rank else ():  # a second wait for an arrival would not end
                work.wait()

    def _begin(self, tag: int, fold: Fold) -> list[tuple[Any, Buffer[Use]]]:
        """Begin to send the gradients of a micro-batch to their owners, or to receive what this rank owns of them."""
        mine = self._group.rank
        if fold.index < 0:
            return []
        if fold.rank != mine:
            buffer = Buffer(self._uses[mine], self._device)
            return [(self._group.receive(buffer, fold.rank, tag), buffer)] if buffer.tensors else []
        gradients = self._apart.get((fold.step, fold.index))
        if gradients is None:
            raise GraphError(f"stage {self.subgraph.stage} has no gradients of micro-batch {fold.index} on rank {mine}")
        begun = []
        for rank, layout in enumerate(self._uses):
            if rank != mine and layout.nbytes:
                buffer = Buffer(layout, self._device)
                buffer.write(gradients)
                begun.append((self._group.send(buffer, rank, tag), buffer))
        return begun

    def _add(self, fold: Fold, transfers: Sequence[tuple[Any, Buffer[Use]]]) -> None:
        """Add what this rank owns of the gradients of a micro-batch, as a backward adds to what was accumulated."""
        if fold.index < 0:
            return
        if fold.rank == self._group.rank:
            found = self._apart.pop((fold.step, fold.index))
            gradients = {use: found[use] for use in self._uses[fold.rank].places if use in found}
        else:
            for work, _ in transfers:
                work.wait()
            gradients = {use: tensor for _, buffer in transfers for use, tensor in buffer.tensors.items()}
        for use, gradient in gradients.items():
            self._sum[use] = self._sum[use].add_(gradient) if use in self._sum else gradient

    def _show_sum(self) -> None:
        """Give the sum to the leaves. Until then it is apart from them, because backwards accumulate there."""
        self.state.add_leaves(self._sum)
        self._sum.clear()

    def _reduce(self) -> None:
        """Add the gradients of all ranks at their owners."""
        self.close_part(last=True)
        gradients = self.state.take_leaves()
        begun: list[tuple[Any, Buffer[Use]]] = []
        for rank, layout in enumerate(self._uses):
            by_type: dict[torch.dtype, dict[Use, tuple[torch.dtype, Sequence[int]]]] = {}
            for use, (_, _, dtype, shape) in layout.places.items():
                by_type.setdefault(dtype, {})[use] = (dtype, shape)
            for dtype, shapes in by_type.items():
                buffer = Buffer(Layout(shapes), self._device)
                buffer.memory.zero_()  # also the gaps, which are added too
                buffer.write(gradients)
                work = self._group.reduce(buffer.memory.view(dtype), rank)
                begun.append((work, buffer))
                if rank == self._group.rank:
                    self.state.add_leaves(buffer.tensors)
        for work, _ in begun:
            work.wait()

    # -- update -------------------------------------------------------------------------------------------------------

    def update(self, rates: Sequence[float], scale: Array | None, names: Collection[str] | None = None) -> None:
        """See ``StageRunner``; then the owners send the new parameters to all."""
        super().update(rates, scale, names)
        self.share_parameters([name for owned in self._parameters for name in owned if names is None or name in names])

    def share_parameters(self, names: Sequence[str]) -> None:
        """Send the parameters ``names`` from their owners to all ranks."""
        begun = []
        for rank, owned in enumerate(self._parameters):
            chosen = [name for name in owned if name in names]
            if not chosen:
                continue
            buffer: Buffer[str] = Buffer(Layout({name: self._spec[name] for name in chosen}), self._device)
            if rank == self._group.rank:
                buffer.write({name: self.state.tensor(name).detach() for name in chosen})
            begun.append((rank, self._group.broadcast(buffer.memory, rank), buffer))
        with torch.no_grad():
            for rank, work, buffer in begun:
                work.wait()
                if rank != self._group.rank:
                    for name, tensor in buffer.tensors.items():
                        self.state.tensor(name).copy_(tensor)

    def discard(self) -> None:
        """See ``StageRunner``."""
        self._apart.clear()
        self._sum.clear()
        super().discard()
