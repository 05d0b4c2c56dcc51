"""Runs the stages of a cut one after the other in this process, as a runtime would, and compares with the plain loop."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from farflung.engines import Engine, EngineSettings, Forward, MicroBatch, StageRunner, get_engine
from farflung.frontends.torch.capture import capture
from farflung.graph.cut import SubGraph, cut
from farflung.graph.ir import Graph, Use, ValueRef
from farflung.job.spec import OptimizerSpec
from farflung.testing.reference import PlainResult, PlainSettings, plain_loop
from tests.support.models.engine_models import MODELS, SORTED, Made

Array = np.ndarray[Any, Any]
Bounds = Sequence[tuple[int, int]]


@functools.cache
def captured(name: str) -> Graph:
    module, batch = make(name)
    return capture(module, batch(0, 0), name=name)


def make(name: str) -> Made:
    from tests.support.models.layer_models import LAYERS

    torch.manual_seed(7)
    return (LAYERS | MODELS | SORTED)[name]()


def module_states(module: torch.nn.Module) -> dict[str, Array]:
    """Everything that a graph's states can be loaded from, non-persistent buffers included."""
    return {name: tensor.detach().numpy() for name, tensor in (*module.named_parameters(), *module.named_buffers())}


def equal_cuts(graph: Graph, stages: int) -> list[tuple[int, int]]:
    size = len(graph.ops)
    return [(size * stage // stages, size * (stage + 1) // stages) for stage in range(stages)]


def random_cuts(graph: Graph, stages: int, seed: int) -> list[tuple[int, int]]:
    inner = np.random.default_rng(seed).choice(np.arange(1, len(graph.ops)), stages - 1, replace=False)
    edges = [0, *sorted(int(i) for i in inner), len(graph.ops)]
    return list(pairwise(edges))


@dataclass
class Outcome:
    micro_losses: list[tuple[float, ...]]
    gradients: dict[str, Array]
    states: dict[str, Array]


class Stages:
    """All stages of a graph."""

    def __init__(
        self, graph: Graph, bounds: Bounds, settings: EngineSettings | None = None, engine: Engine | None = None
    ) -> None:
        self.graph = graph
        self.settings = settings or EngineSettings()
        self.engine = engine or get_engine("torch")
        self.subs: tuple[SubGraph, ...] = cut(graph, bounds)
        self.runners: list[StageRunner] = [self.engine.open(sub, self.settings) for sub in self.subs]

    def load(self, states: Mapping[str, Array]) -> None:
        for sub, runner in zip(self.subs, self.runners, strict=True):
            runner.load({name: states[name] for name in sub.states if name in states})

    def forward(self, key: MicroBatch, data: Mapping[str, Array]) -> dict[str, Array]:
        values: dict[ValueRef, Array] = {}
        outputs: dict[str, Array] = {}
        for sub, runner in zip(self.subs, self.runners, strict=True):
            wanted = {edge.value: values[edge.value] for edge in sub.requires_activations if edge.alias_of is None}
            made: Forward = runner.forward(key, wanted, {name: data[name] for name in sub.placeholders})
            for array in made.values.values():
                array.flags.writeable = False
            values |= made.values
            outputs |= made.outputs
        return outputs

    def backward(self, key: MicroBatch, weight: float) -> None:
        back: dict[ValueRef, list[Array]] = {}
        for sub, runner in zip(reversed(self.subs), reversed(self.runners), strict=True):
            given = {edge.value: back[edge.value] for edge in sub.requires_gradients}
            for value, array in runner.backward(key, given, weight).items():
                array.flags.writeable = False
                back.setdefault(value, []).append(array)

    def finish(self) -> None:
        uses: dict[Use, Array] = {}
        for runner in self.runners:
            uses |= runner.use_gradients()
        for sub, runner in zip(self.subs, self.runners, strict=True):
            runner.finish_gradients({use: array for use, array in uses.items() if use.state in sub.states})

    def update(self, rates: Sequence[float] | None = None) -> None:
        spec = self.settings.optimizer
        scale = None
        if spec.clip_norm is not None:
            norms: dict[str, float] = {}
            for runner in self.runners:
                norms |= runner.gradient_norms()
            scale = self.engine.clip_scale([norms[s.name] for s in self.graph.parameters if s.name in norms], spec.clip_norm)
        default = [*(spec.lr if group.lr is None else group.lr for group in spec.groups), spec.lr]
        for runner in self.runners:
            runner.update(rates or default, scale)

    def gradients(self) -> dict[str, Array]:
        found: dict[str, Array] = {}
        for runner in self.runners:
            found |= runner.gradients()
        return found

    def states(self) -> dict[str, Array]:
        found: dict[str, Array] = {}
        for runner in reversed(self.runners):
            found |= runner.states()
        return found

    def data(self, batch: Sequence[torch.Tensor]) -> dict[str, Array]:
        names = dict(self.graph.meta)["inputs"].split(",")
        return {name: tensor.numpy() for name, tensor in zip(names, batch, strict=True)}

    def step(self, step: int, micro_batches: int, batch_fn: Any, weights: Sequence[float] | None = None) -> tuple[float, ...]:
        """Forward and backward of a step, all forwards before the first backward (as GPipe does)."""
        weights = weights or [1 / micro_batches] * micro_batches
        keys = [MicroBatch(step, index) for index in range(micro_batches)]
        losses = [self.forward(key, self.data(batch_fn(step, key.index)))["loss"] for key in keys]
        for key in keys:
            self.backward(key, weights[key.index])
        for runner in self.runners if self.settings.split_backward else ():
            for key in keys:
                runner.backward_weights(key)
        self.finish()
        return tuple(float(loss) for loss in losses)


@functools.cache
def plain(name: str, micro_batches: int, optimizer: OptimizerSpec, precision: str = "float32") -> PlainResult:
    module, batch = make(name)
    settings = PlainSettings(optimizer=optimizer, seed=3, precision=precision)
    return plain_loop(module, batch, steps=3, micro_batches=micro_batches, settings=settings)


def run(name: str, bounds: Bounds, micro_batches: int, settings: EngineSettings, engine: Engine | None = None) -> Outcome:
    """Three steps through the stages, on ``engine`` (None: that of this process)."""
    module, batch = make(name)
    stages = Stages(captured(name), bounds, replace(settings, seed=3), engine)
    stages.load(module_states(module))
    losses, gradients = [], {}
    for step in range(3):
        losses.append(stages.step(step, micro_batches, batch))
        gradients = stages.gradients()
        stages.update()
    return Outcome(losses, gradients, stages.states())


def assert_equal(found: Outcome, expected: PlainResult) -> None:
    """Losses, every gradient and all states, bit by bit."""
    assert tuple(found.micro_losses) == expected.micro_losses
    assert found.gradients.keys() == expected.gradients.keys()
    different = [name for name, grad in expected.gradients.items() if not np.array_equal(grad, found.gradients[name])]
    assert not different, f"gradients differ: {different[:5]} ({len(different)} of {len(expected.gradients)})"
    assert found.states.keys() == expected.states.keys()
    different = [name for name, value in expected.states.items() if not np.array_equal(value, found.states[name])]
    assert not different, f"states differ: {different[:5]} ({len(different)} of {len(expected.states)})"
