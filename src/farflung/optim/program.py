"""What an optimizer does to one parameter, as data.

An update program is a list of calls (``graph.ir.InitStep``), run one after the other. Targets are operators of the allow-list,
also those that change their first argument in place, or ``number.*`` operators on Python numbers. ``LocalRef(i)`` is the value
of place ``i``. The first places are inputs: the parameter, its gradient, the values that schedules set (the learning rate first),
and in later steps the states. Each call fills the next place.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from farflung.graph.ir import DTYPES, InitStep, LocalRef, TensorSpec
from farflung.job.groups import group_of
from farflung.job.spec import OptimizerSpec

__all__ = ["GRADIENT", "PARAMETER", "SETTINGS", "Key", "Rule", "RuleBook", "StateSlot", "UpdateProgram"]

#: Places of the inputs.
PARAMETER, GRADIENT = 0, 1
#: What schedules can set, in this order. ``momentum`` is the first of ``betas`` where an optimizer has those.
SETTINGS = ("lr", "momentum", "weight_decay")


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSlot:
    """A value that is kept between steps. ``kind``: an element type, or ``int`` or ``float`` for a Python number.

    ``shape``: None: the parameter's.
    """

    name: str
    kind: str
    shape: tuple[int, ...] | None = ()

    @property
    def number(self) -> bool:
        """Whether it is a Python number."""
        return self.kind in ("int", "float")

    def nbytes(self, shape: tuple[int, ...]) -> int:
        """Bytes for a parameter of ``shape``."""
        if self.number:
            return 8
        elements = 1
        for size in self.shape_for(shape):
            elements *= size
        return elements * DTYPES[self.kind]

    def shape_for(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Its shape for a parameter of ``shape``; a number has none."""
        return shape if self.shape is None else self.shape

    def narrows(self, shape: tuple[int, ...]) -> bool:
        """Whether a lower precision applies to it: a float32 tensor of more than one element."""
        return self.kind == "float32" and self.nbytes(shape) > DTYPES["float32"]


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateProgram:
    """One way through the optimizer's code. It applies if each of ``guards`` (place, expected bool) holds.

    ``results``: for each state of the rule the place or the number that it becomes.
    """

    steps: tuple[InitStep, ...]
    results: tuple[LocalRef | int | float, ...]
    guards: tuple[tuple[int, bool], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """The programs of a parameter's ``first`` step, which make the states, and of the ``later`` ones."""

    states: tuple[StateSlot, ...]
    first: tuple[UpdateProgram, ...]
    later: tuple[UpdateProgram, ...]

    def programs(self) -> Iterator[tuple[UpdateProgram, bool]]:
        """All programs, and whether each has the states as inputs."""
        yield from ((program, False) for program in self.first)
        yield from ((program, True) for program in self.later)


#: Element types of parameters that ``OptimizerSpec.update`` is for.
NARROW = ("bfloat16", "float16")

#: Optimizer states that it adds: the float32 copy of a parameter, and the number of its updates.
WIDE_SLOTS = ("master", "updates")


def updated_dtype(spec: OptimizerSpec, dtype: str) -> str:
    """The element type in which a parameter of type ``dtype`` is updated."""
    return "float32" if spec.update != "plain" and dtype in NARROW else dtype


#: Group of the optimizer, element type and shape of a parameter.
Key = tuple[int, str, tuple[int, ...]]


@dataclass(frozen=True, kw_only=True)
class RuleBook:
    """The rules of a job. ``settings``: the inputs that schedules set. ``uses``: parameters -> index of their rule."""

    settings: tuple[str, ...]
    rules: tuple[Rule, ...]
    uses: tuple[tuple[Key, int], ...]

    @cached_property
    def _table(self) -> dict[Key, int]:
        return dict(self.uses)

    def rule_of(self, spec: OptimizerSpec, name: str, declared: TensorSpec) -> Rule | None:
        """The rule of the parameter ``name`` of a job's model (None: there is none)."""
        return self.find(group_of(spec, name), updated_dtype(spec, declared.dtype), declared.shape)

    def find(self, group: int, dtype: str, shape: tuple[int, ...]) -> Rule | None:
        """The rule of a parameter (None: there is none)."""
        index = self._table.get((group, dtype, shape))
        return None if index is None else self.rules[index]
