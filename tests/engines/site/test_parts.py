"""The parts of an array of all ranks are the array."""

from __future__ import annotations

import numpy as np
import pytest

from farflung.engines.site.parts import joined, part_of
from farflung.graph.tensor_parallel import Split


@pytest.mark.parametrize("split", [Split(0, (6,)), Split(1, (2, 4, 2)), Split(1, (8,))])
def test_parts_are_the_whole(split: Split) -> None:
    whole = np.arange(48, dtype=np.float32).reshape(6, 8)
    parts = [part_of(whole, split, rank, 2) for rank in range(2)]
    assert [part.shape[split.dim] for part in parts] == [split.size // 2] * 2
    assert np.array_equal(joined(parts, split), whole)


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_the_part_of_the_last_rank_is_padded(ranks: int) -> None:
    whole, split = np.arange(1.0, 23.0).reshape(11, 2), Split(0, (11,))
    parts = [part_of(whole, split, rank, ranks) for rank in range(ranks)]
    assert {part.shape for part in parts} == {(split.part(ranks), 2)}
    assert np.array_equal(np.concatenate(parts)[:11], whole)
    assert not np.concatenate(parts)[11:].any()
    assert np.array_equal(joined(parts, split), whole)


def test_each_rank_has_a_part_of_each_section() -> None:
    whole = np.arange(8)
    assert part_of(whole, Split(0, (2, 4, 2)), 1, 2).tolist() == [1, 4, 5, 7]
