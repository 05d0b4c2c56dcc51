"""Owners add the gradients of one block after the other, in the job's order, and hold those of two blocks at most."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from farflung.engines.isolated.control import Fold
from farflung.engines.torch.ranks.block_gradients import BlockGradients
from farflung.engines.torch.ranks.group import Buffer, Layout
from farflung.graph.ir import Use

A, B, C = (Use(name, f"op-{name}") for name in "abc")
#: Rank 0 owns a and c, rank 1 owns b. A backward leaves the block of c first.
BLOCKS = ([[C], []], [[A], [B]])
#: Sums of these three depend on their order.
BIG, ONE = 1e8, 1.0


class Wires:
    """What the ranks have sent, until it is received."""

    def __init__(self) -> None:
        self.sent: dict[tuple[int, int, int], deque[torch.Tensor]] = {}

    def group(self, rank: int) -> Any:
        def send(buffer: Buffer[Any], to: int, tag: int) -> Any:
            self.sent.setdefault((rank, to, tag), deque()).append(buffer.memory)
            return SimpleNamespace(wait=lambda: None)

        def receive(buffer: Buffer[Any], source: int, tag: int) -> Any:
            return SimpleNamespace(wait=lambda: buffer.memory.copy_(self.sent[source, rank, tag].popleft()))

        return SimpleNamespace(rank=rank, size=2, send=send, receive=receive)


class Rank:
    def __init__(self, wires: Wires, rank: int, ends: tuple[int, ...] = ()) -> None:
        self.leaves: dict[Use, torch.Tensor] = {}
        layouts = [[Layout(dict.fromkeys(owned, (torch.float32, (1,)))) for owned in block] for block in BLOCKS]
        take = lambda uses: {use: self.leaves.pop(use) for use in uses if use in self.leaves}  # noqa: E731
        self.sums = BlockGradients(layouts, (torch.device("cpu"), wires.group(rank)), ends, take, None)


def backward(ranks: list[Rank], values: dict[int, float], order: list[int]) -> None:
    """Each rank of ``values`` has that gradient for all uses; the micro-batches are those of ``order``, by rank."""
    folds = [Fold(0, index, rank) for index, rank in enumerate(order)]
    for number, rank in enumerate(ranks):
        rank.sums.expect(folds)
        if number in values:
            rank.leaves = {use: torch.tensor([values[number]]) for use in (A, B, C)}
    for step in range(len(BLOCKS)):
        for rank in ranks:
            rank.sums.leave(step)
    for rank in ranks:
        rank.sums.finish()
        assert rank.leaves == {}


def taken(rank: Rank) -> dict[str, float]:
    return {use.state: float(tensor) for use, tensor in rank.sums.take().items()}


def test_owners_add_in_the_order_of_micro_batches() -> None:
    wires = Wires()
    ranks = [Rank(wires, number) for number in range(2)]
    backward(ranks, {0: BIG, 1: -BIG}, [0, 1])
    backward(ranks, {0: ONE, 1: BIG}, [0, 1])
    backward(ranks, {0: -BIG}, [0])
    whole = ((torch.tensor(BIG) - BIG + ONE) + BIG) - BIG
    assert [taken(rank) for rank in ranks] == [{"a": float(whole), "c": float(whole)}, {"b": float(whole)}]
    assert taken(ranks[0]) == {}


@pytest.mark.parametrize(("order", "total"), [([0, 1], 0.0), ([1, 0], 1.0)])
def test_the_order_decides_and_not_the_rank(order: list[int], total: float) -> None:
    wires = Wires()
    ranks = [Rank(wires, number) for number in range(2)]
    backward(ranks, {0: BIG}, [0])
    backward(ranks, {0: ONE, 1: -BIG}, order)
    assert taken(ranks[1]) == {"b": total}


def test_parts_of_the_sum_that_end_inside_a_group_stay_apart() -> None:
    wires = Wires()
    ranks = [Rank(wires, number, ends=(1, 2)) for number in range(2)]
    backward(ranks, {0: 3.0, 1: 4.0}, [0, 1])
    assert [taken(ranks[1]), taken(ranks[1])] == [{"b": 3.0}, {"b": 4.0}]


def test_a_block_is_sent_before_the_next_one_ends() -> None:
    wires = Wires()
    ranks = [Rank(wires, number) for number in range(2)]
    for rank in ranks:
        rank.sums.expect([Fold(0, 0, 1)])
    ranks[1].leaves = {C: torch.tensor([2.0])}
    ranks[1].sums.leave(0)
    assert ranks[1].leaves == {}, "the gradient of c has left its leaf"
    assert list(wires.sent) == [(1, 0, 0)]
    ranks[0].sums.leave(0)
    ranks[0].sums.leave(1)
    assert taken(ranks[0]) == {"c": 2.0}, "the next block ended the wait for c"


def test_a_step_that_is_left_out_leaves_nothing() -> None:
    rank = Rank(Wires(), 0)
    backward([rank], {0: 1.0}, [0])
    rank.sums.clear()
    assert taken(rank) == {}
