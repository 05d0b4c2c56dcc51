"""The parts of an OP-DAG: operators, states, and the references between them. ``ir.Graph`` consists of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from math import prod
from typing import Protocol

__all__ = [
    "DTYPES",
    "Arg",
    "DTypeArg",
    "GraphFields",
    "InitStep",
    "LocalRef",
    "Op",
    "OpKind",
    "State",
    "StateKind",
    "StateRef",
    "TensorSpec",
    "Use",
    "ValueRef",
    "iter_refs",
]

#: The closed table of element types: name -> bytes per element.
DTYPES: Mapping[str, int] = {
    "float64": 8,
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "uint8": 1,
    "bool": 1,
    "complex64": 8,
    "complex128": 16,
}
_FLOATING = frozenset({"float64", "float32", "float16", "bfloat16"})
_COMPLEX = frozenset({"complex64", "complex128"})


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """Element type (a name of ``DTYPES``) and shape of a tensor; no strides, no device."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def numel(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self.numel * DTYPES[self.dtype]

    @property
    def floating(self) -> bool:
        """Whether the elements are real floating-point numbers (codecs that lose information take only these)."""
        return self.dtype in _FLOATING

    @property
    def complex(self) -> bool:
        """Whether the elements are complex numbers."""
        return self.dtype in _COMPLEX

    @property
    def continuous(self) -> bool:
        """Whether a gradient can exist: floating-point or complex numbers."""
        return self.floating or self.complex


@dataclass(frozen=True, slots=True)
class ValueRef:
    """Output ``index`` of the operator called ``op``; written ``op`` or ``op:index``."""

    op: str
    index: int = 0

    def __str__(self) -> str:
        return self.op if self.index == 0 else f"{self.op}:{self.index}"

    @classmethod
    def parse(cls, text: str) -> ValueRef:
        """Read what ``str`` wrote."""
        op, _, index = text.partition(":")
        return cls(op, int(index) if index else 0)


@dataclass(frozen=True, slots=True)
class StateRef:
    """A parameter, buffer or constant by its name in ``Graph.states``."""

    name: str


@dataclass(frozen=True, slots=True)
class LocalRef:
    """Inside an initializer program: the result of its step ``index``."""

    index: int


@dataclass(frozen=True, slots=True)
class DTypeArg:
    """An element type as an argument (a name of ``DTYPES``)."""

    name: str


#: What an operator may take. Devices, layouts and memory formats are not stored: the engine chooses them
#: (memory formats survive as strings behind the key ``memory_format``).
Arg = ValueRef | StateRef | LocalRef | DTypeArg | int | float | bool | str | None | tuple["Arg", ...]


class OpKind(StrEnum):
    """FusionLLM's kinds of operators."""

    PLACEHOLDER = "placeholder"
    VARIABLE = "variable"
    PARAMETRIC = "parametric"
    NON_PARAMETRIC = "non_parametric"
    LOSS = "loss"


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    """One operator.

    ``target`` is ``aten.<name>.<overload>`` from the allow-list or ``farflung.<name>`` (see ``graph.opset``).
    ``module`` is the path of the ``nn.Module`` that it came from, ``module_type`` its class name, ``occurrence`` counts the
    calls of one path (shared modules). ``rng`` numbers the random operators of the graph in program order (None: not random).
    ``no_grad``: recorded under ``torch.no_grad``.
    """

    name: str
    kind: OpKind
    target: str
    args: tuple[Arg, ...] = ()
    kwargs: tuple[tuple[str, Arg], ...] = ()
    outputs: tuple[TensorSpec, ...]
    module: str = ""
    module_type: str = ""
    occurrence: int = 0
    no_grad: bool = False
    rng: int | None = None

    def values(self) -> Iterator[ValueRef]:
        """The values that it reads, in argument order, repeats included."""
        for ref in _refs_of(self):
            if isinstance(ref, ValueRef):
                yield ref

    def states(self) -> Iterator[str]:
        """The names of the states that it reads, in argument order, repeats included."""
        for ref in _refs_of(self):
            if isinstance(ref, StateRef):
                yield ref.name


def iter_refs(arg: Arg) -> Iterator[ValueRef | StateRef | LocalRef]:
    """All references inside an argument tree, in order."""
    found: list[ValueRef | StateRef | LocalRef] = []
    _gather(arg, found)
    return iter(found)


def _gather(arg: Arg, found: list[ValueRef | StateRef | LocalRef]) -> None:
    if isinstance(arg, (ValueRef, StateRef, LocalRef)):
        found.append(arg)
    elif isinstance(arg, tuple):
        for item in arg:
            _gather(item, found)


def _refs_of(op: Op) -> list[ValueRef | StateRef | LocalRef]:
    found: list[ValueRef | StateRef | LocalRef] = []
    for arg in op.args:
        _gather(arg, found)
    for _, arg in op.kwargs:
        _gather(arg, found)
    return found


class StateKind(StrEnum):
    """What a state is: trained, carried along, or fixed."""

    PARAMETER = "parameter"
    BUFFER = "buffer"
    CONSTANT = "constant"


@dataclass(frozen=True, slots=True, kw_only=True)
class InitStep:
    """One recorded call of an initializer program.

    ``args`` may hold ``LocalRef`` (an earlier step of the same program). In-place targets change their first argument and
    return it. Random steps carry ``rng``, their number inside the program; the engine keys them by (seed, state name, rng), or
    by (seed, *like) when the value is a copy of another state's: ``like`` is that state's name and its step's ``rng``.
    ``output``: which result is meant when the operator gives several.
    """

    target: str
    args: tuple[Arg, ...] = ()
    kwargs: tuple[tuple[str, Arg], ...] = ()
    rng: int | None = None
    like: tuple[str, int] | None = None
    output: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """A parameter, buffer or constant.

    ``name`` is the first fully qualified name, ``aliases`` the further ones (tied parameters). ``init`` is the recorded
    initializer program, whose last step's result is the value (empty: the value must come from elsewhere).
    ``data`` holds a small constant's raw little-endian bytes.
    """

    name: str
    kind: StateKind
    spec: TensorSpec
    trainable: bool = False
    persistent: bool = True
    aliases: tuple[str, ...] = ()
    init: tuple[InitStep, ...] = ()
    data: bytes | None = None


@dataclass(frozen=True, slots=True)
class Use:
    """One operator that reads a state; the uses of a tied parameter are numbered in program order."""

    state: str
    op: str


class GraphFields(Protocol):
    """The fields of a graph (``ir.Graph``), for code that checks or writes a graph."""

    @property
    def name(self) -> str:
        """The graph's name."""

    @property
    def mode(self) -> str:
        """``train`` or ``eval``."""

    @property
    def ops(self) -> tuple[Op, ...]:
        """The operators, in program order."""

    @property
    def states(self) -> tuple[State, ...]:
        """The states that the operators read."""

    @property
    def state(self) -> Mapping[str, State]:
        """State name -> state."""

    @property
    def outputs(self) -> tuple[tuple[str, ValueRef], ...]:
        """Names of results, and their values."""

    @property
    def state_updates(self) -> tuple[tuple[str, ValueRef], ...]:
        """Names of states, and the values that they take after a forward."""

    @property
    def meta(self) -> tuple[tuple[str, str], ...]:
        """Texts by name."""
