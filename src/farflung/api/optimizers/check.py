"""Compares captured rules with the optimizers themselves, on small parameters.

A rule sees one parameter. An optimizer that computes with several at a time (a norm over all of them), or that keeps values
outside of its state, would be captured without an error and train otherwise than in the caller's loop. So before a run, the
optimizers and their rules take some steps side by side, and every bit must agree. Each group has as many parameters here as the
caller's, and those without a gradient are among them.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from farflung.engines.torch.optimizers.built_in import RuleOptimizer
from farflung.engines.torch.optimizers.update_programs import Missing, missing_program
from farflung.errors import CaptureError
from farflung.frontends.optimizers.capture import (
    PLAIN,
    Trained,
    capture_rules,
    initial_states,
    set_setting,
    setting_of,
    step_copy,
)
from farflung.graph.ir import TensorSpec
from farflung.job.spec import GroupSpec, OptimizerSpec
from farflung.optim import Rule

__all__ = ["check_rules"]

_STEPS = 6
#: The first sizes of small parameters; they differ, so that rows are no columns.
_WIDTHS = (6, 4, 3, 2)


def check_rules(trained: Sequence[Trained], settings: Sequence[str] = ("lr",)) -> None:
    """Let the optimizers of ``trained`` and their rules take steps side by side, with changing ``settings``.

    Raises:
        CaptureError: the results differ, or an optimizer's step fails.
    """
    pairs = _pairs(trained)
    small = [pair.item for pair in pairs.values()]
    order = list(dict.fromkeys(item.group for item in small))
    small = [replace(item, group=order.index(item.group)) for item in small]
    usual = {name: _by_group(small, name) for name in settings}

    def values(step: int) -> dict[str, list[float]]:
        """The settings in a step; groups with equal settings differ here, because a schedule may change one of them."""
        return {name: [base * (1.0 - step / 16 - n % 7 / 256) for n, base in enumerate(bases)] for name, bases in usual.items()}

    def missing(rule: Rule, item: Trained) -> Missing | None:
        declared = TensorSpec(dtype=str(item.dtype).removeprefix("torch."), shape=item.shape)
        return missing_program(rule, declared, ([row[item.group] for row in values(step).values()] for step in range(_STEPS)))

    book = capture_rules(small, settings, missing)
    members: dict[int, list[str]] = defaultdict(list)
    for index, item in enumerate(small):
        members[item.group].append(f"p{index}")
    groups = tuple(GroupSpec(names=tuple(names)) for names in members.values())
    ruled = {f"p{index}": torch.nn.Parameter(pair.real.detach().clone()) for index, pair in enumerate(pairs.values())}
    rules = RuleOptimizer(OptimizerSpec(name="captured", groups=groups), book, ruled)
    _compare(trained, _Sides(pairs, small, rules, ruled), values)


@dataclass(frozen=True, slots=True)
class _Pair:
    """A small trained parameter of the optimizer's own side."""

    item: Trained
    real: torch.nn.Parameter


@dataclass(frozen=True, slots=True)
class _Sides:
    """The small parameters of both sides, in one order: ``small`` has the groups of ``rules``."""

    pairs: Mapping[int, _Pair]
    small: Sequence[Trained]
    rules: RuleOptimizer
    ruled: Mapping[str, torch.nn.Parameter]


def _compare(trained: Sequence[Trained], sides: _Sides, values: Callable[[int], Mapping[str, Sequence[float]]]) -> None:
    generator = torch.Generator().manual_seed(1)
    places = {key: item.group for key, item in zip(sides.pairs, sides.small, strict=True)}
    idle: list[tuple[torch.optim.Optimizer, torch.nn.Parameter]] = []
    copies = [
        _copied(optimizer, {key: pair.real for key, pair in sides.pairs.items()}, idle)
        for optimizer in {id(item.optimizer): item.optimizer for item in trained}.values()
    ]
    kept = [parameter.detach().clone() for _, parameter in idle]
    for step in range(_STEPS):
        row = values(step)
        for pair, other in zip(sides.pairs.values(), sides.ruled.values(), strict=True):
            pair.real.grad = _random(pair.item.shape, pair.item.dtype, generator)
            other.grad = pair.real.grad.clone()
        for real, optimizer in copies:
            _schedule(real, optimizer, places, row)
            step_copy(optimizer)
        sides.rules.step([value for bases in row.values() for value in (*bases, 0.0)])
    for (optimizer, parameter), before in zip(idle, kept, strict=True):
        if not torch.equal(parameter, before):
            raise CaptureError(
                f"optimizer {type(optimizer).__name__} can't be captured: it changes a parameter without a gradient, which "
                "farflung never does. Skip parameters whose grad is None"
            )
    for pair, other in zip(sides.pairs.values(), sides.ruled.values(), strict=True):
        if not torch.equal(pair.real, other):
            kind = type(pair.item.optimizer).__name__
            raise CaptureError(
                f"optimizer {kind} can't be captured: its rules and its own code give different weights. An update may depend on "
                "its parameter, gradient and self.state[parameter] only, not on other parameters or on attributes"
            )


def _schedule(
    real: torch.optim.Optimizer, copied: torch.optim.Optimizer, places: Mapping[int, int], row: Mapping[str, Sequence[float]]
) -> None:
    """Set the settings of a step in the groups that train something."""
    for given, group in zip(real.param_groups, copied.param_groups, strict=True):
        place = next((places[id(p)] for p in given["params"] if id(p) in places), None)
        if place is not None:
            for name, values in row.items():
                set_setting(group, name, values[place])


def _by_group(small: Sequence[Trained], name: str) -> list[float]:
    first = {item.group: item for item in reversed(small)}
    return [setting_of(first[group].settings, name) for group in sorted(first)]


def _pairs(trained: Sequence[Trained]) -> dict[int, _Pair]:
    """A small parameter for each of ``trained``, by the identity of the optimizer's own; equal shapes stay equal."""
    generator = torch.Generator().manual_seed(0)
    numbers: dict[tuple[bool, ...], dict[tuple[int, ...], int]] = defaultdict(dict)
    found: dict[int, _Pair] = {}
    for item in trained:
        alike = numbers[tuple(size == 1 for size in item.shape)]
        shape = _shape(item.shape, alike.setdefault(item.shape, len(alike)))
        made = torch.nn.Parameter(_random(shape, item.dtype, generator))
        key = id(made) if item.parameter is None else id(item.parameter)
        found[key] = _Pair(replace(item, shape=shape), made)
    return found


def _shape(shape: tuple[int, ...], number: int) -> tuple[int, ...]:
    """A small shape; sizes of 1 stay. ``number`` makes it differ from those of other shapes."""
    found = [1 if size == 1 else width for size, width in zip(shape, _WIDTHS * 16, strict=False)]
    first = next((index for index, size in enumerate(found) if size > 1), None)
    if first is not None:
        found[first] += number
    return tuple(found)


def _random(shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    return torch.randn(shape, generator=generator).to(dtype)


def _copied(
    optimizer: torch.optim.Optimizer,
    reals: Mapping[int, torch.nn.Parameter],
    idle: list[tuple[torch.optim.Optimizer, torch.nn.Parameter]],
) -> tuple[torch.optim.Optimizer, torch.optim.Optimizer]:
    """``optimizer`` and a copy of it with small parameters; those that are not in ``reals`` get no gradient (``idle``)."""
    copied = copy.copy(optimizer)
    copied.__dict__.pop("step", None)
    copied.param_groups, copied.state = [], defaultdict(dict)
    for group in optimizer.param_groups:
        small: list[torch.nn.Parameter] = []
        for parameter in group["params"]:
            made = reals.get(id(parameter))
            if made is None:
                made = torch.nn.Parameter(torch.ones(_shape(parameter.shape, 0), dtype=parameter.dtype), requires_grad=False)
                idle.append((optimizer, made))
            small.append(made)
            initial = initial_states(optimizer.state.get(parameter, {}), tuple(parameter.shape))
            if initial:
                shape = tuple(made.shape)
                states = ((name, state.value if state.dtype is None else state.tensor(shape)) for name, state in initial)
                copied.state[made] = dict(states)
        plain = {key: value for key, value in PLAIN.items() if key in group}
        copied.param_groups.append({**group, "params": small} | plain)
    return optimizer, copied
