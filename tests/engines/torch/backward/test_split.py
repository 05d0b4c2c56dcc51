"""A backward in two parts: what the first makes, what the second makes, and what may not change in between."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from farflung.engines import EngineSettings, MicroBatch, StageRunner
from farflung.engines.torch.backward.split import WeightWork, backward_inputs, backward_weights
from farflung.frontends.torch.capture import capture
from tests.support.engines.engine_drive import Stages, captured, equal_cuts, make, module_states

SPLIT = EngineSettings(split_backward=True)


def gradients(module: nn.Module) -> dict[str, torch.Tensor | None]:
    found = {name: parameter.grad for name, parameter in module.named_parameters()}
    module.zero_grad()
    return found


class Branches(nn.Module):
    """A table that two layers read after one view, a tower without inputs, and a layer that nothing received reaches."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.table = nn.Linear(4, 4), nn.Linear(4, 4), nn.Parameter(torch.randn(4, 4))
        self.tower, self.alone = nn.Linear(4, 4), nn.Linear(4, 1)

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        table = self.table.t()
        x = self.first(x) @ table
        x = self.second(x.tanh()) @ table
        return [x + self.tower(torch.ones(4)), self.alone(torch.ones(3, 4))]


def test_branches_have_the_gradients_of_a_whole_backward() -> None:
    torch.manual_seed(1)
    module, x = Branches(), torch.randn(3, 4, requires_grad=True)
    roots = module(x)
    torch.autograd.backward(roots, [torch.ones_like(root) for root in roots])
    expected = gradients(module)
    roots = module(x)
    work = backward_inputs(roots, [torch.ones_like(root) for root in roots], x)
    assert all(parameter.grad is None for parameter in module.parameters())
    assert [leaf is module.table for leaf, _ in work.ready] == [True], "two operators lead to the table"
    backward_weights(work)
    found = gradients(module)
    assert [name for name, grad in expected.items() if not np.array_equal(grad, found[name])] == []


def opened(name: str, settings: EngineSettings) -> tuple[Stages, list[MicroBatch]]:
    module, batch = make(name)
    stages = Stages(captured(name), equal_cuts(captured(name), 2), settings)
    stages.load(module_states(module))
    keys = [MicroBatch(0, 0), MicroBatch(0, 1)]
    for key in keys:
        stages.forward(key, stages.data(batch(0, key.index)))
    return stages, keys


def back(runner: StageRunner, key: MicroBatch) -> list[np.ndarray]:
    return list(runner.backward(key, {}, 0.5).values())


class Shift(nn.Module):
    """A sum whose two gradients share their memory: that of the layer before and that of the parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.shift = nn.Linear(4, 4), nn.Parameter(torch.zeros(12))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return ((self.layer(x) + self.shift.view(3, 4)) * y).mean()


def test_what_was_handed_out_does_not_change() -> None:
    """A link may still send the gradients of a value while the second parts add to those of parameters."""
    module, batch = Shift(), (torch.randn(3, 4), torch.randn(3, 4))
    graph = capture(module, batch)
    at = next(position for position, op in enumerate(graph.ops) if "view" in op.target)
    stages = Stages(graph, [(0, at), (at, len(graph.ops))], SPLIT)
    stages.load(module_states(module))
    keys = [MicroBatch(0, 0), MicroBatch(0, 1)]
    for key in keys:
        stages.forward(key, stages.data(batch))
    sent = {key: back(stages.runners[1], key) for key in keys}
    before = {key: [array.copy() for array in arrays] for key, arrays in sent.items()}
    for key in keys:
        stages.runners[1].backward_weights(key)
    assert all(np.array_equal(a, b) for key in keys for a, b in zip(sent[key], before[key], strict=True))


def test_gradients_of_parameters_come_with_the_second_part() -> None:
    stages, keys = opened("gpt2", SPLIT)
    runner = stages.runners[1]
    for key in keys:
        back(runner, key)
    assert runner.take_gradients() == {}
    name = min(name for name in runner.subgraph.states if name in runner.subgraph.graph.trained and "ln_f" in name)
    seen: list[int] = []
    for key in keys:
        runner.watch([[name]] if key == keys[-1] else [], seen.append)
        runner.backward_weights(key)
    assert seen == [0]
    assert len(runner.take_gradients()) > 0


def test_a_skipped_step_drops_the_second_part() -> None:
    stages, keys = opened("gpt2", SPLIT)
    back(stages.runners[1], keys[0])
    stages.runners[1].discard()
    stages.runners[1].backward_weights(keys[0])
    assert stages.runners[1].take_gradients() == {}


@pytest.mark.parametrize("name", ["gpt2", "llama", "bert", "resnet18"])
def test_kept_gradients_are_at_most_as_large_as_the_activations(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """``schedules.retained`` counts them so."""
    from farflung.cost import op_costs

    works: list[WeightWork] = []

    def recorded(*given: Any) -> WeightWork:
        works.append(backward_inputs(*given))
        return works[-1]

    monkeypatch.setattr("farflung.engines.torch.runner.backward_inputs", recorded)
    stages, keys = opened(name, SPLIT)
    runner = stages.runners[1]
    back(runner, keys[0])
    kept = sum(gradient.nbytes for work in works for _, made, _ in work.parts for gradient in made)
    start, stop = runner.subgraph.start, runner.subgraph.stop
    assert 0 < kept <= op_costs(captured(name)).saved.total(start, stop)
