"""The inner optimizer of a stage: ``torch.optim`` with the job's groups or the job's rules, and its state as arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from farflung.engines.base import Array
from farflung.engines.torch.arrays import TORCH_DTYPES, from_array, spec_of, to_array
from farflung.engines.torch.optimizers.packed_states import Packed, packed, unpacked
from farflung.engines.torch.optimizers.update_programs import CompiledRule, ParameterStates
from farflung.errors import CheckpointError, GraphError, InputError
from farflung.job.groups import group_of
from farflung.job.spec import OptimizerSpec
from farflung.optim import SCALE, RuleBook, check_stored, packs, rules_of, stored_shapes

__all__ = ["RuleOptimizer", "StageOptimizer", "make_optimizer", "plain_optimizer"]


def plain_optimizer(spec: OptimizerSpec, parameters: Mapping[str, torch.Tensor]) -> StageOptimizer | RuleOptimizer:
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


_CPU = torch.device("cpu")
_NUMBERS = {"int": np.int64, "float": np.float64}


class RuleOptimizer:
    """Steps the parameters of one stage by the rules that a job carries."""

    def __init__(self, spec: OptimizerSpec, book: RuleBook, parameters: Mapping[str, torch.Tensor]) -> None:
        self._parameters, self._kept = dict(parameters), spec.state
        self._groups, self._settings = len(spec.groups) + 1, len(book.settings)
        self._group = {name: group_of(spec, name) for name in parameters}
        self._rules: dict[str, CompiledRule] = {}
        self._states: dict[str, list[Any]] = {}
        compiled: dict[tuple[int, torch.Size, torch.dtype], CompiledRule] = {}
        for name, parameter in self._parameters.items():
            dtype, shape = spec_of(parameter).dtype, tuple(parameter.shape)
            rule = book.find(self._group[name], dtype, shape)
            if rule is None:
                raise GraphError(f"the optimizer's rules have none for parameter {name!r} ({dtype}{list(shape)}): submit again")
            key = id(rule), parameter.shape, parameter.dtype
            if key not in compiled:
                where = f"the update of {name!r:.80}"
                compiled[key] = CompiledRule(rule, self._settings, parameter.detach(), where)
            self._rules[name] = compiled[key]

    def step(self, rates: Sequence[float]) -> None:
        """One step; ``rates`` has the learning rates of all groups, then their other settings.

        Raises:
            InputError: not as many rates as groups and settings.
            GraphError: an operator fails, or no program applies.
        """
        if len(rates) != self._groups * self._settings:
            raise InputError(f"{len(rates)} values for {self._settings} settings of {self._groups} groups")
        with torch.no_grad():
            for name, parameter in self._parameters.items():
                if parameter.grad is not None:
                    settings = rates[self._group[name] :: self._groups]
                    states = self._rules[name].run(parameter.detach(), parameter.grad, settings, self._wide(name))
                    self._states[name] = self._stored(name, states)

    def _wide(self, name: str) -> ParameterStates:
        states = self._states.get(name)
        if states is None or self._kept == "float32":
            return states
        slots, shape = self._rules[name].rule.states, tuple(self._parameters[name].shape)
        return [
            unpacked(item) if isinstance(item, Packed) else item.float() if slot.narrows(shape) else item
            for slot, item in zip(slots, states, strict=True)
        ]

    def _stored(self, name: str, states: list[Any]) -> list[Any]:
        slots, shape = self._rules[name].rule.states, tuple(self._parameters[name].shape)
        if self._kept == "8bit":
            return [packed(item) if packs(slot, shape) else item for slot, item in zip(slots, states, strict=True)]
        if self._kept == "bf16":
            return [item.bfloat16() if slot.narrows(shape) else item for slot, item in zip(slots, states, strict=True)]
        return states

    def export(self, *, copy: bool = True) -> dict[str, Array]:
        """``<slot>/<parameter>`` -> value."""
        found: dict[str, Array] = {}
        for name, states in self._states.items():
            for slot, item in zip(self._rules[name].rule.states, states, strict=True):
                if isinstance(item, Packed):
                    found[f"{slot.name}/{name}"] = to_array(item.codes, copy=copy)
                    found[f"{slot.name}{SCALE}/{name}"] = to_array(item.scales, copy=copy)
                    continue
                array = (
                    to_array(item, copy=copy) if isinstance(item, torch.Tensor) else np.asarray(item, dtype=_NUMBERS[slot.kind])
                )
                found[f"{slot.name}/{name}"] = array
        return found

    def load(self, states: Mapping[str, Array]) -> None:
        """Set what ``export`` gave (parameters without an entry start afresh).

        Raises:
            CheckpointError: an entry is of another parameter or optimizer, or is missing.
        """
        given: dict[str, dict[str, Array]] = {}
        for key, array in states.items():
            slot, _, name = key.partition("/")
            if name not in self._parameters:
                raise CheckpointError(f"optimizer state {key!r} belongs to no trained parameter of this stage")
            given.setdefault(name, {})[slot] = array
        self._states = {name: self._read(name, arrays) for name, arrays in given.items()}

    def _read(self, name: str, arrays: Mapping[str, Array]) -> list[Any]:
        parameter, slots = self._parameters[name], self._rules[name].rule.states
        shape, device = tuple(parameter.shape), parameter.device
        check_stored(name, arrays, stored_shapes(self._kept, slots, shape))
        found: list[Any] = []
        for slot in slots:
            array = arrays[slot.name]
            if slot.number:
                found.append(array.item())
                continue
            if self._kept == "8bit" and packs(slot, shape):
                codes, scales = from_array(array, device), from_array(arrays[slot.name + SCALE], device)
                found.append(Packed(codes.to(torch.uint8), scales.to(torch.float32)))
                continue
            value = from_array(array, _CPU if array.ndim == 0 else device)
            kept = torch.bfloat16 if self._kept == "bf16" and slot.narrows(shape) else TORCH_DTYPES[slot.kind]
            found.append(value.to(kept))
        return found
