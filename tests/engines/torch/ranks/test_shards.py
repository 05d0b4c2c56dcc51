"""What a rank has of sharded parameters is counted before memory is taken, and where it is memory of the host."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from farflung.engines.torch.ranks import shards as shards_module
from farflung.engines.torch.ranks.shards import Shards
from farflung.errors import MemoryExceeded
from farflung.graph.cut import cut
from farflung.graph.parameter_blocks import gathered_bytes, holders, parameter_blocks, parameters_of
from farflung.memory_budget import MemoryBudget
from tests.support.engines.engine_drive import captured


def shards(device: str, budget: MemoryBudget) -> Shards:
    graph = captured("gpt2")
    piece = cut(graph, [(0, len(graph.ops))])[0]
    sizes = {name: graph.state[name].spec.nbytes for name in parameters_of(piece)}
    group: Any = SimpleNamespace(rank=0, size=2)
    return Shards(piece, parameter_blocks(piece), holders(sizes, 2, list(sizes)), (torch.device(device), group), budget)


def test_too_little_memory_is_noticed_before_any_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    def take(*_: object) -> None:
        raise AssertionError("memory was taken")

    monkeypatch.setattr(shards_module, "Buffer", take)
    with pytest.raises(MemoryExceeded, match="the parameters of a rank, and those of two blocks"):
        shards("cpu", MemoryBudget(1000))


def test_own_parameters_and_gathered_blocks_count_on_a_cpu() -> None:
    graph = captured("gpt2")
    piece = cut(graph, [(0, len(graph.ops))])[0]
    budget = MemoryBudget()
    found = shards("cpu", budget)
    own = sum(shard.nbytes for shard in found.shards if shard.owner == 0)
    assert budget.used == own + gathered_bytes(piece)
    del found
    assert budget.used == 0


def test_memory_of_an_accelerator_is_not_counted() -> None:
    budget = MemoryBudget(1000)
    shards("meta", budget)
    assert budget.used == 0
