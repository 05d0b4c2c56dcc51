"""A stage's operators compiled to a list of calls: functions looked up once, arguments as templates with slots.

Running it costs less than a microsecond per operator on top of the operator itself, and a value is dropped right after its
last reader, so that what stays in memory is what autograd keeps, as in eager PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import torch

from farflung.engines.present import PRESENT, label
from farflung.engines.torch.arrays import TORCH_DTYPES
from farflung.engines.torch.backward.custom import CompiledBackward, run_gradient
from farflung.engines.torch.draws import KeyHolder, drawing
from farflung.engines.torch.guards import PSEUDO_KERNELS, guarded
from farflung.engines.torch.index_ranges import out_of_range
from farflung.errors import DataError, FarflungError, GraphError
from farflung.graph.gradient import GRADIENT, read_gradient
from farflung.graph.ir import Arg, DTypeArg, LocalRef, Op, StateRef, Use, ValueRef
from farflung.graph.opset import OpClass, check_target, info
from farflung.graph.signatures import Signature, read_signature, signature

__all__ = [
    "Call",
    "Program",
    "Read",
    "Source",
    "compile_program",
    "installed_signature",
    "kernel",
    "lookup",
    "operator_label",
    "pseudo",
    "resolve",
    "tensor_arguments",
]

_FORMATS = {
    "contiguous_format": torch.contiguous_format,
    "channels_last": torch.channels_last,
    "channels_last_3d": torch.channels_last_3d,
    "preserve_format": torch.preserve_format,
}


@dataclass(frozen=True, slots=True)
class Read:
    """Where an operator reads a received value: the ``occurrence``-th read of ``value`` by ``op`` (several parts only)."""

    value: ValueRef
    op: str
    occurrence: int


#: What fills a slot before the run: a state's use, a placeholder, a received value or one of its parts.
Source = Use | str | ValueRef | Read


@dataclass(frozen=True, slots=True)
class Call:
    """One operator: ``fills`` are (argument, slot), ``nested`` are (argument or keyword, builder)."""

    function: Callable[..., Any]
    template: list[Any]
    fills: tuple[tuple[int, int], ...]
    nested: tuple[tuple[int | str, Callable[[list[Any]], Any]], ...]
    kwargs: dict[str, Any]
    outputs: tuple[int, ...]
    free: tuple[int, ...]
    op: Op
    label: bytes


@dataclass(kw_only=True)
class Program:
    """Calls over ``size`` slots; ``sources`` says what fills the first slots, ``slots`` where each value kept ends."""

    calls: list[Call] = field(default_factory=list)
    sources: dict[Source, int] = field(default_factory=dict)
    slots: dict[ValueRef, int] = field(default_factory=dict)
    size: int = 0
    key: KeyHolder = field(default_factory=KeyHolder)

    def new_slot(self) -> int:
        """Return a slot that no value has."""
        self.size += 1
        return self.size - 1

    def use_calls(self, calls: Iterable[Call]) -> None:
        """Run ``calls`` from now on."""
        self.calls = list(calls)

    def run(self, registers: list[Any]) -> None:
        """Run all calls; ``registers`` holds the sources and, afterwards, the values that were to be kept.

        Raises:
            GraphError: an operator refuses its arguments (names the operator).
            DataError: a label or an index of the batch is out of range.
        """
        call = None
        present = PRESENT.memory
        try:
            for call in self.calls:
                present[:] = call.label
                arguments = call.template.copy()
                for place, slot in call.fills:
                    arguments[place] = registers[slot]
                if call.nested:
                    keywords = _fill(call, arguments, registers)
                    result = call.function(*arguments, **keywords)
                else:
                    result = call.function(*arguments, **call.kwargs)
                if isinstance(result, torch.Tensor):
                    registers[call.outputs[0]] = result
                else:
                    for slot, item in zip(call.outputs, result, strict=True):
                        registers[slot] = item
                del result, arguments
                for slot in call.free:
                    registers[slot] = None
        except Exception as error:  # operators that PyTorch writes in Python can raise anything
            if call is None or isinstance(error, torch.OutOfMemoryError):
                raise
            raise _failure(call, registers, error) from error


def _failure(call: Call, registers: list[Any], error: Exception) -> FarflungError:
    """Return the error of an operator that has failed: a label or index of the batch that is out of range, or another cause.

    An operator on a part of a vocabulary knows the whole range itself.
    """
    arguments = call.template.copy()
    for place, slot in call.fills:
        arguments[place] = registers[slot]
    operator = f"operator {call.op.name!r} ({call.op.target})"
    if isinstance(error, DataError):
        return DataError(f"{error}; {operator}")
    if outside := out_of_range(call.op.target, arguments):
        return DataError(f"{outside}; {operator}")
    return GraphError(f"{operator} failed: {str(error).splitlines()[0] if str(error) else type(error).__name__}")


def operator_label(op: Op) -> bytes:
    """What ``PRESENT`` holds while ``op`` runs."""
    return label(f"operator {op.name[:100]!r} ({op.target[:100]})")


def _fill(call: Call, arguments: list[Any], registers: list[Any]) -> dict[str, Any]:
    keywords = call.kwargs.copy()
    for place, build in call.nested:
        if isinstance(place, int):
            arguments[place] = build(registers)
        else:
            keywords[place] = build(registers)
    return keywords


def lookup(target: str) -> Any:
    """The function of ``torch.ops.aten`` behind an allowed name ``aten.<name>.<overload>``.

    Raises:
        GraphError: this PyTorch has no such operator.
    """
    _, name, overload = target.split(".")
    try:
        return getattr(getattr(torch.ops.aten, name), overload)
    except AttributeError:
        text = f"operator {target!r} does not exist in PyTorch {torch.__version__}: use the version that captured the graph"
        raise GraphError(text) from None


def resolve(arg: Arg, ref: Callable[[ValueRef | StateRef | LocalRef], Any], *, memory_format: bool = False) -> Any:
    """``arg`` as PyTorch wants it, references replaced by ``ref``.

    Raises:
        GraphError: an element type or memory format that is not in the closed tables.
    """
    if isinstance(arg, tuple):
        return [resolve(item, ref) for item in arg]
    if isinstance(arg, (ValueRef, StateRef, LocalRef)):
        return ref(arg)
    if isinstance(arg, DTypeArg):
        if arg.name not in TORCH_DTYPES:
            raise GraphError(f"element type {arg.name!r} is not known; known are {', '.join(TORCH_DTYPES)}")
        return TORCH_DTYPES[arg.name]
    if memory_format and isinstance(arg, str):
        if arg not in _FORMATS:
            raise GraphError(f"memory format {arg!r} is not known; known are {', '.join(_FORMATS)}")
        return _FORMATS[arg]
    return arg


@cache
def installed_signature(target: str) -> Signature:
    """The arguments of an allowed operator as this PyTorch declares them.

    Raises:
        GraphError: this PyTorch has no such operator.
    """
    schema = str(lookup(target)._schema)
    return read_signature(schema[schema.index("(") + 1 : schema.rindex(") ->")], numbers=signature(target).numbers)


def with_device(function: Any, args: list[Any], kwargs: dict[str, Any], device: torch.device) -> None:
    """Put the engine's device where the operator takes one."""
    for place, argument in enumerate(function._schema.arguments):
        if argument.name == "device":
            if place < len(args):
                args[place] = device
            else:
                kwargs["device"] = device


class _Compiler:
    def __init__(self, device: torch.device, parts: frozenset[ValueRef], recorded: frozenset[str]) -> None:
        self.program = Program()
        self.recorded = recorded
        self.device = device
        self.parts = parts

    def slot(self) -> int:
        self.program.size += 1
        return self.program.size - 1

    def source(self, source: Source) -> int:
        if source not in self.program.sources:
            self.program.sources[source] = self.slot()
        return self.program.sources[source]

    def read(self, op: Op, ref: ValueRef | StateRef | LocalRef, seen: dict[ValueRef, int]) -> int:
        if isinstance(ref, LocalRef):
            raise GraphError(f"operator {op.name!r} holds a reference that only initializer programs may hold")
        if isinstance(ref, StateRef):
            return self.source(Use(ref.name, op.name))
        if ref in self.program.slots:
            return self.program.slots[ref]
        if ref in self.parts:
            seen[ref] = seen.get(ref, -1) + 1
            return self.source(Read(ref, op.name, seen[ref]))
        return self.source(ref)

    def add(self, op: Op) -> None:
        """Append the call of ``op``."""
        check_target(op.target)
        if op.target == "farflung.input":
            self.program.slots[ValueRef(op.name)] = self.source(op.name)
            return
        seen: dict[ValueRef, int] = {}
        read: Callable[[ValueRef | StateRef | LocalRef], Any] = lambda ref: _Slot(self.read(op, ref, seen))  # noqa: E731
        args = [resolve(arg, read) for arg in tensor_arguments(op)]
        kwargs = {name: resolve(arg, read, memory_format=name == "memory_format") for name, arg in op.kwargs}
        function = _function(op, args, kwargs, self.device, self.program.key)
        if op.name in self.recorded and info(op.target).op_class is OpClass.RECURRENT:
            function = as_recorded(function)
        fills = tuple((place, arg.index) for place, arg in enumerate(args) if isinstance(arg, _Slot))
        nested: list[tuple[int | str, Callable[[list[Any]], Any]]] = []
        everything: list[tuple[int | str, Any]] = [*enumerate(args), *kwargs.items()]
        for place, arg in everything:
            if (_holds(arg) and isinstance(arg, list)) or (isinstance(place, str) and isinstance(arg, _Slot)):
                nested.append((place, _builder(arg)))
        outputs = tuple(self.slot() for _ in op.outputs)
        for index, slot in enumerate(outputs):
            self.program.slots[ValueRef(op.name, index)] = slot
        template = [None if isinstance(arg, _Slot) else arg for arg in args]
        self.program.calls.append(Call(function, template, fills, tuple(nested), kwargs, outputs, (), op, operator_label(op)))

    def free(self, keep: Iterable[ValueRef]) -> None:
        """Let each call drop what nobody reads later."""
        kept = {self.program.slots[value] for value in keep if value in self.program.slots}
        done: set[int] = set(kept)
        for number in range(len(self.program.calls) - 1, -1, -1):
            call = self.program.calls[number]
            touched = {*_slots_of(call), *call.outputs}
            last = tuple(sorted(touched - done))
            done |= touched
            self.program.calls[number] = Call(
                call.function, call.template, call.fills, call.nested, call.kwargs, call.outputs, last, call.op, call.label
            )


@dataclass(frozen=True, slots=True)
class _Slot:
    index: int


def _holds(arg: Any) -> bool:
    return isinstance(arg, _Slot) or (isinstance(arg, list) and any(_holds(item) for item in arg))


def _flat(arg: Any) -> list[int]:
    if isinstance(arg, _Slot):
        return [arg.index]
    return [index for item in arg for index in _flat(item)] if isinstance(arg, list) else []


class _Builder:
    """Builds a nested argument (a list of tensors) from the registers."""

    def __init__(self, arg: Any) -> None:
        self.arg = arg
        self.slots = _flat(arg)

    def __call__(self, registers: list[Any]) -> Any:
        return _build(self.arg, registers)


def _build(arg: Any, registers: list[Any]) -> Any:
    if isinstance(arg, _Slot):
        return registers[arg.index]
    return [_build(item, registers) for item in arg] if isinstance(arg, list) else arg


def _builder(arg: Any) -> _Builder:
    return _Builder(arg)


def _slots_of(call: Call) -> set[int]:
    nested = [slot for _, build in call.nested if isinstance(build, _Builder) for slot in build.slots]
    return {*(slot for _, slot in call.fills), *nested}


def _function(op: Op, args: list[Any], kwargs: dict[str, Any], device: torch.device, key: KeyHolder) -> Callable[..., Any]:
    """The function to call for ``op``, wrapped where it draws or must not be recorded."""
    function = pseudo(op, device)
    if function is None:
        function = kernel(op.target, args, kwargs, device)
        if op.rng is not None:
            function = drawing(op, function, device, key)
    return torch.no_grad()(function) if op.no_grad else function


def tensor_arguments(op: Op) -> tuple[Arg, ...]:
    """The arguments that a call of ``op`` takes: of ``farflung.gradient`` all but the backward, which is compiled."""
    return op.args[:3] if op.target == GRADIENT else op.args


def kernel(target: str, args: list[Any], kwargs: dict[str, Any], device: torch.device) -> Callable[..., Any]:
    """The function of an operator of PyTorch behind its checks; ``device`` is put among the arguments.

    Raises:
        GraphError: this PyTorch has no such operator.
    """
    function = lookup(target)
    with_device(function, args, kwargs, device)
    return guarded(target, function)


def pseudo(op: Op, device: torch.device) -> Callable[..., Any] | None:
    """The function of an operator of our own (``None``: ``op`` is one of PyTorch's).

    Raises:
        GraphError: ``farflung.gradient`` carries a backward that breaks a rule.
    """
    return _gradient(op, device) if op.target == GRADIENT else PSEUDO.get(op.target)


def _gradient(op: Op, device: torch.device) -> Callable[..., Any]:
    parts = read_gradient(op)
    calls = []
    for step in parts.steps:
        args = [resolve(arg, _keep) for arg in step.args]
        kwargs = {name: resolve(arg, _keep, memory_format=name == "memory_format") for name, arg in step.kwargs}
        calls.append((step.target, kernel(step.target, args, kwargs, device), args, kwargs))
    return partial(
        run_gradient, CompiledBackward(op.name, parts.results, calls, [TORCH_DTYPES[spec.dtype] for spec in op.outputs])
    )


def _keep(ref: ValueRef | StateRef | LocalRef) -> Any:
    return ref


def as_recorded(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` by the kernel that autograd records, also where nothing is recorded.

    Recurrent networks have a second kernel for inference, whose results differ in the last bits. A stage that computes its
    forward again would send on the results of the one and go back through the other.
    """

    def call(x: torch.Tensor, *rest: Any) -> Any:
        if torch.is_grad_enabled() or x.device.type == "meta":
            return function(x, *rest)
        with torch.enable_grad():
            return tuple(item.detach() for item in function(x.detach().requires_grad_(), *rest))

    return call


def _batch_norm(
    x: torch.Tensor, weight: Any, bias: Any, mean: torch.Tensor, var: torch.Tensor, *rates: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Batch-norm of training: normalizes with the batch's statistics; returns the new running ones beside the result."""
    momentum, eps = rates
    mean, var = mean.clone(), var.clone()
    cudnn = torch.backends.cudnn.enabled
    return torch.ops.aten.batch_norm.default(x, weight, bias, mean, var, True, momentum, eps, cudnn), mean, var


def _variable(value: torch.Tensor) -> torch.Tensor:
    return value


PSEUDO: dict[str, Callable[..., Any]] = {
    "farflung.batch_norm": _batch_norm,
    "farflung.variable": _variable,
    **PSEUDO_KERNELS,
}


def compile_program(
    ops: Sequence[Op],
    device: torch.device,
    keep: Iterable[ValueRef],
    parts: frozenset[ValueRef] = frozenset(),
    recorded: frozenset[str] = frozenset(),
) -> Program:
    """Compile ``ops`` (in order) for ``device``; ``keep``: values still wanted afterwards; ``parts``: received values whose
    readers each get a leaf of their own; ``recorded``: names of operators that a plain loop records for its backward.

    Raises:
        GraphError: an operator is not allowed or does not exist in this PyTorch.
    """
    compiler = _Compiler(device, parts, recorded)
    for op in ops:
        compiler.add(op)
    compiler.free(keep)
    return compiler.program
