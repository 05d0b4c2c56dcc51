"""A stage on one rank of a site that divides its parameters: each block's parameters are gathered before it computes.

A forward goes through the blocks in their order, and a backward in the reverse one. Autograd runs the operators of a backward in
the reverse order of their forward, so the first operator of a block that goes back asks for the parameters of that block.
When a backward leaves a block, the owners add the block's gradients (``block_gradients``). A split backward is computed as a
whole, because its second part would gather everything once more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from farflung.engines.base import Array, EngineSettings, Forward, MicroBatch
from farflung.engines.encoded_value import SentValues
from farflung.engines.isolated.control import Fold
from farflung.engines.site.shards import owners
from farflung.engines.stateful_runner import trained_states
from farflung.engines.torch.optimizers.offloaded_update import OffloadedOptimizer
from farflung.engines.torch.optimizers.wide_update import AnyOptimizer
from farflung.engines.torch.program import Call
from farflung.engines.torch.ranks.block_gradients import BlockGradients
from farflung.engines.torch.ranks.group import Layout, RankGroup
from farflung.engines.torch.ranks.runner import RankRunner
from farflung.engines.torch.ranks.sharded_states import ShardedStates
from farflung.engines.torch.ranks.shards import Gathering, Shards
from farflung.engines.torch.states import StageStates
from farflung.graph.cut import SubGraph
from farflung.graph.ir import Use, ValueRef
from farflung.graph.parameter_blocks import Block, parameter_blocks

__all__ = ["ShardedRunner"]


class ShardedRunner(RankRunner):
    """See ``RankRunner``. All ranks make each forward and each backward, those without a micro-batch by ``assist``."""

    def __init__(
        self, subgraph: SubGraph, settings: EngineSettings, at: tuple[torch.device, RankGroup], share: ShardedRunner | None
    ) -> None:
        """``at``: the device of this rank, and the group."""
        self._blocks = parameter_blocks(subgraph)
        super().__init__(subgraph, replace(settings, split_backward=False), at, share)
        shards = self._shards
        self._ahead = shards.steps([block.reads for block in self._blocks])
        self._back = shards.steps([block.back for block in reversed(self._blocks)])
        self._pass = Gathering(shards, ())
        others = None if share is None else share.gradients_of_blocks
        layouts = [self._layouts(block) for block in reversed(self._blocks)]
        self.gradients_of_blocks: BlockGradients = BlockGradients(layouts, at, settings.part_ends, self.state.take_leaves, others)
        self._program.use_calls(self._gathering_calls())

    def _layouts(self, block: Block) -> list[Layout[Use]]:
        """For each rank the uses of its parameters whose gradients are complete when a backward leaves ``block``."""
        graph, positions = self.subgraph.graph, self.subgraph.positions
        own = {graph.ops[position].name for position in positions[block.start : block.stop]}
        return [Layout({use: place[2:] for use, place in whole.places.items() if use.op in own}) for whole in self._uses]

    @property
    def _shards(self) -> Shards:
        assert isinstance(self.state, ShardedStates)
        return self.state.shards

    def make_states(
        self, subgraph: SubGraph, settings: EngineSettings, device: torch.device, share: StageStates | None
    ) -> StageStates:
        """See ``TorchRunner``."""
        if isinstance(share, ShardedStates):
            shards = share.shards
        else:
            owner = owners(subgraph, settings, self._group.size)
            shards = Shards(subgraph, self._blocks, owner, (device, self._group), settings.budget)
        return ShardedStates(subgraph, (device, settings.budget), trained_states(subgraph, settings), shards, share)

    def make_optimizer(self, names: Sequence[str]) -> AnyOptimizer | OffloadedOptimizer:
        """See ``StatefulRunner``: of the parameters that lie here."""
        return super().make_optimizer([name for name in names if self._shards.owned(name)])

    # -- the program --------------------------------------------------------------------------------------------------

    def _gathering_calls(self) -> Iterator[Call]:
        """The calls of the program, and before each block one that gathers its parameters."""
        graph, calls = self.subgraph.graph, {call.op.name: call for call in self._program.calls}
        for number, block in enumerate(self._blocks):
            own = [graph.ops[position] for position in self.subgraph.positions[block.start : block.stop]]
            found = [calls[op.name] for op in own if op.name in calls]
            if found:
                yield replace(
                    found[0], function=self._gather(number), template=[], fills=(), nested=(), kwargs={}, outputs=(), free=()
                )
            for call in found:
                reads = block.back and call.op.name in graph.grad_ops
                yield replace(call, function=self._going_through(call.function, number)) if reads else call

    def _gather(self, number: int) -> Callable[[], tuple[()]]:
        def gather() -> tuple[()]:
            self._pass.reach(number)
            return ()

        return gather

    def _going_through(self, function: Callable[..., Any], number: int) -> Callable[..., Any]:
        """``function``, whose backward first gathers the parameters of its block."""
        step = len(self._blocks) - 1 - number

        def back(_: object) -> None:
            self._pass.reach(step)

        def call(*args: Any, **kwargs: Any) -> Any:
            made = function(*args, **kwargs)
            if torch.is_grad_enabled():
                for one in [made] if isinstance(made, torch.Tensor) else made:
                    if isinstance(one, torch.Tensor) and one.grad_fn is not None:
                        one.grad_fn.register_prehook(back)
            return made

        return call

    # -- passes -------------------------------------------------------------------------------------------------------

    def _begin_pass(self, steps: Sequence[Sequence[Any]], left: Callable[[int], None] = lambda step: None) -> None:
        self._pass.end()
        self._pass = Gathering(self._shards, steps, left)

    def _begin_back(self) -> None:
        self._begin_pass(self._back, self.gradients_of_blocks.leave)

    def _end_back(self) -> None:
        self._pass.end()
        self.gradients_of_blocks.finish()

    def _run(self, *args: Any, **kwargs: Any) -> Any:
        self._begin_pass(self._ahead)
        return super()._run(*args, **kwargs)

    @contextmanager
    def _going_back(self) -> Iterator[None]:
        self._begin_back()
        with super()._going_back():
            yield

    def forward(self, key: MicroBatch, values: Mapping[ValueRef, Array], data: Mapping[str, Array]) -> Forward:
        """See ``StageRunner``."""
        found = super().forward(key, values, data)
        self._pass.end()
        return found

    def backward(self, key: MicroBatch, gradients: Mapping[ValueRef, Sequence[Array]], weight: float) -> SentValues:
        """See ``StageRunner``."""
        found = super().backward(key, gradients, weight)
        self._end_back()
        return found

    def backward_weights(self, key: MicroBatch) -> None:
        """Nothing: ``backward`` has computed all gradients."""
        del key

    def assist(self, *, back: bool) -> None:
        """Take part in a forward or backward of other ranks, without a micro-batch."""
        if not back or self._settings.recompute:
            self._begin_pass(self._ahead)
        if back and self._goes_back:
            self._begin_back()
        self._end_back()

    def fold(self, folds: Sequence[Fold], *, whole: bool) -> None:
        """End parts of the sum; ``whole``: give what has been added to the leaves. Backwards have added all gradients."""
        for fold in folds:
            if fold.close:
                self._show_sum()
                self.close_part(last=fold.last)
        if whole:
            self._show_sum()

    def _show_sum(self) -> None:
        self.state.add_leaves(self.gradients_of_blocks.take())

    def _set_apart(self, key: MicroBatch) -> None:
        """Nothing: the owners have the gradients already."""

    def discard(self) -> None:
        """See ``StageRunner``."""
        self.gradients_of_blocks.clear()
        super().discard()

    @property
    def _goes_back(self) -> bool:
        """Whether a backward of this stage computes anything."""
        graph = self.subgraph.graph
        loss = self._loss is not None and self._loss in graph.needs_grad
        return loss or any(value in graph.needs_grad for value in self._roots)

    def _hand_out(self, tensor: torch.Tensor, changing: frozenset[int]) -> Array:
        return super()._hand_out(tensor, changing | self._shards.addresses())

    def share_parameters(self, names: Sequence[str]) -> None:
        """Nothing: other ranks gather what they need."""
        del names
