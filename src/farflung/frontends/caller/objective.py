"""A module with the caller's loss and metrics in its forward, so that they are captured with it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn
from torch.nn import functional

from farflung.errors import InputError
from farflung.foreign_text import shown
from farflung.known_names import known_names

__all__ = ["METRICS", "Objective"]

#: ``function(outputs, target)``: what the model returns, and what it should have returned.
Scored = Callable[[Any, Any], Any]
#: Entries of a batch by name that hold the target; the first that is there.
_TARGETS = ("labels", "label", "targets", "target", "y")


@dataclass(frozen=True, kw_only=True)
class Objective:
    """The loss (None: the model's own) and the metrics by name. Each is a function of the model's outputs and the target.

    The target is the last element of a batch, or its entry ``labels``, ``label``, ``targets``, ``target`` or ``y``. With a loss,
    the model does not get it.
    """

    loss: Scored | None = None
    metrics: Mapping[str, Scored] = field(default_factory=dict)

    @classmethod
    def of(cls, loss: Any, metrics: Any) -> Objective:
        """Read the arguments ``loss`` and ``metrics`` of ``train``.

        Raises:
            InputError: one can't be called, or a metric has no such name.
        """
        if isinstance(loss, type):
            raise InputError(f"loss={loss.__name__} is a class: pass an instance, {loss.__name__}()")
        if loss is not None and not callable(loss):
            raise InputError(f"loss={shown(loss)} can't be called: pass a function of the model's outputs and the target")
        given = {} if metrics is None else metrics
        if isinstance(given, str):
            given = [given]
        if not isinstance(given, Iterable):
            raise InputError(f"metrics={shown(given)} is of the type {type(given).__name__}: pass names, or functions by name")
        found: dict[str, Scored] = {}
        for name in given:
            scored = given[name] if isinstance(given, Mapping) else METRICS.get(name) if isinstance(name, str) else None
            if scored is None:
                raise InputError(f"unknown metric {name!r:.80}: {known_names(name, METRICS)}; or pass functions by name")
            if isinstance(scored, type):
                raise InputError(f"metrics[{name!r:.80}]={scored.__name__} is a class: pass an instance, {scored.__name__}()")
            if not callable(scored) or not str(name).isidentifier() or name in ("loss", "correct"):
                raise InputError(
                    f"metrics={{{name!r:.80}: {shown(scored)}}}: pass functions of outputs and target by plain names, other than "
                    "loss"
                )
            found[str(name)] = scored
        return cls(loss=loss, metrics=found)

    def around(self, module: nn.Module | Callable[[], nn.Module], batch: Any) -> nn.Module | Callable[[], nn.Module]:
        """``module`` with this objective for batches like ``batch``; names of parameters stay. ``module`` is not changed.

        Raises:
            InputError: the batch has no target, or the loss has parameters of its own.
        """
        if self.loss is None and not self.metrics:
            return module
        if isinstance(self.loss, nn.Module) and any(True for _ in self.loss.parameters()):
            raise InputError("loss has parameters, which would not be trained: make it a part of the model")
        if not isinstance(module, nn.Module):
            return lambda: self._scored(module(), batch)
        return self._scored(module, batch)

    def _scored(self, module: nn.Module, batch: Any) -> nn.Module:
        kind = type(module)
        if module._forward_hooks or module._forward_pre_hooks:
            raise InputError(f"{kind.__name__} has hooks, which cannot be used together with loss or metrics: remove them")
        # A wrapper around the module would rename its parameters. A shallow copy with another forward does not.
        scored: Any = object.__new__(kind)
        scored.__dict__ = {**vars(module), "forward": _Forward(self, module, batch).method(lambda: scored)}
        found: nn.Module = scored
        return found


class _Forward:
    """The forward of a module with an objective."""

    def __init__(self, objective: Objective, module: nn.Module, batch: Any) -> None:
        self._objective = objective
        own: Callable[..., Any] | None = vars(module).get("forward")
        self._inner: Callable[..., Any] = type(module).forward if own is None else lambda _, *args, **named: own(*args, **named)
        self._parameters = list(inspect.signature(module.forward).parameters)
        #: The target's name, if batches have names.
        self._target = _target(batch) if isinstance(batch, Mapping) else None
        self._names = list(map(str, batch)) if isinstance(batch, Mapping) else self._positional(batch)

    def _positional(self, batch: Any) -> list[str]:
        count = 1 if isinstance(batch, Tensor) or not isinstance(batch, Sequence) else len(batch)
        if count < 2:
            raise InputError(
                f"the first batch has {count} element, and with loss or metrics the last element of a batch is the target: "
                "return (inputs, target)"
            )
        names = [name for name in self._parameters if name not in ("args", "kwargs")]
        given = (names + [f"input_{number}" for number in range(count)])[: count - 1]
        if self._objective.loss is None:  # the model gets the target as well
            return (names + [f"input_{number}" for number in range(count)])[:count]
        return [*given, next(name for name in _TARGETS if name not in given)]

    def method(self, owner: Callable[[], nn.Module]) -> Callable[..., Any]:
        """The forward of the module that ``owner`` returns, with the parameters that batches have."""

        def forward(*args: Any, **named: Any) -> dict[str, Any]:
            return self._run(owner(), args, named)

        kind = inspect.Parameter.KEYWORD_ONLY if self._target else inspect.Parameter.POSITIONAL_OR_KEYWORD
        vars(forward)["__signature__"] = inspect.Signature([inspect.Parameter(name, kind) for name in self._names])
        return forward

    def _run(self, module: nn.Module, args: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Any]:
        objective = self._objective
        if self._target is not None:
            target = named[self._target]
            rest: dict[str, Any] = {name: value for name, value in named.items() if name != self._target}
            outputs = self._inner(module, **(named if objective.loss is None else rest))
        else:
            target = args[-1]
            outputs = self._inner(module, *(args if objective.loss is None else args[:-1]))
        loss = _own_loss(outputs) if objective.loss is None else objective.loss(outputs, target)
        return {"loss": loss, **{name: metric(outputs, target) for name, metric in objective.metrics.items()}}


def _target(batch: Mapping[str, Any]) -> str:
    found = next((name for name in _TARGETS if name in batch), None)
    if found is None:
        raise InputError(
            f"the first batch has {', '.join(map(str, batch))}, and loss and metrics need a target: name one of them labels"
        )
    return found


def _own_loss(outputs: Any) -> Any:
    if isinstance(outputs, Mapping):
        return outputs["loss"]
    return outputs[0] if isinstance(outputs, (list, tuple)) else outputs


def _scores(outputs: Any) -> Tensor:
    """The model's scores: its tensor, its ``logits``, or the last of its results."""
    if isinstance(outputs, Mapping):
        outputs = outputs.get("logits", next(reversed(list(outputs.values()))))
    found: Tensor = outputs[-1] if isinstance(outputs, (list, tuple)) else outputs
    return found


def _accuracy(outputs: Any, target: Tensor) -> Tensor:
    counted = target != -100  # PyTorch's index for targets that do not count
    right = (_scores(outputs).argmax(dim=-1) == target) & counted
    return right.sum() / counted.sum().clamp(min=1)


def _squared(outputs: Any, target: Tensor) -> Tensor:
    return functional.mse_loss(_scores(outputs), target)


def _absolute(outputs: Any, target: Tensor) -> Tensor:
    return functional.l1_loss(_scores(outputs), target)


#: Metrics by name.
METRICS: dict[str, Scored] = {"accuracy": _accuracy, "mse": _squared, "mae": _absolute}
