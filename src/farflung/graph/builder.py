"""Graphs made by hand, operator by operator (FusionLLM Figure 7).

A builder gives the same kind of graph as capture: layers by their PyTorch names become ATen operators with the same
arguments, states with PyTorch's default initializers, and module paths. No tensor library is needed::

    graph = GraphBuilder("two_layer_net")
    x = graph.input("x", "float32", (8, 3, 32, 32))
    label = graph.label("label", "int64", (8,))
    conv1 = graph.add("conv1", "Conv2d", x, in_channels=3, out_channels=64, kernel_size=3, padding=1)
    myrelu = graph.add("myrelu", "CustomReLU", conv1)  # registered by register_module
    ...
    graph.add("loss", "CrossEntropyLoss", output, label)
    graph.build()
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from farflung.errors import GraphError, InputError
from farflung.graph.ir import Arg, Graph, InitStep, Op, OpKind, State, StateKind, StateRef, TensorSpec, ValueRef
from farflung.graph.layers import LAYERS, LayerBuilder
from farflung.graph.opset import OpClass, check_target, info
from farflung.graph.shapes import infer
from farflung.graph.validate import validate
from farflung.known_names import known_names

__all__ = ["GraphBuilder", "Reference", "normalize", "register_module"]

Reference = ValueRef | str

_REGISTERED: dict[str, LayerBuilder] = {}


def register_module(name: str, fn: LayerBuilder | None = None) -> Any:
    """Make ``fn`` known as the layer type ``name`` in this process (also as a decorator).

    Raises:
        InputError: the name is taken.
    """
    if fn is None:
        return lambda function: register_module(name, function)
    if name in LAYERS or name in _REGISTERED:
        raise InputError(f"module type {name!r} is registered already: take another name")
    _REGISTERED[name] = fn
    return fn


class GraphBuilder:
    """Collects operators, then ``build``s a validated graph. ``training`` chooses the behaviour of dropout and batch-norm."""

    def __init__(self, name: str, *, training: bool = True) -> None:
        self.name = name
        self.training = training
        self._ops: list[Op] = []
        self._states: dict[str, State] = {}
        self._values: dict[str, ValueRef] = {}
        self._specs: dict[ValueRef, TensorSpec] = {}
        self._outputs: dict[str, ValueRef] = {}
        self._updates: dict[str, ValueRef] = {}
        self._module: tuple[str, str] = ("", "")
        self._draws = 0

    def input(self, name: str, dtype: str, shape: Sequence[int]) -> ValueRef:
        """A placeholder: loaded by each stage that reads it."""
        return self._placeholder(name, dtype, shape)

    def label(self, name: str, dtype: str, shape: Sequence[int]) -> ValueRef:
        """A placeholder for what the loss compares with (the same as an input)."""
        return self._placeholder(name, dtype, shape)

    def _placeholder(self, name: str, dtype: str, shape: Sequence[int]) -> ValueRef:
        spec = TensorSpec(dtype=dtype, shape=tuple(shape))
        full = self._free(name)
        self._append(Op(name=full, kind=OpKind.PLACEHOLDER, target="farflung.input", outputs=(spec,)))
        return self._named(full, ValueRef(full))

    def variable(self, name: str, shape: Sequence[int], init: Sequence[InitStep], *, trainable: bool = True) -> ValueRef:
        """A tensor that is trained and read as a value (Table 2's "Tensor A"); ``init`` as made by ``layers``."""
        full = self._free(name)
        with self._within(name, "Variable"):
            state = self.state("value", "float32", shape, init=init, trainable=trainable)
        outputs = (self._states[state.name].spec,)
        self._append(Op(name=full, kind=OpKind.VARIABLE, target="farflung.variable", args=(state,), outputs=outputs))
        return self._named(full, ValueRef(full))

    def add(self, name: str, type: str, *references: Reference, **arguments: Any) -> ValueRef:  # noqa: A002
        """A layer of a known type, reading ``references`` (values or names of what was added before).

        Raises:
            GraphError: unknown type or reference, or arguments that don't fit.
        """
        layers = {**LAYERS, **_REGISTERED}
        if type not in layers:
            raise GraphError(f"layer {name!r}: unknown type {type!r}: {known_names(type, sorted(layers))}")
        full = self._free(name)
        values = [self.value(reference) for reference in references]
        with self._within(name, type):
            try:
                result = layers[type](self, *values, **arguments)
            except (TypeError, GraphError) as error:  # TypeError: arguments that the layer does not have
                raise GraphError(f"layer {full!r} ({type}): {error}") from None
        return self._named(full, result)

    def value(self, reference: Reference) -> ValueRef:
        """The value that a name or value means.

        Raises:
            GraphError: nothing was added under that name.
        """
        if isinstance(reference, ValueRef):
            if reference in self._specs:
                return reference
        else:
            for name in (self._full(reference), reference):
                if name in self._values:
                    return self._values[name]
        known = ", ".join(self._values) or "nothing"
        raise GraphError(f"{str(reference)!r} was not added to graph {self.name!r}: it has {known}")

    def spec(self, value: ValueRef) -> TensorSpec:
        """Shape and element type of a value."""
        return self._specs[self.value(value)]

    def call(self, target: str, *args: Arg, outputs: Sequence[TensorSpec] | None = None, **kwargs: Arg) -> ValueRef:
        """One ATen operator: ``call("add.Tensor", a, b)``. Its first result is returned, the others are ``ValueRef(op, i)``.

        ``outputs`` says what it gives where no shape rule is known.

        Raises:
            GraphError: not on the allow-list, or the arguments don't fit.
        """
        full = target if target.startswith(("aten.", "farflung.")) else f"aten.{target}"
        known = check_target(full)
        named = {key: self._resolve(arg) for key, arg in kwargs.items()}
        specs = infer(full, self._resolve(args), named) if outputs is None else tuple(outputs)
        path, kind = self._module
        name = self._unused(path or full.split(".")[1])
        draws = known.random and self._draws_now(full, args)
        op = Op(
            name=name,
            kind=OpKind.NON_PARAMETRIC,
            target=full,
            args=args,
            kwargs=tuple(sorted(kwargs.items())),
            outputs=specs,
            module=path,
            module_type=kind,
            rng=self._draws if draws else None,
        )
        self._draws += draws
        self._append(replace(op, kind=self._kind(op)))
        return ValueRef(name)

    def state(
        self,
        name: str,
        dtype: str,
        shape: Sequence[int],
        *,
        init: Sequence[InitStep],
        trainable: bool = True,
        kind: StateKind = StateKind.PARAMETER,
    ) -> StateRef:
        """A parameter or buffer of the layer that is being added; ``name`` is its last part."""
        full = self._full(name)
        if full in self._states:
            raise GraphError(f"state {full!r} stands twice")
        spec = TensorSpec(dtype=dtype, shape=tuple(shape))
        self._states[full] = State(name=full, kind=kind, spec=spec, trainable=trainable, init=tuple(init))
        return StateRef(full)

    def update(self, state: StateRef, value: ValueRef) -> None:
        """After each micro-batch's forward, a buffer takes ``value``."""
        self._updates[state.name] = self.value(value)

    def output(self, name: str, reference: Reference) -> None:
        """Keep a value as a result of the graph; ``loss`` is taken from the loss layer if it is not named."""
        self._outputs[name] = self.value(reference)

    def build(self) -> Graph:
        """The graph.

        Raises:
            GraphError: it breaks a rule (``graph.validate``), or there is not exactly one loss to train.
        """
        outputs = dict(self._outputs)
        if self.training and "loss" not in outputs:
            losses = [op.name for op in self._ops if op.kind is OpKind.LOSS]
            if len(losses) != 1:
                raise GraphError(f"graph {self.name!r} has {len(losses)} losses: name one by output('loss', ...)")
            outputs["loss"] = ValueRef(losses[0])
        inputs = ",".join(op.name for op in self._ops if op.kind is OpKind.PLACEHOLDER)
        graph = normalize(
            Graph(
                name=self.name,
                mode="train" if self.training else "eval",
                ops=tuple(self._ops),
                states=tuple(self._states.values()),
                outputs=tuple(outputs.items()),
                state_updates=tuple(self._updates.items()),
                meta=(("inputs", inputs),),
            )
        )
        validate(graph)
        return graph

    def _kind(self, op: Op) -> OpKind:
        if info(op.target).op_class is OpClass.LOSS:
            return OpKind.LOSS
        reads = any(self._states[name].kind is StateKind.PARAMETER for name in op.states())
        return OpKind.PARAMETRIC if reads else OpKind.NON_PARAMETRIC

    def _draws_now(self, target: str, args: tuple[Arg, ...]) -> bool:
        """Whether this call takes random numbers: dropout only in training with p > 0."""
        if "dropout" in target:
            return bool(args[1]) and args[2] is True
        return "attention" not in target or bool(len(args) > 4 and args[4])

    def _resolve(self, arg: Any) -> Any:
        if isinstance(arg, tuple):
            return tuple(self._resolve(item) for item in arg)
        if isinstance(arg, StateRef):
            return self._states[arg.name].spec
        return self.spec(arg) if isinstance(arg, ValueRef) else arg

    def _append(self, op: Op) -> None:
        self._ops.append(op)
        self._specs.update((ValueRef(op.name, index), spec) for index, spec in enumerate(op.outputs))

    def _named(self, name: str, value: ValueRef) -> ValueRef:
        self._values[name] = value
        return value

    def _full(self, name: str) -> str:
        path = self._module[0]
        return f"{path}.{name}" if path else name

    def _free(self, name: str) -> str:
        full = self._full(name)
        if ValueRef(full) in self._specs or full in self._values:
            raise GraphError(f"layer {full!r}: the name stands twice")
        return full

    def _unused(self, base: str) -> str:
        """``base``, ``base_1`` ... : the first that no operator has."""
        name, number = base, 0
        while ValueRef(name) in self._specs:
            number += 1
            name = f"{base}_{number}"
        return name

    @contextmanager
    def _within(self, name: str, kind: str) -> Iterator[None]:
        outer = self._module
        self._module = (self._full(name), kind)
        try:
            yield
        finally:
            self._module = outer


def normalize(graph: Graph) -> Graph:
    """The same graph with each placeholder directly before its first reader (unread ones stay in front)."""
    first: dict[str, int] = {}
    for index, op in enumerate(graph.ops):
        for value in op.values():
            first.setdefault(value.op, index)
    before: dict[int, list[Op]] = {}
    for op in graph.placeholders:
        before.setdefault(first.get(op.name, 0), []).append(op)
    ordered: list[Op] = []
    for index, op in enumerate(graph.ops):
        ordered.extend(before.get(index, ()))
        if op.kind is not OpKind.PLACEHOLDER:
            ordered.append(op)
    return graph if tuple(ordered) == graph.ops else replace(graph, ops=tuple(ordered))
