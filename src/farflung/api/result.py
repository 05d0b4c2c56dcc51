"""What ``train`` returns: losses, records and the trained weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from farflung.engines.base import Array
from farflung.errors import InputError
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
    Ctrl-C (None: nothing did). ``checkpoint``: what ``resume`` takes. ``seconds``: of training.
    """

    plan: Plan
    records: tuple[StepRecord, ...]
    evaluations: tuple[EvaluationRecord, ...]
    states: Mapping[str, Array] = field(repr=False)
    steps: int
    error: BaseException | None = None
    checkpoint: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class TrainResult:
    """The outcome of a training, by ``train`` or by ``DetachedRun.wait``.

    ``losses``: one float per step that this call made, the mean over the step's micro-batches. ``records``: loss, times and
    bytes of each of these steps. ``evaluations``: one record per evaluation. ``states``: parameters and persistent buffers by
    their first name. ``steps``: optimizer steps that the weights have seen, with those before ``resume`` (by ``wait``: steps of
    the run, whose newest checkpoint may have fewer). ``stopped``: the run ended before the last step, by ``StopTraining``,
    Ctrl-C or ``stop``. ``run``: the run's name. ``checkpoint``: what ``resume`` takes to continue (empty: nothing was written).
    ``seconds``: of training. ``sample``: text that the model generated. ``aliases``: state -> its further names. ``planned``:
    the plan, ``None`` if the run was stopped before it had one. ``captured``: the graph, ``None`` if another process has
    captured it.
    """

    losses: tuple[float, ...]
    records: tuple[StepRecord, ...]
    states: Mapping[str, Array] = field(repr=False)
    aliases: Mapping[str, Sequence[str]] = field(repr=False)
    planned: Plan | None = field(default=None, repr=False)
    captured: Graph | None = field(default=None, repr=False)
    evaluations: tuple[EvaluationRecord, ...] = ()
    steps: int = 0
    stopped: bool = False
    run: str = ""
    checkpoint: str = ""
    seconds: float = 0.0
    sample: str = ""
    source: nn.Module | Callable[[], nn.Module] | None = field(default=None, repr=False)
    seed: int = 0

    @property
    def status(self) -> Literal["finished", "stopped"]:
        """How the run ended."""
        return "stopped" if self.stopped else "finished"

    @property
    def plan(self) -> Plan:
        """The plan that ran.

        Raises:
            InputError: the run was stopped before it had one.
        """
        if self.planned is None:
            raise InputError(f"{self.run} was stopped before it had a plan: submit it again")
        return self.planned

    @property
    def graph(self) -> Graph:
        """The model as a graph.

        Raises:
            InputError: another process has captured the model.
        """
        if self.captured is None:
            raise InputError(f"the graph of {self.run} is not in this process: the broker's folder of the run has it")
        return self.captured

    def state_dict(self) -> dict[str, Array]:
        """Return parameters and buffers as NumPy arrays by their names in the module.

        A tied parameter has an entry for each of its names. bfloat16 arrays have the type ``ml_dtypes.bfloat16``.
        """
        names = ((state, name) for state in self.aliases if state in self.states for name in (state, *self.aliases[state]))
        return {name: self.states[state] for state, name in names}

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return parameters and buffers as new CPU tensors by their names in the module; bfloat16 stays bfloat16.

        The names of a tied parameter share one tensor. ``module.load_state_dict(result.tensors())`` takes the dictionary.
        """
        from farflung.engines.torch.trained_module import state_tensors

        return state_tensors(self.aliases, self.states)

    def load_into(self, module: nn.Module, *, strict: bool = True) -> None:
        """Copy the trained weights into ``module``, in place. Device and element type of its tensors stay.

        With ``strict=False`` only names that both have are loaded.

        Raises:
            InputError: names or shapes differ, or the module is on the meta device. Then nothing was changed.
        """
        from farflung.engines.torch.trained_module import load_states

        load_states(module, self.aliases, self.states, strict=strict)

    def model(self) -> nn.Module:
        """Return a new module of the caller's class with the trained weights.

        The new module is a copy of the module that ``train`` was given, or comes from the same factory. Tied parameters stay
        tied, and a module on the meta device gets memory on the CPU.

        Raises:
            InputError: the module can't be copied, or is not in this process.
        """
        from farflung.engines.torch.trained_module import new_module

        if self.source is None:
            raise InputError(f"the module of {self.run} is not in this process: make one and call result.load_into(module)")
        return new_module(self.source, self.graph, self.states, self.seed)
