"""Updates of parameters in bfloat16 and float16 that are computed in float32.

``master``: the optimizer works on float32 copies of the parameters (Micikevicius et al. 2018, "Mixed Precision Training",
section 3.1). ``stochastic``: the float32 value exists during the update only. It is rounded to one of its two neighbors in
bfloat16, to the nearer one with the larger probability, so that small updates are not lost on average (Gupta et al. 2015, "Deep
Learning with Limited Numerical Precision", section 4).

The random bits depend on seed, parameter, number of the update and place of the element, not on the worker.
Cost: 4 bytes per parameter between steps (``master``), and 8 bytes per element of the largest parameter during a step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from farflung.engines.base import Array
from farflung.engines.torch.arrays import from_array, to_array
from farflung.engines.torch.optimizers.built_in import RuleOptimizer, StageOptimizer, plain_optimizer
from farflung.errors import CheckpointError, InputError
from farflung.ids import derive_seed
from farflung.job.spec import OptimizerSpec
from farflung.optim import NARROW, WIDE_SLOTS

__all__ = ["AnyOptimizer", "WideOptimizer", "rounded", "stage_optimizer"]

_MASTER, _COUNT = WIDE_SLOTS


def stage_optimizer(spec: OptimizerSpec, parameters: Mapping[str, torch.Tensor], seed: int) -> AnyOptimizer:
    """The optimizer of a stage's ``parameters``.

    Raises:
        GraphError: the rules that the job carries do not fit the parameters.
        InputError: parameters of this type are not rounded at random.
    """
    return plain_optimizer(spec, parameters) if spec.update == "plain" else WideOptimizer(spec, parameters, seed)


def rounded(wide: torch.Tensor, seed: int) -> torch.Tensor:
    """Float32 numbers in bfloat16: each becomes one of its two neighbors, with a probability that makes the mean exact."""
    generator = torch.Generator(wide.device).manual_seed(seed)
    noise = torch.empty(wide.shape, dtype=torch.int32, device=wide.device).random_(0, 1 << 16, generator=generator)
    bits = (wide.contiguous().view(torch.int32) + noise).bitwise_and_(-(1 << 16)).view(torch.float32)
    return torch.where(torch.isfinite(wide), bits, wide).bfloat16()


class WideOptimizer:
    """Steps the parameters of one stage, one after the other, in float32."""

    def __init__(self, spec: OptimizerSpec, parameters: Mapping[str, torch.Tensor], seed: int) -> None:
        self._parameters, self._seed, self._stochastic = dict(parameters), seed, spec.update == "stochastic"
        names = [name for name, parameter in parameters.items() if parameter.dtype in _TYPES]
        for name in names:
            if self._stochastic and parameters[name].dtype is not torch.bfloat16:
                raise InputError(
                    f"optimizer.update = 'stochastic' rounds to bfloat16 only, and {name!r} is float16: use 'master', or bfloat16"
                )
        #: Parameter -> its float32 copy. Between stochastic updates it has a shape and no memory.
        self._wide = {name: torch.nn.Parameter(_hollow(parameters[name])) for name in names}
        self._masters: set[str] = set()
        self._counts = dict.fromkeys(names, 0)
        self._single = {name: plain_optimizer(spec, {name: wide}) for name, wide in self._wide.items()}
        self._others = plain_optimizer(spec, {name: p for name, p in parameters.items() if name not in self._wide})

    def step(self, rates: Sequence[float]) -> None:
        """One step; see ``StageOptimizer`` and ``RuleOptimizer``."""
        self._others.step(rates)
        with torch.no_grad():
            for name, wide in self._wide.items():
                if self._parameters[name].grad is not None:
                    self._step(name, wide, rates)

    def _step(self, name: str, wide: torch.nn.Parameter, rates: Sequence[float]) -> None:
        parameter = self._parameters[name]
        assert parameter.grad is not None
        if name not in self._masters:
            wide.data = parameter.detach().float()
        wide.grad = parameter.grad.float()
        self._single[name].step(rates)
        wide.grad = None
        if self._stochastic:
            parameter.copy_(rounded(wide.detach(), derive_seed("rounding", self._seed, name, self._counts[name])))
            self._counts[name] += 1
            wide.data = _hollow(parameter)
        else:
            parameter.copy_(wide)
            self._masters.add(name)

    def export(self, *, copy: bool = True) -> dict[str, Array]:
        """``<slot>/<parameter>`` -> value."""
        found = self._others.export(copy=copy)
        for name, optimizer in self._single.items():
            found |= optimizer.export(copy=copy)
            if self._stochastic and self._counts[name]:
                found[f"{_COUNT}/{name}"] = np.asarray(self._counts[name])
            elif name in self._masters:
                found[f"{_MASTER}/{name}"] = to_array(self._wide[name].detach(), copy=copy)
        return found

    def load(self, states: Mapping[str, Array]) -> None:
        """Set what ``export`` gave (parameters without an entry start afresh).

        Raises:
            CheckpointError: an entry's parameter or shape does not fit this stage.
        """
        given: dict[str, dict[str, Array]] = {name: {} for name in self._wide}
        others: dict[str, Array] = {}
        for key, array in states.items():
            given.get(key.partition("/")[2], others)[key] = array
        self._others.load(others)
        self._masters.clear()
        for name, slots in given.items():
            self._load(name, slots)

    def _load(self, name: str, slots: dict[str, Array]) -> None:
        wide = self._wide[name]
        master, count = slots.pop(f"{_MASTER}/{name}", None), slots.pop(f"{_COUNT}/{name}", None)
        self._counts[name] = 0 if count is None else int(count)
        if master is not None:
            if master.shape != tuple(wide.shape):
                raise CheckpointError(
                    f"optimizer state '{_MASTER}/{name}' has shape {master.shape}, its parameter {tuple(wide.shape)}"
                )
            wide.data = from_array(master, wide.device)
            self._masters.add(name)
        else:
            wide.data = _hollow(self._parameters[name])
        self._single[name].load(slots)


AnyOptimizer = StageOptimizer | RuleOptimizer | WideOptimizer
_TYPES = frozenset(getattr(torch, name) for name in NARROW)


def _hollow(parameter: torch.Tensor) -> torch.Tensor:
    """A float32 tensor of the shape of ``parameter`` over the memory of one number."""
    return torch.zeros((), device=parameter.device).expand(parameter.shape)
