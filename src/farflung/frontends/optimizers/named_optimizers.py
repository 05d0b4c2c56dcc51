"""The optimizers that a job can name: those of ``torch.optim`` under their names, and Lion."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from farflung.errors import InputError
from farflung.foreign_code import first_line
from farflung.job.optimizer_names import CAPTURED, NAMED, OptimizerName
from farflung.job.spec import GroupSpec, OptimizerSpec

__all__ = ["CLASSES", "Lion", "name_of", "named_optimizer"]


class Lion(torch.optim.Optimizer):
    """Chen et al. 2023, "Symbolic Discovery of Optimization Algorithms", program 2: the sign of an interpolated momentum."""

    def __init__(
        self,
        params: Any,
        lr: float = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
    ) -> None:
        if lr < 0 or weight_decay < 0 or not all(0 <= beta < 1 for beta in betas):
            raise ValueError("lr and weight_decay must be at least 0, betas at least 0 and less than 1")
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """One step."""
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["exp_avg"] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
                average = state["exp_avg"]
                update = average.mul(beta1).add_(parameter.grad, alpha=1 - beta1).sign_()
                parameter.mul_(1 - group["lr"] * group["weight_decay"])
                parameter.add_(update, alpha=-group["lr"])
                average.mul_(beta2).add_(parameter.grad, alpha=1 - beta2)


_TORCH = (
    "SGD",
    "AdamW",
    "Adadelta",
    "Adafactor",
    "Adagrad",
    "Adam",
    "Adamax",
    "ASGD",
    "Muon",
    "NAdam",
    "RAdam",
    "RMSprop",
    "Rprop",
)
#: Name -> class; what this PyTorch lacks is left out.
CLASSES: Mapping[str, type[torch.optim.Optimizer]] = {
    "lion": Lion,
    **{name.lower(): getattr(torch.optim, name) for name in _TORCH if hasattr(torch.optim, name)},
}
#: Keys of an ``OptimizerSpec`` that are settings of an optimizer, where they are given.
_KEYS = ("momentum", "nesterov", "betas", "eps", "weight_decay")


def name_of(optimizer: torch.optim.Optimizer) -> OptimizerName:
    """The name of an optimizer in a job: ``captured`` for a class of the caller's own."""
    return next((name for name in NAMED if CLASSES.get(name) is type(optimizer)), CAPTURED)


def named_optimizer(spec: OptimizerSpec, group: GroupSpec | None, parameters: Sequence[torch.Tensor]) -> torch.optim.Optimizer:
    """The optimizer of the parameters of ``group`` (None: of those in no group).

    Raises:
        InputError: this PyTorch has no such optimizer, or it has no such setting or value.
    """
    name, settings = _settings(spec, group)
    if name not in CLASSES:
        raise InputError(
            f"optimizer.name = {name!r}: PyTorch {torch.__version__} has no such optimizer, known are {', '.join(CLASSES)}"
        )
    kind = CLASSES[name]
    known = [
        key
        for key in inspect.signature(kind).parameters
        if key not in ("params", "foreach", "fused", "capturable", "differentiable")
    ]
    for key in settings:
        if key not in known:
            raise InputError(f"optimizer.{key} is no setting of {name!r}, which has {', '.join(known)}: remove it")
    try:
        return kind(parameters, **settings)
    except (TypeError, ValueError) as error:
        advice = "; give other parameters another optimizer with optimizer.groups" if "2D" in str(error) else ""
        raise InputError(f"optimizer {name!r}: {first_line(error)}{advice}") from None


def _settings(spec: OptimizerSpec, group: GroupSpec | None) -> tuple[str, dict[str, Any]]:
    """Name and settings; a group with an optimizer of its own has none of those of ``spec``."""
    own = group is not None and group.name is not None and group.name != spec.name
    found: dict[str, Any] = (
        {} if own else {key: getattr(spec, key) for key in _KEYS if _is_given(spec, key)} | dict(spec.settings)
    )
    name: str = spec.name
    found["lr"] = spec.lr
    if group is not None:
        name = group.name or spec.name
        found |= group.settings
        if group.lr is not None:
            found["lr"] = group.lr
        if group.weight_decay is not None:
            found["weight_decay"] = group.weight_decay
    return name, {key: tuple(value) if isinstance(value, list) else value for key, value in found.items()}


def _is_given(spec: OptimizerSpec, key: str) -> bool:
    value = getattr(spec, key)
    default = type(spec).model_fields[key].default
    return value is not None and (value != default or (key in spec.model_fields_set and key in ("betas", "eps")))
