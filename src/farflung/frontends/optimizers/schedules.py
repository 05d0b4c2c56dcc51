"""Schedules of the caller as values of each step: a function of the step, or a scheduler of ``torch.optim.lr_scheduler``."""

from __future__ import annotations

import copy
import warnings
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from farflung.errors import CaptureError
from farflung.foreign_code import first_line
from farflung.frontends.optimizers.capture import Trained, setting_of
from farflung.optim.program import SETTINGS

__all__ = ["Scheduled", "scheduled_values"]

#: ``schedule(step)`` is a factor of the learning rates; ``schedule(optimizer)`` makes a scheduler.
Schedule = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Scheduled:
    """The values of a setting: ``rows[step][group]``."""

    name: str
    rows: tuple[tuple[float, ...], ...]

    @property
    def constant(self) -> bool:
        """Whether every step has the same values."""
        return all(row == self.rows[0] for row in self.rows)


def scheduled_values(schedule: Schedule, groups: Sequence[Trained | None], steps: int) -> list[Scheduled]:
    """The learning rates of each step and group, and the momentum and weight decay where the schedule changes them.

    ``groups``: one parameter of each group of the job (None: a frozen one, whose values are 0).

    Raises:
        CaptureError: the function is neither a function of the step nor one that makes a scheduler, or fails.
    """
    by_step = _values_of(schedule, steps)
    if by_step is not None:
        base = [0.0 if item is None else setting_of(item.settings, "lr") for item in groups]
        return [Scheduled("lr", tuple(tuple(rate * scale for rate in base) for scale in by_step))]
    rows = _stepped(schedule, groups, steps)
    found = [Scheduled(name, tuple(rows[name])) for name in SETTINGS]
    return [item for item in found if item.name == "lr" or not item.constant]


def _values_of(schedule: Schedule, steps: int) -> list[float] | None:
    """The factors of each step (None: it is no function of the step)."""
    try:
        first = schedule(0)
    except Exception:  # noqa: BLE001 - foreign code that wants an optimizer fails on a number in its own way
        return None
    if not isinstance(first, (int, float)):
        return None
    found = []
    for step in range(steps):
        try:
            found.append(float(schedule(step)))
        except Exception as error:  # foreign code
            raise CaptureError(f"lr_schedule({step}) failed: {type(error).__name__}: {first_line(error)}") from error
    return found


def _stepped(schedule: Schedule, groups: Sequence[Trained | None], steps: int) -> dict[str, list[tuple[float, ...]]]:
    """The values that schedulers give to copies of the optimizers."""
    copies: dict[int, torch.optim.Optimizer] = {}
    live: list[dict[str, Any]] = []
    for item in groups:
        own: dict[str, Any] = {}
        if item is not None:
            own |= {**item.settings, "params": [torch.nn.Parameter(torch.zeros(1))]}
            copies.setdefault(id(item.optimizer), _copy(item.optimizer)).param_groups.append(own)
        live.append(own)
    rows: dict[str, list[tuple[float, ...]]] = {name: [] for name in SETTINGS}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that the optimizers, which are copies, make no steps
            schedulers = [schedule(optimizer) for optimizer in copies.values()]
            for made in schedulers:
                if not hasattr(made, "step"):
                    kind = type(made).__name__
                    raise CaptureError(f"lr_schedule gave a {kind}: return a factor of the step, or a scheduler")
            _extend(rows, schedulers, live, steps)
    except CaptureError:
        raise
    except Exception as error:  # foreign code
        done = len(rows["lr"])
        if done and not isinstance(error, TypeError):  # steps that need a loss lack an argument
            raise CaptureError(
                f"lr_schedule failed after step {done} of {steps}: {type(error).__name__}: {first_line(error)}; make a scheduler "
                f"that lasts for {steps} steps"
            ) from error
        raise CaptureError(
            f"lr_schedule failed: {type(error).__name__}: {first_line(error)}; pass a function of the step that gives a factor, "
            "or a function of the optimizer that makes a scheduler that needs no loss"
        ) from error
    return rows


def _extend(
    rows: Mapping[str, list[tuple[float, ...]]], schedulers: Sequence[Any], groups: Sequence[Mapping[str, Any]], steps: int
) -> None:
    for _ in range(steps):
        for name, values in rows.items():
            values.append(tuple(setting_of(group, name) for group in groups))
        for scheduler in schedulers:
            scheduler.step()


def _copy(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    found = copy.copy(optimizer)
    found.__dict__.pop("step", None)
    found.param_groups, found.state = [], defaultdict(dict)
    return found
