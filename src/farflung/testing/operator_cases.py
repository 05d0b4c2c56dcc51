"""A call of each operator of the allow-list as a small graph, for the conformance kit of engines.

A line of ``operator_case_table`` is an operator, its arguments and its results. An argument is a number, a word or a list as
Python writes it, ``@float64`` (an element type), ``name=value``, or tensors (several between braces):

| written   | tensor                                             | gradient |
| --------- | -------------------------------------------------- | -------- |
| ``f[3,4]``  | normal numbers                                     | yes      |
| ``p[3,4]``  | numbers from 0.3 to 2.3                            | yes      |
| ``u[3,4]``  | numbers from 0.05 to 0.95                          | yes      |
| ``g[3,4]``, ``q[3,4]`` | as ``f``, as ``p``                      | no       |
| ``s[3]``    | -1 or 1                                            | no       |
| ``h[3,4]``  | 0 or 1, floating                                   | no       |
| ``b[3,4]``  | true or false                                      | no       |
| ``i5[3]``   | integers from 0 to 4                               | no       |
| ``d5[3]``   | the same, different from each other along an axis  | no       |
| ``o[3]``    | 0, 2, 4, ...                                       | no       |
| ``z[3]``    | complex numbers                                    | no       |
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from farflung.engines.base import Array
from farflung.graph.ir import DTypeArg, Graph, Op, OpKind, State, StateKind, StateRef, TensorSpec, ValueRef
from farflung.graph.opset import OPSET
from farflung.testing.operator_case_table import CASES

__all__ = ["Case", "operator_cases"]

_GRADIENT = frozenset("fpu")
_FLOATING = frozenset("fpugqsh")
_TENSOR = re.compile(r"([a-z])(\d*)\[([\d,]*)\]")
#: Operators whose arguments must lie in rows: views that keep memory as it is, and a kernel of PyTorch.
_IN_ROWS = frozenset({"_unsafe_view.default", "view.default", "view_as.default", "view_as_complex.default", "nll_loss2d.default"})
_SIGNS = (-1.0, 1.0)


@dataclass(frozen=True, kw_only=True)
class Case:
    """A call of ``operator`` as a graph: its trained parameters are the arguments with a gradient, ``loss`` weighs its results.

    ``inputs``: the further tensors, with the weights of the results. ``results``: the outputs of the graph that the call makes.
    ``turned``: the arguments are stored with their last two dimensions exchanged.
    """

    operator: str
    graph: Graph
    states: dict[str, Array]
    inputs: dict[str, Array]
    results: tuple[str, ...]
    turned: bool = False


@dataclass
class _Builder:
    """Builds the graph of a case. ``dtype``: of its floating tensors."""

    generator: np.random.Generator
    dtype: str
    turned: bool
    ops: list[Op] = field(default_factory=list)
    states: list[State] = field(default_factory=list)
    values: dict[str, Array] = field(default_factory=dict)
    inputs: dict[str, Array] = field(default_factory=dict)

    def argument(self, text: str) -> Any:
        """An argument, with its tensors added to the graph."""
        if text.startswith("{"):
            return tuple(self.argument(item) for item in text[1:-1].split(";"))
        if text.startswith("@"):
            return DTypeArg(self.dtype if text == "@float32" else text[1:])
        found = _TENSOR.fullmatch(text)
        if found is None:
            return ast.literal_eval(text)
        kind, most, sizes = found[1], found[2], tuple(int(size) for size in found[3].split(",") if size)
        array = self.numbers(kind, int(most or 0), sizes)
        turns = self.turned and len(sizes) > 1
        held = np.ascontiguousarray(np.swapaxes(array, -1, -2)) if turns else array
        ref = self.state(held) if kind in _GRADIENT else self.placeholder(held)
        return self.call("aten.transpose.int", (ref, -1, -2), (_spec(array),))[0] if turns else ref

    def numbers(self, kind: str, most: int, sizes: tuple[int, ...]) -> Array:
        """The values of a tensor."""
        draw = self.generator
        match kind:
            case "p" | "q":
                found: Array = draw.uniform(0.3, 2.3, sizes)
            case "u":
                found = draw.uniform(0.05, 0.95, sizes)
            case "s":
                found = draw.choice(_SIGNS, sizes)
            case "h":
                found = draw.integers(0, 2, sizes).astype(np.float64)
            case "b":
                return np.asarray(draw.integers(0, 2, sizes), bool)
            case "i":
                return draw.integers(0, most, sizes)
            case "d":
                count = sizes[-1] if len(sizes) == 1 else most
                rows = [draw.permutation(max(most, count))[:count] for _ in range(int(np.prod(sizes)) // sizes[-1])]
                return np.asarray(np.stack([row[: sizes[-1]] for row in rows]).reshape(sizes), np.int64)
            case "o":
                return np.arange(0, 2 * sizes[0], 2)
            case "z":
                both = draw.standard_normal((2, *sizes))
                return np.asarray(both[0] + 1j * both[1], np.complex64 if self.dtype == "float32" else np.complex128)
            case _:
                found = draw.standard_normal(sizes)
        return np.asarray(found, self.dtype)

    def state(self, array: Array) -> StateRef:
        """A trained parameter."""
        name = f"w{len(self.states)}"
        self.states.append(State(name=name, kind=StateKind.PARAMETER, spec=_spec(array), trainable=True))
        self.values[name] = array
        return StateRef(name)

    def placeholder(self, array: Array) -> ValueRef:
        """An input of the graph."""
        name = f"x{len(self.inputs)}"
        self.ops.append(Op(name=name, kind=OpKind.PLACEHOLDER, target="farflung.input", outputs=(_spec(array),)))
        self.inputs[name] = array
        return ValueRef(name)

    def call(self, target: str, args: tuple[Any, ...], outputs: tuple[TensorSpec, ...], **more: Any) -> list[ValueRef]:
        """Append a call."""
        reads_state = any(isinstance(arg, StateRef) for item in args for arg in (item if isinstance(item, tuple) else (item,)))
        name = f"op{len(self.ops)}"
        kind = OpKind.PARAMETRIC if reads_state else OpKind.NON_PARAMETRIC
        self.ops.append(Op(name=name, kind=kind, target=target, args=args, outputs=outputs, **more))
        return [ValueRef(name, index) for index in range(len(outputs))]

    def weighed(self, value: ValueRef, spec: TensorSpec) -> ValueRef:
        """The sum of ``value`` times normal numbers."""
        if spec.dtype.startswith("complex"):
            (value,) = self.call("aten.resolve_conj.default", (value,), (spec,))
            real = TensorSpec(dtype="float32" if spec.dtype == "complex64" else "float64", shape=(*spec.shape, 2))
            (value,), spec = self.call("aten.view_as_real.default", (value,), (real,)), real
        weights = self.placeholder(self.generator.standard_normal(spec.shape).astype(spec.dtype))
        (product,) = self.call("aten.mul.Tensor", (value, weights), (spec,))
        (found,) = self.call("aten.sum.default", (product,), (TensorSpec(dtype=spec.dtype, shape=()),))
        return found


def _spec(array: Array) -> TensorSpec:
    return TensorSpec(dtype=array.dtype.name, shape=array.shape)


def operator_cases(dtype: str = "float32", *, turned: bool = False, seed: int = 0) -> Iterator[Case]:
    """A case for each operator of the allow-list, with floating tensors of ``dtype``."""
    for line in CASES.strip().splitlines():
        turns = turned and line.split()[0] not in _IN_ROWS
        yield _case(line, _Builder(np.random.default_rng(seed), dtype, turns))


def _case(line: str, builder: _Builder) -> Case:
    call, _, results = line.partition(" -> ")
    name, *words = call.split()
    target = name if name.startswith("farflung.") else f"aten.{name}"
    args = [word for word in words if not re.match(r"[a-z_]+=", word)]
    given = [word.split("=", 1) for word in words if word not in args]
    arguments = tuple(builder.argument(word) for word in args)
    kwargs = tuple((key, builder.argument(value)) for key, value in given)
    is_wide = builder.dtype == "float64" and any(
        array.dtype.kind in "fc" for array in (*builder.values.values(), *builder.inputs.values())
    )
    specs = tuple(_result(text, wide=is_wide) for text in results.split())
    rng = 0 if OPSET[target].random and "0.0" not in args else None
    values = builder.call(target, arguments, specs, kwargs=kwargs, rng=rng)
    known = OPSET[target].grad_outputs
    carrying = [
        (value, spec)
        for index, (value, spec) in enumerate(zip(values, specs, strict=True))
        if builder.states and OPSET[target].differentiable and spec.continuous and (known is None or index in known)
    ]
    sums = [builder.weighed(value, spec) for value, spec in carrying]
    loss = sums[0] if sums else None
    scalar = builder.ops[-1].outputs
    for part in sums[1:]:
        (loss,) = builder.call("aten.add.Tensor", (loss, part), scalar)
    outputs = [(f"result{index}", value) for index, value in enumerate(values)]
    graph = Graph(
        name=name,
        ops=tuple(builder.ops),
        states=tuple(builder.states),
        outputs=(*outputs, *([("loss", loss)] if loss is not None else [])),
        mode="train" if loss is not None else "eval",
    )
    return Case(
        operator=target,
        graph=graph,
        states=builder.values,
        inputs=builder.inputs,
        results=tuple(name for name, _ in outputs),
        turned=builder.turned,
    )


def _result(text: str, *, wide: bool) -> TensorSpec:
    kind, _, sizes = text.partition("[")
    name = {"float32": "float64", "complex64": "complex128"}.get(kind, kind) if wide else kind
    return TensorSpec(dtype=name, shape=tuple(int(size) for size in sizes.rstrip("]").split(",") if size))
