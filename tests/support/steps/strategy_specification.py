"""Runs on workers against the specification in NumPy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from farflung.engines.base import Array
from farflung.plan.synchronization import strategy_of, world_of
from farflung.testing.replicas import Group, Task
from tests.support.steps.executor_threads import Case, hand_plan, run_threads
from tests.support.steps.strategy_cases import ALONE, straight


def as_specified(case: Case, register: str = "") -> None:
    """Workers against ``testing.replicas``. ``register``: what workers end with (empty: parameters, or their mean)."""
    plan = hand_plan(case, case.graphs()[4])
    assert plan.sync is not None
    names = [layer.parameters for layer in plan.sync.layers[0]]
    world = world_of(plan, case.graphs()[4], case.job, 0)
    module = straight()
    shapes = {name: tuple(value.shape) for name, value in module.named_parameters()}

    def split(layers: Sequence[Array]) -> dict[str, torch.Tensor]:
        found, sizes = {}, {name: int(np.prod(shape)) for name, shape in shapes.items()}
        for held, array in zip(names, layers, strict=True):
            parts = np.split(array, np.cumsum([sizes[name] for name in held])[:-1])
            found |= {name: torch.tensor(part).reshape(shapes[name]) for name, part in zip(held, parts, strict=True)}
        return found

    def gradient(layers: Sequence[Array], step: int, member: int) -> tuple[float, list[Array]]:
        values = {name: tensor.requires_grad_() for name, tensor in split(layers).items()}
        total = torch.zeros(())
        for index in ALONE[0][member][1]:
            weight = case.job.weight(index) / world.shares[member]
            total = total + weight * torch.func.functional_call(module, values, case.batches(step, index))
        total.backward()
        return float(total.detach()), [joined({name: values[name].grad.numpy() for name in held}, held) for held in names]  # type: ignore[union-attr]

    def joined(values: Mapping[str, Array], held: Sequence[str]) -> Array:
        return np.concatenate([values[name].reshape(-1) for name in held])

    first = {name: value.detach().numpy() for name, value in module.named_parameters()}
    task = Task(
        start=[joined(first, held) for held in names],
        gradient=gradient,
        optimizer=case.job.optimizer,
        names=[[(name, int(np.prod(shapes[name]))) for name in held] for held in names],
    )
    group = Group(strategy := strategy_of(plan), world, task)
    group.run(case.job.steps)
    if strategy.traits.drifts and not register:  # workers end in agreement
        group.end()
    ran = run_threads(case)
    for rank, device in enumerate("ac"):
        layers = group.replicas[rank].registers[register or "parameters"]
        for name, tensor in split([np.asarray(layer, np.float32) for layer in layers]).items():
            np.testing.assert_allclose(ran.held[device][name], tensor.numpy(), rtol=1e-4, atol=1e-5, err_msg=f"{device} {name}")
