"""Compares captured rules with the optimizer itself, on small parameters.

A rule sees one parameter. An optimizer that computes with several at a time (a norm over all of them), or that keeps values
outside of its state, would be captured without an error and train otherwise than in the caller's loop. So before a run, the
optimizers and their rules take some steps side by side, and every bit must agree.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from farflung.engines.torch.optimizer import RuleOptimizer
from farflung.engines.torch.update_programs import Missing, missing_program
from farflung.errors import CaptureError
from farflung.frontends.optimizers.capture import PLAIN, Trained, capture_rules, set_setting, setting_of
from farflung.graph.ir import TensorSpec
from farflung.job.spec import GroupSpec, OptimizerSpec
from farflung.optim import Rule

__all__ = ["check_rules"]

_STEPS = 6
#: A dimension is at most so large in a small parameter; they differ, so that rows are no columns.
_WIDTHS = (6, 4, 3, 2)


def check_rules(trained: Sequence[Trained], settings: Sequence[str] = ("lr",)) -> None:
    """Let the optimizers of ``trained`` and their rules take steps side by side, with changing ``settings``.

    Raises:
        CaptureError: the results differ.
    """
    small = _small(trained)
    names = {index: f"p{index}" for index in range(len(small))}
    generator = torch.Generator().manual_seed(0)
    values = [_random(item, generator) for item in small]
    real = {names[index]: torch.nn.Parameter(value.clone()) for index, value in enumerate(values)}
    ruled = {names[index]: torch.nn.Parameter(value.clone()) for index, value in enumerate(values)}
    usual = {name: [setting_of(item.settings, name) for item in small] for name in settings}
    scales = [1.0 - step / 16 for step in range(_STEPS)]

    def missing(rule: Rule, item: Trained) -> Missing | None:
        declared = TensorSpec(dtype=str(item.dtype).removeprefix("torch."), shape=item.shape)
        return missing_program(rule, declared, ([base[item.group] * scale for base in usual.values()] for scale in scales))

    book = capture_rules(small, settings, missing)
    groups = tuple(GroupSpec(names=(name,)) for name in names.values())
    rules = RuleOptimizer(OptimizerSpec(name="captured", groups=groups), book, ruled)
    copies = _copies(small, list(real.values()))
    for scale in scales:
        for item, mine, other in zip(small, real.values(), ruled.values(), strict=True):
            mine.grad = _random(item, generator)
            other.grad = mine.grad.clone()
        for optimizer, kinds in copies:
            for group, index in zip(optimizer.param_groups, kinds, strict=True):
                for name, base in usual.items():
                    set_setting(group, name, base[index] * scale)
            type(optimizer).step(optimizer)
        rules.step([value * scale for base in usual.values() for value in (*base, 0.0)])
    for item, mine, other in zip(small, real.values(), ruled.values(), strict=True):
        if not torch.equal(mine, other):
            kind = type(item.optimizer).__name__
            raise CaptureError(
                f"optimizer {kind} can't be captured: its rules and its own code give different weights. An update may depend on "
                "its parameter, gradient and self.state[parameter] only, not on other parameters or on attributes"
            )


def _small(trained: Sequence[Trained]) -> list[Trained]:
    """Small parameters of the ranks that each group has, a group of its own for each, at most two of a rank."""
    found: list[Trained] = []
    seen: dict[tuple[int, int], int] = defaultdict(int)
    for item in trained:
        key = item.group, len(item.shape)
        if seen[key] < 2:
            seen[key] += 1
            shape = tuple(min(size, width + seen[key]) for size, width in zip(item.shape, _WIDTHS * 4, strict=False))
            found.append(replace(item, group=len(found), shape=shape))
    return found


def _random(item: Trained, generator: torch.Generator) -> torch.Tensor:
    return torch.randn(item.shape, generator=generator).to(item.dtype)


def _copies(small: Sequence[Trained], parameters: Sequence[torch.nn.Parameter]) -> list[tuple[torch.optim.Optimizer, list[int]]]:
    """A copy of each optimizer for its small parameters, with the index of the parameter of each group."""
    found: dict[int, tuple[torch.optim.Optimizer, list[int]]] = {}
    for index, (item, parameter) in enumerate(zip(small, parameters, strict=True)):
        if id(item.optimizer) not in found:
            optimizer = copy.copy(item.optimizer)
            optimizer.__dict__.pop("step", None)
            optimizer.param_groups, optimizer.state = [], defaultdict(dict)
            found[id(item.optimizer)] = optimizer, []
        optimizer, indices = found[id(item.optimizer)]
        optimizer.param_groups.append(_group(item.settings, parameter))
        if item.initial:
            states = ((name, state.value if state.dtype is None else state.tensor(item.shape)) for name, state in item.initial)
            optimizer.state[parameter] = dict(states)
        indices.append(index)
    return list(found.values())


def _group(settings: Mapping[str, Any], parameter: torch.nn.Parameter) -> dict[str, Any]:
    return {**settings, "params": [parameter]} | {key: value for key, value in PLAIN.items() if key in settings}
