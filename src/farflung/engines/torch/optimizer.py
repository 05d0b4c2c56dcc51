"""The inner optimizer of a stage: ``torch.optim`` with the job's groups or the job's rules, and its state as arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from farflung.engines.base import Array
from farflung.engines.torch.arrays import from_array, to_array
from farflung.engines.torch.update_programs import RuleOptimizer
from farflung.errors import CheckpointError, InputError
from farflung.job.groups import group_of
from farflung.job.spec import OptimizerSpec
from farflung.optim import rules_of

__all__ = ["StageOptimizer", "make_optimizer", "stage_optimizer"]


def stage_optimizer(spec: OptimizerSpec, parameters: Mapping[str, torch.Tensor]) -> StageOptimizer | RuleOptimizer:
    """The optimizer of a stage's ``parameters``.

    Raises:
        GraphError: the rules that the job carries do not fit the parameters.
    """
    book = rules_of(spec)
    return StageOptimizer(spec, parameters) if book is None else RuleOptimizer(spec, book, parameters)


def make_optimizer(spec: OptimizerSpec, parameters: Mapping[str, torch.Tensor]) -> torch.optim.Optimizer | None:
    """The ``torch.optim`` optimizer with one parameter group per group of ``spec``, then the default group (None: nothing to
    train). Whatever ``spec`` leaves out keeps PyTorch's default."""
    groups: list[dict[str, Any]] = [{"params": []} for _ in range(len(spec.groups) + 1)]
    for given, group in zip(spec.groups, groups, strict=False):
        if given.lr is not None:
            group["lr"] = given.lr
        if given.weight_decay is not None:
            group["weight_decay"] = given.weight_decay
    for name, parameter in parameters.items():
        groups[group_of(spec, name)]["params"].append(parameter)
    if not parameters:
        return None
    options: dict[str, Any] = {"lr": spec.lr}
    if spec.weight_decay is not None:
        options["weight_decay"] = spec.weight_decay
    if spec.name == "sgd":
        return torch.optim.SGD(groups, momentum=spec.momentum, nesterov=spec.nesterov, **options)
    return torch.optim.AdamW(groups, betas=spec.betas, eps=spec.eps, **options)


class StageOptimizer:
    """Steps the parameters of one stage; frozen groups are not among them."""

    def __init__(self, spec: OptimizerSpec, parameters: Mapping[str, torch.Tensor]) -> None:
        self._parameters = dict(parameters)
        self._optimizer = make_optimizer(spec, parameters)

    def step(self, rates: Sequence[float]) -> None:
        """One step at the learning ``rates`` of the groups (then the default).

        Raises:
            InputError: not as many rates as groups.
        """
        if self._optimizer is None:
            return
        groups = self._optimizer.param_groups
        if len(rates) != len(groups):
            raise InputError(f"{len(rates)} learning rates for {len(groups)} groups (the default counts as the last group)")
        for group, rate in zip(groups, rates, strict=True):
            group["lr"] = rate
        self._optimizer.step()

    def export(self, *, copy: bool = True) -> dict[str, Array]:
        """``<slot>/<parameter>`` -> value."""
        found: dict[str, Array] = {}
        if self._optimizer is not None:
            for name, parameter in self._parameters.items():
                for slot, value in self._optimizer.state.get(parameter, {}).items():
                    if value is not None:
                        found[f"{slot}/{name}"] = to_array(torch.as_tensor(value), copy=copy)
        return found

    def load(self, states: Mapping[str, Array]) -> None:
        """Set what ``export`` gave (parameters without an entry start afresh).

        Raises:
            CheckpointError: an entry's parameter or shape does not fit this stage.
        """
        fresh: dict[str, dict[str, torch.Tensor]] = {}
        for key, array in states.items():
            slot, _, name = key.partition("/")
            parameter = self._parameters.get(name)
            if parameter is None:
                raise CheckpointError(f"optimizer state {key!r} belongs to no trained parameter of this stage")
            if slot != "step" and array.shape != tuple(parameter.shape):
                raise CheckpointError(f"optimizer state {key!r} has shape {array.shape}, its parameter {tuple(parameter.shape)}")
            device = torch.device("cpu") if slot == "step" else parameter.device
            fresh.setdefault(name, {})[slot] = from_array(array, device)
        if self._optimizer is None:
            return
        self._optimizer.state.clear()
        for name, slots in fresh.items():
            self._optimizer.state[self._parameters[name]] = slots
