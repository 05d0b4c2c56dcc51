"""The inner optimizer of a stage: SGD and AdamW as ``torch.optim`` has them, or the rules that the job carries.

Parameters and states are arrays of the host, which are changed in place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import sqrt
from typing import Any, Protocol

import numpy as np

from farflung.engines.base import Array
from farflung.engines.host.rules import HostRule
from farflung.engines.offloaded_states import OffloadedStates
from farflung.engines.state_file import StateFile
from farflung.errors import CheckpointError, GraphError, InputError
from farflung.job.groups import group_of
from farflung.job.spec import OptimizerSpec
from farflung.optim import SCALE, RuleBook, check_stored, packed_states, packs, rules_of, stored_shapes, unpacked_states

__all__ = ["NamedOptimizer", "OffloadedOptimizer", "Optimizer", "RuleOptimizer", "stage_optimizer"]

_NUMBERS = {"int": np.int64, "float": np.float64}


class Optimizer(Protocol):
    """Steps the parameters of one stage."""

    def step(self, gradients: Mapping[str, Array], rates: Sequence[float]) -> None:
        """One step of the parameters that have ``gradients``; ``rates`` are those of the groups (then the default).

        Raises:
            InputError: not as many rates as groups.
        """

    def export(self, *, copy: bool = True) -> dict[str, Array]:
        """``<slot>/<parameter>`` -> value."""

    def load(self, states: Mapping[str, Array]) -> None:
        """Set what ``export`` gave (parameters without an entry start afresh).

        Raises:
            CheckpointError: an entry's parameter or shape does not fit this stage.
        """


def stage_optimizer(spec: OptimizerSpec, parameters: Mapping[str, Array]) -> Optimizer:
    """The optimizer of a stage's ``parameters``.

    Raises:
        GraphError: the rules that the job carries do not fit the parameters.
    """
    book = rules_of(spec)
    return NamedOptimizer(spec, parameters) if book is None else RuleOptimizer(spec, book, parameters)


class NamedOptimizer:
    """SGD or AdamW, whose formulas a job need not carry."""

    def __init__(self, spec: OptimizerSpec, parameters: Mapping[str, Array]) -> None:
        self._spec, self._parameters = spec, dict(parameters)
        self._group = {name: group_of(spec, name) for name in parameters}
        decay = (0.0 if spec.name == "sgd" else 1e-2) if spec.weight_decay is None else spec.weight_decay
        self._decay = [*(decay if group.weight_decay is None else group.weight_decay for group in spec.groups), decay]
        self._states: dict[str, dict[str, Array]] = {}

    def step(self, gradients: Mapping[str, Array], rates: Sequence[float]) -> None:
        """See ``Optimizer``."""
        if self._parameters and len(rates) != len(self._decay):
            raise InputError(f"{len(rates)} learning rates for {len(self._decay)} groups (the default counts as the last group)")
        update = self._sgd if self._spec.name == "sgd" else self._adamw
        for name, gradient in gradients.items():
            group = self._group[name]
            update(self._parameters[name], gradient, self._states.setdefault(name, {}), (rates[group], self._decay[group]))

    def _sgd(self, parameter: Array, gradient: Array, state: dict[str, Array], settings: tuple[float, float]) -> None:
        rate, decay = settings
        kind, momentum = parameter.dtype.type, self._spec.momentum
        if decay:
            gradient = gradient + kind(decay) * parameter
        if momentum:
            mean = state.get("momentum_buffer")
            if mean is None:
                mean = state["momentum_buffer"] = gradient.copy()
            else:
                mean *= kind(momentum)
                mean += gradient
            gradient = gradient + kind(momentum) * mean if self._spec.nesterov else mean
        parameter += kind(-rate) * gradient

    def _adamw(self, parameter: Array, gradient: Array, state: dict[str, Array], settings: tuple[float, float]) -> None:
        rate, decay = settings
        kind, (first, second) = parameter.dtype.type, self._spec.betas
        if not state:
            state |= {
                "step": np.zeros((), np.float32),
                "exp_avg": np.zeros_like(parameter),
                "exp_avg_sq": np.zeros_like(parameter),
            }
        count, mean, square = state["step"], state["exp_avg"], state["exp_avg_sq"]
        count += 1
        if decay:
            parameter *= kind(1 - rate * decay)
        mean += kind(1 - first) * (gradient - mean)
        square *= kind(second)
        square += kind(1 - second) * gradient * gradient
        number = float(count)
        root = np.sqrt(square)
        root /= kind(sqrt(1 - second**number))
        root += kind(self._spec.eps)
        np.divide(mean, root, out=root)
        root *= kind(-rate / (1 - first**number))
        parameter += root

    def export(self, *, copy: bool = True) -> dict[str, Array]:
        """See ``Optimizer``."""
        return {
            f"{slot}/{name}": value.copy() if copy else value
            for name, slots in self._states.items()
            for slot, value in slots.items()
        }

    def load(self, states: Mapping[str, Array]) -> None:
        """See ``Optimizer``."""
        fresh: dict[str, dict[str, Array]] = {}
        for key, array in states.items():
            slot, _, name = key.partition("/")
            parameter = self._parameters.get(name)
            if parameter is None:
                raise CheckpointError(f"optimizer state {key!r} belongs to no trained parameter of this stage")
            if slot != "step" and array.shape != parameter.shape:
                raise CheckpointError(f"optimizer state {key!r} has shape {array.shape}, its parameter {parameter.shape}")
            fresh.setdefault(name, {})[slot] = np.array(array)
        self._states = fresh


class RuleOptimizer:
    """Steps the parameters of one stage by the rules that a job carries."""

    def __init__(self, spec: OptimizerSpec, book: RuleBook, parameters: Mapping[str, Array]) -> None:
        self._parameters, self._kept = dict(parameters), spec.state
        self._groups, self._settings = len(spec.groups) + 1, len(book.settings)
        self._group = {name: group_of(spec, name) for name in parameters}
        self._rules: dict[str, HostRule] = {}
        self._states: dict[str, list[Any]] = {}
        for name, parameter in self._parameters.items():
            dtype, shape = parameter.dtype.name, parameter.shape
            rule = book.find(self._group[name], dtype, shape)
            if rule is None:
                raise GraphError(f"the optimizer's rules have none for parameter {name!r} ({dtype}{list(shape)}): submit again")
            self._rules[name] = HostRule(rule, f"the update of {name!r:.80}")

    def step(self, gradients: Mapping[str, Array], rates: Sequence[float]) -> None:
        """See ``Optimizer``; ``rates`` has the learning rates of all groups, then their other settings."""
        if len(rates) != self._groups * self._settings:
            raise InputError(f"{len(rates)} values for {self._settings} settings of {self._groups} groups")
        for name, gradient in gradients.items():
            settings = rates[self._group[name] :: self._groups]
            given = None if name not in self._states else self._wide(name, self._states[name])
            # A program may change the gradient, which can be memory of XLA.
            states = self._rules[name].run(self._parameters[name], gradient.copy(), settings, given)
            self._states[name] = self._stored(name, states)

    def _wide(self, name: str, states: list[Any]) -> list[Any]:
        """``states`` in float32."""
        if self._kept == "float32":
            return states
        slots, shape = self._rules[name].rule.states, self._parameters[name].shape
        return [
            unpacked_states(*item) if isinstance(item, tuple) else item.astype(np.float32) if slot.narrows(shape) else item
            for slot, item in zip(slots, states, strict=True)
        ]

    def _stored(self, name: str, states: list[Any]) -> list[Any]:
        """``states`` as they are between steps; those in 8 bits are pairs of codes and scales."""
        slots, shape = self._rules[name].rule.states, self._parameters[name].shape
        if self._kept == "8bit":
            return [packed_states(item) if packs(slot, shape) else item for slot, item in zip(slots, states, strict=True)]
        if self._kept == "bf16":
            return [item.astype("bfloat16") if slot.narrows(shape) else item for slot, item in zip(slots, states, strict=True)]
        return states

    def export(self, *, copy: bool = True) -> dict[str, Array]:
        """See ``Optimizer``."""
        found: dict[str, Array] = {}
        for name, states in self._states.items():
            for slot, item in zip(self._rules[name].rule.states, states, strict=True):
                if isinstance(item, tuple):
                    both = zip((f"{slot.name}/{name}", f"{slot.name}{SCALE}/{name}"), item, strict=True)
                    found |= {key: value.copy() if copy else value for key, value in both}
                    continue
                value = np.asarray(item, dtype=_NUMBERS[slot.kind]) if slot.number else item
                found[f"{slot.name}/{name}"] = value.copy() if copy else value
        return found

    def load(self, states: Mapping[str, Array]) -> None:
        """See ``Optimizer``."""
        given: dict[str, dict[str, Array]] = {}
        for key, array in states.items():
            slot, _, name = key.partition("/")
            if name not in self._parameters:
                raise CheckpointError(f"optimizer state {key!r} belongs to no trained parameter of this stage")
            given.setdefault(name, {})[slot] = array
        self._states = {name: self._read(name, arrays) for name, arrays in given.items()}

    def _read(self, name: str, arrays: Mapping[str, Array]) -> list[Any]:
        shape, slots = self._parameters[name].shape, self._rules[name].rule.states
        check_stored(name, arrays, stored_shapes(self._kept, slots, shape))
        found: list[Any] = []
        for slot in slots:
            array = arrays[slot.name]
            if self._kept == "8bit" and packs(slot, shape):
                found.append((array.astype(np.uint8), arrays[slot.name + SCALE].astype(np.float32)))
                continue
            kept = "bfloat16" if self._kept == "bf16" and slot.narrows(shape) else slot.kind
            found.append(array.item() if slot.number else array.astype(kept))
        return found


class OffloadedOptimizer(OffloadedStates):
    """Steps the parameters of one stage, whose states are on a disk, one after the other."""

    def __init__(self, file: StateFile, spec: OptimizerSpec, parameters: Mapping[str, Array]) -> None:
        """Errors as ``stage_optimizer``."""
        self._single = {name: stage_optimizer(spec, {name: parameter}) for name, parameter in parameters.items()}
        super().__init__(file, self._single)

    def step(self, gradients: Mapping[str, Array], rates: Sequence[float]) -> None:
        """See ``Optimizer``.

        Raises:
            TrainingError: the disk fails.
        """
        self.update(list(gradients), lambda name: self._single[name].step({name: gradients[name]}, rates))
