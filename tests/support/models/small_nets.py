"""A small network in NumPy with its gradient, and groups that train it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from farflung.job.spec import OptimizerSpec
from farflung.sync import LayerInfo, Strategy, World, get_strategy
from farflung.testing.replicas import Group, Task
from farflung.units import Bytes, Seconds

SIZES = (6, 8, 8, 1)


def start(seed: int = 0) -> list[Any]:
    random = np.random.default_rng(seed)
    return [random.standard_normal((a, b)) / np.sqrt(a) for a, b in itertools.pairwise(SIZES)]


def batch(step: int, member: int, samples: int = 16) -> tuple[Any, Any]:
    random = np.random.default_rng([7, step, member])
    x = random.standard_normal((samples, SIZES[0]))
    return x, np.sin(x[:, :1]) + 0.5 * x[:, 1:2] * x[:, 2:3]


def gradient(parameters: Sequence[Any], step: int, member: int) -> tuple[float, list[Any]]:
    """Mean squared error of a tanh network without biases on the member's own samples."""
    x, y = batch(step, member)
    outs = [x]
    for index, weight in enumerate(parameters):
        z = outs[-1] @ weight
        outs.append(np.tanh(z) if index < len(parameters) - 1 else z)
    error = outs[-1] - y
    loss = float((error**2).mean())
    delta = 2 * error / error.size
    grads: list[Any] = []
    for index in range(len(parameters) - 1, -1, -1):
        if index < len(parameters) - 1:
            delta = delta * (1 - outs[index + 1] ** 2)
        grads.insert(0, outs[index].T @ delta)
        delta = delta @ parameters[index].T
    return loss, grads


def world(members: int = 3, layers: int = 3, shares: tuple[float, ...] = ()) -> World:
    info = tuple(LayerInfo(nbytes=Bytes(1000 * (i + 1)), bp_seconds=Seconds(1), comm_seconds=Seconds(2)) for i in range(layers))
    return World(rank=0, members=members, layers=info, shares=shares)


def task(lr: float = 0.1, **optimizer: Any) -> Task:
    return Task(start=start(), gradient=gradient, optimizer=OptimizerSpec(lr=lr, **optimizer))


def group(
    strategy: str | Strategy, *, on: Task | None = None, members: int = 3, absent: Any = lambda step: (), **settings: Any
) -> Group:
    chosen = get_strategy(strategy, **settings) if isinstance(strategy, str) else strategy
    return Group(chosen, world(members), on or task(), absent=absent)


def flat(found: Group, rank: int = 0, register: str = "parameters") -> Any:
    return found.replicas[rank].joined(register, found.replicas[rank].world.every)
