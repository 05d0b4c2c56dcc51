"""Parameters that are divided among the ranks of a site. Each lies on its owner, and elsewhere only while a block needs it.

A rank that does not own a parameter has a tensor of its shape all the time, whose memory comes and goes as in FSDP2. So the
operators of a stage, and what autograd saves of them, refer to one tensor in all micro-batches.
Source: ZeRO stage 3 (Rajbhandari et al. 2020, section 5.3); PyTorch's ``fully_shard``. What differs: whole parameters have
owners (``engines.site.shards``), and a gather is one broadcast of each owner, because their parts differ in size.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from farflung.engines.torch.arrays import TORCH_DTYPES
from farflung.engines.torch.ranks.group import Buffer, Layout, RankGroup
from farflung.graph.cut import SubGraph
from farflung.graph.parameter_blocks import Block, gathered_bytes
from farflung.memory_budget import MemoryBudget

__all__ = ["Gathering", "Shard", "Shards"]


@dataclass(slots=True, eq=False)
class Shard:
    """Parameters of one owner that the same blocks read, in one piece of memory."""

    owner: int
    memory: torch.Tensor
    tensors: Mapping[str, torch.Tensor]
    #: Whether all ranks have it now. It is the same on each of them, because all go through the blocks in one order.
    gathered: bool = False
    nbytes: int = field(init=False)

    def __post_init__(self) -> None:
        self.nbytes = self.memory.nbytes

    def begin(self, group: RankGroup) -> Any:
        """Begin to send it from its owner to all ranks; return what to wait for."""
        self.gathered = True
        if self.owner != group.rank:
            self.memory.untyped_storage().resize_(self.nbytes)
        return group.broadcast(self.memory, self.owner)

    def free(self, rank: int) -> None:
        """Free its memory, except at its owner."""
        self.gathered = False
        if self.owner != rank:
            self.memory.untyped_storage().resize_(0)


class Shards:
    """The parameters of a stage on one rank. Runners of one stage share them."""

    def __init__(
        self,
        subgraph: SubGraph,
        blocks: Sequence[Block],
        owner: Mapping[str, int],
        at: tuple[torch.device, RankGroup],
        budget: MemoryBudget,
    ) -> None:
        """``owner``: the rank of each parameter. ``at``: the device of this rank, and the group.

        On a CPU, what this rank owns and gathered blocks count in ``budget`` while this object lives.

        Raises:
            MemoryExceeded: there is not enough.
        """
        device, self.group = at
        graph = subgraph.graph
        together: dict[tuple[int, tuple[int, ...]], list[str]] = {}
        for name, rank in owner.items():
            readers = tuple(number for number, block in enumerate(blocks) if name in block.reads)
            together.setdefault((rank, readers), []).append(name)
        layouts: list[tuple[int, Layout[str]]] = []
        for (rank, _), names in sorted(together.items()):
            spec = {name: graph.state[name].spec for name in names}
            layouts.append((rank, Layout({name: (TORCH_DTYPES[one.dtype], one.shape) for name, one in spec.items()})))
        if device.type == "cpu":
            nbytes = gathered_bytes(subgraph) + sum(layout.nbytes for rank, layout in layouts if rank == self.group.rank)
            budget.reserve(nbytes, "the parameters of a rank, and those of two blocks")
            budget.release_with(self, nbytes)
        self.shards: list[Shard] = []
        self.of: dict[str, Shard] = {}
        for rank, layout in layouts:
            buffer = Buffer(layout, device)
            # Each tensor counts its changes alone: an update of one must not look like a change of another one.
            shard = Shard(rank, buffer.memory, {name: tensor.data for name, tensor in buffer.tensors.items()})
            shard.free(self.group.rank)
            self.shards.append(shard)
            self.of |= dict.fromkeys(layout.places, shard)

    def owned(self, name: str) -> bool:
        """Whether ``name`` lies here all the time."""
        return name not in self.of or self.of[name].owner == self.group.rank

    def tensor(self, name: str) -> torch.Tensor:
        """The tensor of a parameter, which may have no memory now."""
        return self.of[name].tensors[name]

    def steps(self, reads: Sequence[Collection[str]]) -> list[list[Shard]]:
        """The shards that the parameters ``reads`` of each block lie in, in one order on all ranks."""
        return [
            [shard for shard in self.shards if shard.nbytes and not reading.isdisjoint(shard.tensors)]
            for reading in map(set, reads)
        ]

    def addresses(self) -> frozenset[int]:
        """Where the memory of what is gathered starts."""
        return frozenset(shard.memory.untyped_storage().data_ptr() for shard in self.shards if shard.gathered)


class Gathering:
    """One pass through the blocks: gathers the shards of a block before it computes, and those of the next one meanwhile.

    All ranks make the same passes in the same order, also those that compute nothing in them.
    """

    def __init__(self, shards: Shards, steps: Sequence[Sequence[Shard]], left: Callable[[int], None] = lambda step: None) -> None:
        """``steps``: the shards of each block, in the order of the pass. ``left`` is called after each block."""
        self._shards, self._steps, self._left = shards, steps, left
        self._at = -1
        self._begun: list[tuple[int, Any]] = []

    def reach(self, step: int) -> None:
        """Go on to ``step``, whose shards are here afterwards."""
        while self._at < step:
            last, self._at = self._at, self._at + 1
            if last >= 0:
                self._leave(last)
            self._begin(self._at)
            for _, work in [one for one in self._begun if one[0] == self._at]:
                work.wait()
            self._begun = [one for one in self._begun if one[0] != self._at]
            self._begin(self._at + 1)

    def end(self) -> None:
        """Go through the steps that are left, and free everything."""
        self.reach(len(self._steps) - 1)
        if self._at >= 0:
            self._leave(self._at)
        self._steps = ()
        self._at = -1

    def _begin(self, step: int) -> None:
        for shard in self._steps[step] if step < len(self._steps) else ():
            if not shard.gathered:
                self._begun.append((step, shard.begin(self._shards.group)))

    def _leave(self, step: int) -> None:
        following = self._steps[step + 1] if step + 1 < len(self._steps) else ()
        for shard in self._steps[step]:
            if shard not in following:
                shard.free(self._shards.group.rank)
        self._left(step)
