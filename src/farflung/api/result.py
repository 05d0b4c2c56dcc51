"""What ``train`` returns: losses, records and the trained weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from farflung.engines.base import Array
from farflung.graph.ir import Graph
from farflung.plan.model import Plan
from farflung.telemetry.records import EvaluationRecord, StepRecord

if TYPE_CHECKING:
    import torch
    from torch import nn

__all__ = ["Outcome", "TrainResult"]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a training ended, wherever it ran: the plan that ran, its records, and the states after ``steps`` steps.

    ``error``: what ended the run before its last step although its states are whole: an exception of the caller's callback, or
    Ctrl-C (None: nothing did). ``checkpoint``: what ``resume`` takes.
    """

    plan: Plan
    records: tuple[StepRecord, ...]
    evaluations: tuple[EvaluationRecord, ...]
    states: Mapping[str, Array] = field(repr=False)
    steps: int
    error: BaseException | None = None
    checkpoint: str = ""


@dataclass(frozen=True, kw_only=True)
class TrainResult:
    """The outcome of a training.

    ``losses``: one float per step that this call made, the mean over the step's micro-batches. ``records``: loss, times and
    bytes of each of these steps. ``evaluations``: one record per evaluation. ``states``: parameters and persistent buffers by
    their first name. ``steps``: optimizer steps that the weights have seen, with those before ``resume``. ``stopped``: the run
    ended before the last step, by ``StopTraining`` or Ctrl-C. ``run``: the run's name. ``checkpoint``: what ``resume`` takes to
    continue (empty: nothing was written).
    """

    losses: tuple[float, ...]
    records: tuple[StepRecord, ...]
    plan: Plan
    graph: Graph
    states: Mapping[str, Array] = field(repr=False)
    evaluations: tuple[EvaluationRecord, ...] = ()
    steps: int = 0
    stopped: bool = False
    run: str = ""
    checkpoint: str = ""
    source: nn.Module | Callable[[], nn.Module] | None = field(default=None, repr=False)
    seed: int = 0

    def state_dict(self) -> dict[str, Array]:
        """Return parameters and buffers as NumPy arrays by their names in the module.

        A tied parameter has an entry for each of its names. bfloat16 arrays have the type ``ml_dtypes.bfloat16``.
        """
        found: dict[str, Array] = {}
        for state in self.graph.states:
            if state.name in self.states:
                for name in (state.name, *state.aliases):
                    found[name] = self.states[state.name]
        return found

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return parameters and buffers as new CPU tensors by their names in the module; bfloat16 stays bfloat16.

        The names of a tied parameter share one tensor. ``module.load_state_dict(result.tensors())`` takes the dictionary.
        """
        from farflung.engines.torch.trained_module import state_tensors

        return state_tensors(self.graph, self.states)

    def load_into(self, module: nn.Module, *, strict: bool = True) -> None:
        """Copy the trained weights into ``module``, in place. Device and element type of its tensors stay.

        With ``strict=False`` only names that both have are loaded.

        Raises:
            InputError: names or shapes differ, or the module is on the meta device. Then nothing was changed.
        """
        from farflung.engines.torch.trained_module import load_states

        load_states(module, self.graph, self.states, strict=strict)

    def model(self) -> nn.Module:
        """Return a new module of the caller's class with the trained weights.

        The new module is a copy of the module that ``train`` was given, or comes from the same factory. Tied parameters stay
        tied, and a module on the meta device gets memory on the CPU.

        Raises:
            InputError: the module can't be copied.
        """
        from farflung.engines.torch.trained_module import new_module

        assert self.source is not None  # ``train`` always gives it
        return new_module(self.source, self.graph, self.states, self.seed)
