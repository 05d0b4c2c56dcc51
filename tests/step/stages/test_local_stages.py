"""First states are read and loaded in groups, so that a stage is never twice in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from farflung.engines import get_engine
from farflung.engines.base import Array
from farflung.step.stages import local_stages
from farflung.step.stages.local_stages import LocalStages
from tests.support.steps.small_runs import small_setup


def test_states_are_loaded_in_groups_the_largest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    setup = small_setup("a")
    (index,) = setup.own_stages
    sizes = {name: setup.graph.state[name].spec.nbytes for name in setup.subgraphs[index].states}
    values = {name: np.full(setup.graph.state[name].spec.shape, number, np.float32) for number, name in enumerate(sizes)}
    left_out, groups = min(sizes), list[Sequence[str]]()

    def first_states(names: Sequence[str]) -> Mapping[str, Array]:
        groups.append(names)
        return {name: values[name] for name in names if name != left_out}

    monkeypatch.setattr(local_stages, "_GROUP_BYTES", max(sizes.values()))
    stages = LocalStages(setup)
    stages.open(get_engine("torch"), "cpu")
    hooks: Any = SimpleNamespace(first_states=first_states, first_optimizer=lambda names: {})
    stages.load_first(hooks)
    assert len(groups) > 1
    assert [sizes[name] for group in groups for name in group] == sorted(sizes.values(), reverse=True)
    assert all(sum(sizes[name] for name in group) <= max(sizes.values()) for group in groups)
    found = stages.base(index).states(list(sizes))
    assert found.keys() == sizes.keys()
    for name in sizes.keys() - {left_out}:
        np.testing.assert_array_equal(found[name], values[name])
