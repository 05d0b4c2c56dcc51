"""Turns the bytes of a fuzzer into graphs of one operator, and runs them as a worker does: read, verify, train one micro-batch.

The operator gets tensors of small shapes and all element types, and numbers from a list of those that break programs. Half of the
graphs have their operator in an initializer program where it may stand there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import torch

from farflung.engines.base import EngineSettings, MicroBatch
from farflung.engines.torch.arrays import TORCH_DTYPES, spec_of, to_array
from farflung.engines.torch.engine import TorchEngine
from farflung.engines.torch.program import PSEUDO, kernel, resolve
from farflung.graph.cut import cut
from farflung.graph.ir import (
    DTYPES,
    Arg,
    DTypeArg,
    Graph,
    InitStep,
    LocalRef,
    Op,
    OpKind,
    State,
    StateKind,
    StateRef,
    TensorSpec,
    ValueRef,
)
from farflung.graph.opset import OPSET, OpInfo
from farflung.graph.signatures import Parameter, check_call, signature

__all__ = ["Source", "draw_graph", "draw_operator", "train_once"]

_INTEGERS = (
    0,
    1,
    2,
    3,
    -1,
    -2,
    4,
    5,
    7,
    8,
    16,
    100,
    -100,
    1 << 20,
    (1 << 31) - 1,
    -(1 << 31),
    1 << 40,
    (1 << 63) - 1,
    -(1 << 63),
)
_FLOATS = (
    0.0,
    1.0,
    0.5,
    -1.0,
    2.0,
    1e-5,
    -0.0,
    float("nan"),
    float("inf"),
    -float("inf"),
    1e-38,
    1e30,
    -1e30,
    1e300,
    1e-300,
    9e18,
)
_WORDS = (
    "trunc",
    "floor",
    "none",
    "mean",
    "sum",
    "same",
    "valid",
    "amax",
    "prod",
    "constant",
    "reflect",
    "tanh",
    "ij,jk->ik",
    "",
)
_SIZES = (1, 2, 3, 4, 0, 5, 8)
#: Bytes that the operator's results may have together: larger ones are refused by planners, not by the engine.
_MOST = 16 << 20
_META = torch.device("meta")


class Source(Protocol):
    """The bytes of an input, drawn piece by piece; ``atheris.FuzzedDataProvider`` is one."""

    def ConsumeIntInRange(self, least: int, most: int) -> int:  # noqa: N802 - the name that atheris has
        """The next integer of ``least`` to ``most``."""


def _pick(source: Source, items: Any) -> Any:
    return items[source.ConsumeIntInRange(0, len(items) - 1)]


class _Drawing:
    """One graph in the making: placeholders and states with their values."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.specs: dict[str, TensorSpec] = {}
        self.states: dict[str, TensorSpec] = {}
        self.steps: list[InitStep] | None = None

    def tensor(self) -> Arg:
        source = self.source
        known = [*self.specs, *self.states]
        if self.steps is not None:
            return LocalRef(source.ConsumeIntInRange(0, max(len(self.steps) - 1, 0)))
        if known and source.ConsumeIntInRange(0, 2) == 0:
            name = _pick(source, known)
        else:
            name = f"x{len(known)}"
            floating = source.ConsumeIntInRange(0, 3) > 0
            dtype = "float32" if floating else _pick(source, tuple(DTYPES))
            spec = TensorSpec(dtype=dtype, shape=self.shape())
            state = source.ConsumeIntInRange(0, 2) == 0 and spec.floating
            (self.states if state else self.specs)[name] = spec
        return StateRef(name) if name in self.states else ValueRef(name)

    def shape(self) -> tuple[int, ...]:
        return tuple(_pick(self.source, _SIZES) for _ in range(self.source.ConsumeIntInRange(0, 4)))

    def integer(self) -> int:
        if self.source.ConsumeIntInRange(0, 3):
            return self.source.ConsumeIntInRange(-3, 6)
        return int(_pick(self.source, _INTEGERS))

    def number(self) -> int | float | bool:
        return _pick(self.source, (self.integer, self.float, self.boolean))()  # type: ignore[no-any-return]

    def float(self) -> float:
        return float(_pick(self.source, _FLOATS))

    def boolean(self) -> bool:
        return self.source.ConsumeIntInRange(0, 1) == 1

    def one(self, parameter: Parameter) -> Arg:
        kinds: dict[str, Callable[[], Arg]] = {
            "Tensor": self.tensor,
            "int": self.integer,
            "float": self.float,
            "bool": self.boolean,
            "Scalar": self.number,
            "str": lambda: str(_pick(self.source, _WORDS)),
            "ScalarType": lambda: DTypeArg(_pick(self.source, tuple(DTYPES))),
            "MemoryFormat": lambda: str(_pick(self.source, ("contiguous_format", "channels_last", "channels_last_3d"))),
        }
        make = kinds.get(parameter.kind)
        return None if make is None else make()

    def argument(self, parameter: Parameter) -> Arg:
        if parameter.optional and self.source.ConsumeIntInRange(0, 2) == 0:
            return None
        if self.source.ConsumeIntInRange(0, 63) == 0:  # of another type than declared
            return _pick(self.source, (self.tensor, self.integer, self.float, self.boolean, lambda: None, self.shape))()  # type: ignore[no-any-return]
        if parameter.size is None:
            return self.one(parameter)
        return tuple(self.one(parameter) for _ in range(self.source.ConsumeIntInRange(0, parameter.size or 4)))

    def call(self, target: str) -> tuple[tuple[Arg, ...], tuple[tuple[str, Arg], ...]]:
        args: list[Arg] = []
        kwargs: list[tuple[str, Arg]] = []
        for parameter in signature(target).parameters:
            if not parameter.required and self.source.ConsumeIntInRange(0, 2) == 0:
                break
            value = self.argument(parameter)
            if parameter.keyword_only:
                kwargs.append((parameter.name, value))
            else:
                args.append(value)
        return tuple(args), tuple(kwargs)


def draw_operator(source: Source) -> str:
    """An operator's name."""
    return str(_pick(source, [name for name in OPSET if name not in _STRUCTURE]))


def draw_graph(source: Source, operator: str) -> Graph:
    """A graph that uses ``operator``.

    Raises:
        Exception: the meta device refuses the arguments, in any way.
    """
    known = OPSET[operator]
    drawing = _Drawing(source)
    program = known.initializer and (not known.graph or drawing.boolean())
    return (_initialized if program else _computed)(drawing, known)


_STRUCTURE = frozenset({"farflung.input", "farflung.variable", "farflung.gradient"})


def _computed(drawing: _Drawing, known: OpInfo) -> Graph:
    args, kwargs = drawing.call(known.name)
    made = _declared(drawing, known.name, args, kwargs)
    op = Op(
        name="y",
        kind=OpKind.PARAMETRIC if drawing.states else OpKind.NON_PARAMETRIC,
        target=known.name,
        args=args,
        kwargs=kwargs,
        outputs=made,
        rng=0 if known.random and drawing.boolean() else None,
    )
    return _graph(drawing, [op], [ValueRef("y", index) for index, spec in enumerate(made) if spec.floating])


def _declared(
    drawing: _Drawing, target: str, args: tuple[Arg, ...], kwargs: tuple[tuple[str, Arg], ...]
) -> tuple[TensorSpec, ...]:
    """What the operator gives on the meta device; a graph that declares something else never comes to a kernel."""
    specs = drawing.specs | drawing.states

    def ref(item: ValueRef | StateRef | LocalRef) -> torch.Tensor:
        assert not isinstance(item, LocalRef)
        spec = specs[item.op if isinstance(item, ValueRef) else item.name]
        return torch.empty(spec.shape, dtype=TORCH_DTYPES[spec.dtype], device=_META)

    unknown = (TensorSpec(dtype="float32", shape=(1,)),)
    check_call(signature(target), args, kwargs, target)
    given = [resolve(arg, ref) for arg in args]
    named = {name: resolve(arg, ref, memory_format=name == "memory_format") for name, arg in kwargs}
    with torch.no_grad():
        found = _function(target, given, named)(*given, **named)
    results = (found,) if isinstance(found, torch.Tensor) else tuple(found)
    made = tuple(spec_of(result) for result in results)
    return made if sum(spec.nbytes for spec in made) <= _MOST else unknown


def _function(target: str, args: list[Any], kwargs: dict[str, Any]) -> Callable[..., Any]:
    return PSEUDO[target] if target in PSEUDO else kernel(target, args, kwargs, _META)


def _initialized(drawing: _Drawing, known: OpInfo) -> Graph:
    """A graph with a buffer whose program has the operator as its last but one step."""
    steps = drawing.steps = []
    for _ in range(drawing.source.ConsumeIntInRange(1, 3)):
        dtype = DTypeArg(_pick(drawing.source, ("float32", "float32", "int64", "bool", "float64")))
        steps.append(InitStep(target="aten.full.default", args=(drawing.shape(), drawing.number()), kwargs=(("dtype", dtype),)))
    args, kwargs = drawing.call(known.name)
    steps.append(InitStep(target=known.name, args=args, kwargs=kwargs, rng=0 if known.random else None))
    steps.append(InitStep(target="aten.sum.default", args=(LocalRef(len(steps) - 1),), kwargs=(("dtype", DTypeArg("float32")),)))
    drawing.states["w"] = TensorSpec(dtype="float32", shape=())
    return _graph(drawing, [], [], tuple(steps))


def _graph(drawing: _Drawing, ops: list[Op], sums: list[ValueRef], program: tuple[InitStep, ...] = ()) -> Graph:
    """The loss is the sum of what the operator makes."""
    scalar = TensorSpec(dtype="float32", shape=())
    to_float = (("dtype", DTypeArg("float32")),)
    inputs = [Op(name=n, kind=OpKind.PLACEHOLDER, target="farflung.input", outputs=(s,)) for n, s in drawing.specs.items()]
    initial = (InitStep(target="aten.full.default", args=((), 0.5), kwargs=to_float),)
    states = [
        State(
            name=name,
            kind=StateKind.PARAMETER,
            spec=spec,
            trainable=not program,
            init=program or (replace(initial[0], args=(spec.shape, 0.5), kwargs=(("dtype", DTypeArg(spec.dtype)),)),),
        )
        for name, spec in drawing.states.items()
    ]
    parts: list[Op] = []
    for number, value in enumerate(sums):
        parts.append(
            Op(
                name=f"sum{number}",
                kind=OpKind.NON_PARAMETRIC,
                target="aten.sum.default",
                args=(value,),
                kwargs=to_float,
                outputs=(scalar,),
            )
        )
    last = "loss"
    first = Op(
        name=last, kind=OpKind.NON_PARAMETRIC, target="aten.full.default", args=((), 1.0), kwargs=to_float, outputs=(scalar,)
    )
    parts.append(first)
    for number in range(len(sums)):
        args = (ValueRef(last), ValueRef(f"sum{number}"))
        last = f"total{number}"
        parts.append(Op(name=last, kind=OpKind.NON_PARAMETRIC, target="aten.add.Tensor", args=args, outputs=(scalar,)))
    return Graph(name="fuzz", ops=(*inputs, *ops, *parts), states=tuple(states), outputs=(("loss", ValueRef(last)),))


def train_once(graph: Graph, seed: int) -> None:
    """Read the graph's document and train one micro-batch, as a worker does.

    Raises:
        FarflungError: the graph is refused, or its operator fails.
    """
    graph = Graph.from_json(graph.to_json())
    runner = TorchEngine().open(cut(graph, [(0, len(graph.ops))])[0], EngineSettings())
    runner.initialize([state.name for state in graph.states])
    data = {
        op.name: _values(op.outputs[0], np.random.default_rng([seed, number])) for number, op in enumerate(graph.placeholders)
    }
    key = MicroBatch(0, 0)
    runner.forward(key, {}, data)
    runner.backward(key, {}, 1.0)
    runner.close_part(last=True)
    runner.finish_gradients({})
    runner.update([0.1], None)
    runner.states()


def _values(spec: TensorSpec, rng: np.random.Generator) -> Any:
    """Values of which some break programs: extreme integers, numbers that are not finite."""
    dtype = TORCH_DTYPES[spec.dtype]
    if spec.floating or spec.complex:
        pool = torch.tensor(_FLOATS if rng.integers(2) else _FLOATS[:7], dtype=torch.float64)
    else:
        low = [0, 1, 2, 3]
        pool = torch.tensor(low if rng.integers(2) else [*low, -1, -100, 127, 1 << 20, (1 << 63) - 1, -(1 << 63), -(1 << 31)])
    chosen = pool[torch.from_numpy(rng.integers(0, len(pool), spec.shape))]
    return to_array(chosen.to(dtype))
