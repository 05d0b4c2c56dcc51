"""The rules that every graph meets before anything is computed from it.

``validate`` checks a graph from any source: names, references, order, allow-list, argument types, sizes, initializers. What an
operator does with its arguments is checked later, by the engine under fake tensors, before memory is taken.
"""

from __future__ import annotations

from dataclasses import dataclass

from farflung.errors import GraphError
from farflung.graph.gradient import GRADIENT, read_gradient
from farflung.graph.nodes import (
    DTYPES,
    Arg,
    DTypeArg,
    GraphFields,
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
from farflung.graph.opset import check_initializer, check_target
from farflung.graph.signatures import check_call, signature

__all__ = ["DEFAULT_LIMITS", "Limits", "check_arguments", "validate"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a document may claim at most. ``tensor_bytes``: of one tensor; ``data_bytes``: of all constants together;
    ``meta_bytes``: of all texts of ``meta`` together."""

    document_bytes: int = 256 << 20
    ops: int = 500_000
    states: int = 200_000
    outputs: int = 4096
    arguments: int = 65_536
    rank: int = 16
    tensor_bytes: int = 1 << 42
    data_bytes: int = 64 << 20
    meta_bytes: int = 1 << 20
    init_steps: int = 256
    name_length: int = 512
    text_length: int = 65_536
    depth: int = 8


DEFAULT_LIMITS = Limits()
_MODES = ("train", "eval")
_INT_BOUND = 1 << 63


def validate(graph: GraphFields, limits: Limits = DEFAULT_LIMITS) -> None:
    """Check every rule.

    Raises:
        GraphError: the text names the operator or state, the rule and the value.
    """
    _check_counts(graph, limits)
    _check_name(graph.name, "graph", limits)
    if graph.mode not in _MODES:
        raise GraphError(f"graph {graph.name!r} has mode {graph.mode[:60]!r}: known are {', '.join(_MODES)}")
    _check_states(graph, limits)
    outputs = _check_ops(graph, limits)
    _check_results(graph, outputs, limits)
    if len(dict(graph.meta)) != len(graph.meta):
        raise GraphError(f"graph {graph.name!r}: a key of meta stands twice")
    for key, text in graph.meta:
        _check_name(key, "meta key", limits)
        _check_text(text, f"meta {key!r}", limits)
    if (size := sum(len(text) for _, text in graph.meta)) > limits.meta_bytes:
        raise GraphError(f"graph {graph.name!r} has {size} characters of meta: at most {limits.meta_bytes} are allowed")


def _check_counts(graph: GraphFields, limits: Limits) -> None:
    for what, count, most in (
        ("operators", len(graph.ops), limits.ops),
        ("states", len(graph.states), limits.states),
        ("outputs", len(graph.outputs), limits.outputs),
        ("state updates", len(graph.state_updates), limits.states),
        ("meta entries", len(graph.meta), limits.outputs),
    ):
        if count > most:
            raise GraphError(f"graph has {count} {what}: at most {most} are allowed")
    if not graph.ops:
        raise GraphError("graph has no operators")


def _check_name(name: str, what: str, limits: Limits) -> None:
    if not name or len(name) > limits.name_length or not name.isprintable():
        raise GraphError(f"{what} name {name[:60]!r} must have 1 to {limits.name_length} printable characters")


def _check_text(text: str, where: str, limits: Limits) -> None:
    if len(text) > limits.text_length:
        raise GraphError(f"{where}: a text has {len(text)} characters, at most {limits.text_length} are allowed")
    if any("\ud800" <= letter <= "\udfff" for letter in text):
        raise GraphError(f"{where}: a text has half of a surrogate pair")


def _check_spec(spec: TensorSpec, where: str, limits: Limits) -> None:
    if spec.dtype not in DTYPES:
        raise GraphError(f"{where}: unknown element type {spec.dtype[:60]!r}, known are {', '.join(DTYPES)}")
    if len(spec.shape) > limits.rank:
        raise GraphError(f"{where}: a tensor of {len(spec.shape)} dimensions, at most {limits.rank} are allowed")
    if any(size < 0 or size > limits.tensor_bytes for size in spec.shape):
        raise GraphError(f"{where}: a size in {_shape(spec)} is below 0 or above {limits.tensor_bytes}")
    if spec.nbytes > limits.tensor_bytes:
        raise GraphError(f"{where}: a tensor {_shape(spec)} of {spec.nbytes} bytes, at most {limits.tensor_bytes} are allowed")


def _shape(spec: TensorSpec) -> str:
    return "x".join(str(size) if size.bit_length() < 128 else "(huge)" for size in spec.shape)


def _check_states(graph: GraphFields, limits: Limits) -> None:
    seen: set[str] = set()
    data_bytes = 0
    for state in graph.states:
        where = f"state {state.name[:100]!r}"
        for name in (state.name, *state.aliases):
            _check_name(name, "state", limits)
            if name in seen:
                raise GraphError(f"{where}: the name {name[:100]!r} stands twice")
            seen.add(name)
        _check_spec(state.spec, where, limits)
        if state.spec.complex or (state.trainable and not (state.kind is StateKind.PARAMETER and state.spec.floating)):
            raise GraphError(f"{where}: only floating parameters can be trainable, and no state can hold complex numbers")
        if state.data is not None:
            data_bytes += len(state.data)
            if len(state.data) != state.spec.nbytes:
                raise GraphError(f"{where}: data has {len(state.data)} bytes, its shape says {state.spec.nbytes}")
            if state.init:
                raise GraphError(f"{where}: has both data and an initializer program")
        elif state.kind is StateKind.CONSTANT and not state.init:
            raise GraphError(f"{where}: a constant needs data or an initializer program")
        _check_program(state, where, limits)
    if data_bytes > limits.data_bytes:
        raise GraphError(f"graph has {data_bytes} bytes of data: at most {limits.data_bytes} are allowed")


def _check_program(state: State, where: str, limits: Limits) -> None:
    if len(state.init) > limits.init_steps:
        raise GraphError(f"{where}: {len(state.init)} initializer steps, at most {limits.init_steps} are allowed")
    drawn = 0
    for index, step in enumerate(state.init):
        here = f"{where}, initializer step {index} ({step.target[:60]})"
        known = check_initializer(step.target)
        check_arguments((step.args, step.kwargs), here, limits)
        for ref in _leaves((step.args, tuple(arg for _, arg in step.kwargs))):
            if isinstance(ref, (ValueRef, StateRef)):
                raise GraphError(f"{here}: reads {ref}, but a program sees only its own steps")
            if isinstance(ref, LocalRef) and not 0 <= ref.index < index:
                raise GraphError(f"{here}: reads step {ref.index}, which does not stand before it")
        if known.in_place and not (step.args and isinstance(step.args[0], LocalRef)):
            raise GraphError(f"{here}: the first argument of an in-place operator must be an earlier step")
        check_call(signature(step.target), step.args, step.kwargs, here)
        if not 0 <= step.output < limits.outputs:
            raise GraphError(f"{here}: output {step.output} is below 0 or above {limits.outputs - 1}")
        drawn = _check_draw(step, known.random, drawn, here, limits)


def _check_draw(step: InitStep, random: bool, drawn: int, here: str, limits: Limits) -> int:
    """Check what keys a step's random numbers; returns the least number that the next one may have."""
    if random != (step.rng is not None):
        raise GraphError(f"{here}: exactly the steps that draw random numbers are numbered by rng")
    if step.like is not None:
        _check_name(step.like[0], "state", limits)
        if not random or not 0 <= step.like[1] < limits.init_steps:
            raise GraphError(f"{here}: only a step that draws random numbers can copy those of another state's step")
    if step.rng is None:
        return drawn
    if step.rng < drawn:
        raise GraphError(f"{here}: rng is {step.rng}, but numbers rise along the program and {drawn} is the next")
    return step.rng + 1


def check_arguments(arguments: tuple[tuple[Arg, ...], tuple[tuple[str, Arg], ...]], where: str, limits: Limits) -> None:
    """Check the keywords, the number and the depth of a call's arguments.

    Raises:
        GraphError: the text names the rule.
    """
    args, kwargs = arguments
    if len(dict(kwargs)) != len(kwargs):
        raise GraphError(f"{where}: a keyword stands twice")
    for key, _ in kwargs:
        if not key.isidentifier() or len(key) > 64:
            raise GraphError(f"{where}: {key[:64]!r} is not a keyword")
    leaves = _leaves((args, tuple(arg for _, arg in kwargs)), limits.depth + 2, where)
    if len(leaves) > limits.arguments:
        raise GraphError(f"{where}: {len(leaves)} arguments, at most {limits.arguments} are allowed")
    for leaf in leaves:
        if isinstance(leaf, DTypeArg) and leaf.name not in DTYPES:
            raise GraphError(f"{where}: unknown element type {leaf.name[:60]!r}, known are {', '.join(DTYPES)}")
        if isinstance(leaf, str):
            _check_text(leaf, where, limits)
        if isinstance(leaf, int) and not -_INT_BOUND <= leaf < _INT_BOUND:
            raise GraphError(f"{where}: an integer argument does not fit into 64 bits")


def _leaves(arg: Arg, depth: int = 64, where: str = "") -> list[Arg]:
    """All that is not a tuple, in order; raises when nested deeper than ``depth``."""
    if not isinstance(arg, tuple):
        return [arg]
    if depth == 0:
        raise GraphError(f"{where}: an argument is nested too deeply")
    return [leaf for item in arg for leaf in _leaves(item, depth - 1, where)]


def _check_ops(graph: GraphFields, limits: Limits) -> dict[str, tuple[TensorSpec, ...]]:
    """Check the operators in order; returns their outputs by name."""
    made: dict[str, tuple[TensorSpec, ...]] = {}
    drawn = 0
    for op in graph.ops:
        _check_name(op.name, "operator", limits)
        where = f"operator {op.name[:100]!r} ({op.target[:60]})"
        if ":" in op.name:
            raise GraphError(f"{where}: the name has a colon")
        if op.name in made:
            raise GraphError(f"{where}: the name stands twice")
        check_arguments((op.args, op.kwargs), where, limits)
        _check_reads(graph, op, made, where)
        _check_kind(op, where)
        _check_form(op, where, limits)
        if op.rng is not None:
            # Gaps are allowed: a plain loop also draws for operators whose results nobody reads.
            if op.rng < drawn:
                raise GraphError(f"{where}: rng is {op.rng}, but numbers rise in program order and {drawn} is the next")
            drawn = op.rng + 1
        made[op.name] = op.outputs
    return made


def _check_form(op: Op, where: str, limits: Limits) -> None:
    known = check_target(op.target)
    if op.target == GRADIENT:
        read_gradient(op, where)
    else:
        check_call(signature(op.target), op.args, op.kwargs, where)
    if not op.outputs or len(op.outputs) > limits.outputs:
        raise GraphError(f"{where}: has {len(op.outputs)} outputs, 1 to {limits.outputs} are allowed")
    for spec in op.outputs:
        _check_spec(spec, where, limits)
    for text in (op.module, op.module_type):
        _check_text(text, where, limits)
    if op.occurrence < 0:
        raise GraphError(f"{where}: occurrence {op.occurrence} is below 0")
    if op.rng is not None and not known.random:
        raise GraphError(f"{where}: rng is {op.rng}, but this operator draws no random numbers")


def _check_reads(graph: GraphFields, op: Op, made: dict[str, tuple[TensorSpec, ...]], where: str) -> None:
    for ref in _leaves((op.args, tuple(arg for _, arg in op.kwargs))):
        if isinstance(ref, ValueRef):
            if ref.op not in made:
                raise GraphError(f"{where}: reads {ref.op[:100]!r}, which no earlier operator makes")
            if not 0 <= ref.index < len(made[ref.op]):
                raise GraphError(f"{where}: reads output {ref.index} of {ref.op!r}, which has {len(made[ref.op])}")
        elif isinstance(ref, StateRef):
            if ref.name not in graph.state:
                raise GraphError(f"{where}: reads state {ref.name[:100]!r}, which the graph does not have")
        elif isinstance(ref, LocalRef) and op.target != GRADIENT:
            raise GraphError(f"{where}: reads a step of an initializer program")


def _check_kind(op: Op, where: str) -> None:
    for kind, target in ((OpKind.PLACEHOLDER, "farflung.input"), (OpKind.VARIABLE, "farflung.variable")):
        if (op.kind is kind) != (op.target == target):
            raise GraphError(f"{where}: kind {kind.value} and target {target} belong together")
    if op.kind is OpKind.PLACEHOLDER and (op.args or op.kwargs or len(op.outputs) != 1):
        raise GraphError(f"{where}: a placeholder has no arguments and one output")
    if op.kind is OpKind.VARIABLE and not (len(op.args) == 1 and isinstance(op.args[0], StateRef) and not op.kwargs):
        raise GraphError(f"{where}: a variable has one argument, the state that it is")


def _check_results(graph: GraphFields, made: dict[str, tuple[TensorSpec, ...]], limits: Limits) -> None:
    if len(dict(graph.outputs)) != len(graph.outputs):
        raise GraphError(f"graph {graph.name!r}: an output's name stands twice")
    if len(dict(graph.state_updates)) != len(graph.state_updates):
        raise GraphError(f"graph {graph.name!r}: a state is updated twice")
    for name, value in (*graph.outputs, *graph.state_updates):
        _check_name(name, "output", limits)
        if value.op not in made or not 0 <= value.index < len(made[value.op]):
            raise GraphError(f"output {name[:100]!r} is {str(value)[:100]!r}, which no operator makes")
    _check_updates(graph, made)
    _check_loss(graph, made)


def _check_updates(graph: GraphFields, made: dict[str, tuple[TensorSpec, ...]]) -> None:
    for name, value in graph.state_updates:
        state = graph.state.get(name)
        if state is None or state.trainable:
            raise GraphError(f"update of {name[:100]!r}: the graph has no such state that is not trained")
        if made[value.op][value.index] != state.spec:
            raise GraphError(f"update of {name[:100]!r}: {value} has another shape or element type than the state")


def _check_loss(graph: GraphFields, made: dict[str, tuple[TensorSpec, ...]]) -> None:
    if graph.mode == "train":
        loss = dict(graph.outputs).get("loss")
        if loss is None:
            raise GraphError(f"graph {graph.name!r} is to train but has no output called 'loss'")
        spec = made[loss.op][loss.index]
        if spec.numel != 1 or spec.shape or not spec.floating:
            raise GraphError(
                f"graph {graph.name!r}: the loss {str(loss)!r} must be a floating scalar, not {_shape(spec)} {spec.dtype}"
            )
