"""Runs the update programs of a rule book: an optimizer that arrived as data.

Each program is compiled once per shape. Before the first run it is replayed on the meta device, which has no memory: this checks
the states that it makes, and bounds the memory of its temporaries. A program changes the parameter and its states in place, as
the optimizer's own code does, so the bits are those of that code.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from farflung.engines.base import Array
from farflung.engines.present import PRESENT, label
from farflung.engines.torch.arrays import TORCH_DTYPES, from_array, spec_of, to_array
from farflung.engines.torch.program import installed_signature, kernel, resolve
from farflung.errors import CheckpointError, GraphError, InputError
from farflung.graph.ir import InitStep, LocalRef, StateRef, TensorSpec, ValueRef, iter_refs
from farflung.job.groups import group_of
from farflung.job.spec import OptimizerSpec
from farflung.optim import Rule, RuleBook, UpdateProgram
from farflung.optim.document import check_types
from farflung.optim.numbers import ITEM, PREFIX, apply

__all__ = ["RuleOptimizer"]

_META, _CPU = torch.device("meta"), torch.device("cpu")
#: Bytes that the values of a program may take at a time: a multiple of the parameter's, and in any case.
_GROWTH, _SMALL = 12, 1 << 20

_NUMBERS = {"int": np.int64, "float": np.float64}

#: The values of a parameter's states, in the order of its rule (None: no step yet).
ParameterStates = list[Any] | None


@dataclass(frozen=True, slots=True)
class _Call:
    """One call: ``fills`` are (argument, place). ``nested``: some arguments are built for each run."""

    function: Callable[..., Any]
    template: list[Any]
    fills: tuple[tuple[int, int], ...]
    nested: bool
    kwargs: dict[str, Any]
    output: int | None
    free: tuple[int, ...]
    label: bytes


class _Compiled:
    """A program for one shape and device; ``numbers``: the input places that hold Python numbers."""

    def __init__(self, program: UpdateProgram, inputs: int, numbers: Collection[int], device: torch.device, where: str) -> None:
        self.program, self.where = program, where
        steps = enumerate(program.steps, inputs)
        self._numbers = {*numbers, *(place for place, step in steps if step.target.startswith(PREFIX))}
        last = _last_uses(program, inputs)
        self._guards = dict(program.guards)
        self._calls = [self._compile(step, device, last.get(n, ())) for n, step in enumerate(program.steps)]
        #: Steps whose result has one element, so that guards may depend on it.
        self._single: set[int] = set()

    def _compile(self, step: InitStep, device: torch.device, free: tuple[int, ...]) -> _Call:
        args = [resolve(arg, _place) for arg in step.args]
        kwargs = {name: resolve(arg, _place, memory_format=name == "memory_format") for name, arg in step.kwargs}
        is_number = step.target.startswith(PREFIX)
        function: Callable[..., Any]
        if is_number:
            name = step.target.removeprefix(PREFIX)
            function = torch.Tensor.item if step.target == ITEM else partial(apply, name)
        else:
            check_types(step, installed_signature(step.target), self._numbers, f"{self.where} at {step.target}")
            # Step counts stay on the host: the numbers that are made of them would wait for the device.
            on_host = step.target == "aten.scalar_tensor.default" and device != _META
            function = kernel(step.target, args, kwargs, _CPU if on_host else device)
        fills = tuple((at, arg.index) for at, arg in enumerate(args) if isinstance(arg, _Place))
        nested = any(_holds(arg) for arg in (*(arg for arg in args if not isinstance(arg, _Place)), *kwargs.values()))
        shown = label(f"{self.where[:60]} at {step.target[:100]}")
        return _Call(function, args, fills, nested, kwargs, None if is_number else step.output, free, shown)

    def run(self, inputs: Sequence[Any]) -> list[Any]:
        """Run on the values of the input places; return the states' new values.

        Raises:
            GraphError: an operator refuses its arguments.
        """
        places = [*inputs]
        for call in self._calls:
            self._step(call, places)
            for done in call.free:
                places[done] = None
        return self.results(places)

    def results(self, places: Sequence[Any]) -> list[Any]:
        """The states' new values among the values of all places."""
        return [places[item.index] if isinstance(item, LocalRef) else item for item in self.program.results]

    def _step(self, call: _Call, places: list[Any]) -> None:
        PRESENT.memory[:] = call.label
        args, kwargs = call.template, call.kwargs
        if call.nested:
            args = [_build(arg, places) for arg in args]
            kwargs = {name: _build(arg, places) for name, arg in kwargs.items()}
        elif call.fills:
            args = args.copy()
            for at, place in call.fills:
                args[at] = places[place]
        try:
            result = call.function(*args, **kwargs)
        except (GraphError, torch.OutOfMemoryError):
            raise
        except Exception as error:  # operators that PyTorch writes in Python can raise anything
            first = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise GraphError(f"{self.where}: an operator failed: {first}") from error
        if call.output is not None and not isinstance(result, torch.Tensor):
            result = result[call.output]
        places.append(result)

    def holds(self, inputs: Sequence[Any]) -> bool:
        """Whether the guards hold, by the calls that depend on numbers and one-element states only (on copies of these).

        Raises:
            GraphError: a guard depends on a tensor of several elements.
        """
        if not self.program.guards:
            return True
        places: list[Any] = [None, None]  # guards depend neither on the parameter nor on its gradient
        for item in inputs[2:]:
            is_tensor = isinstance(item, torch.Tensor)
            places.append(item if not is_tensor else item.clone() if item.numel() == 1 else None)
        for number, (call, step) in enumerate(zip(self._calls, self.program.steps, strict=True)):
            known = all(places[place] is not None for place in _reads(step))
            if known and (number in self._single or step.target.startswith(PREFIX)):
                self._step(call, places)
            else:
                places.append(None)
            expected = self._guards.get(len(places) - 1)
            if expected is None:
                continue
            if places[-1] is None:
                raise GraphError(f"{self.where}: a guard depends on the values of a tensor")
            if bool(places[-1]) is not expected:
                return False  # what follows may have no result here: the root of a negative number
        return True

    def check(self, rule: Rule, inputs: Sequence[Any]) -> frozenset[int]:
        """Replay on the meta device; return the steps whose result has one element.

        Raises:
            GraphError: a state is not as declared, or the values take too much memory.
        """
        places = [*inputs]
        own = set(_storages(inputs))
        most = max(_GROWTH * inputs[0].nbytes, _SMALL)
        for number, (call, step) in enumerate(zip(self._calls, self.program.steps, strict=True)):
            if step.target.startswith(PREFIX):
                places.append(1.0)
            else:
                self._step(call, places)
                if places[-1].numel() == 1:
                    self._single.add(number)
            for done in call.free:
                places[done] = None
            taken = sum(size for storage, size in _storages(places).items() if storage not in own)
            if taken > most:
                raise GraphError(f"{self.where}: its values take {taken} bytes, at most {most} are allowed for such a parameter")
        _check_results(rule, self.results(places), tuple(inputs[0].shape), self.where)
        return frozenset(self._single)

    def allow_guards(self, single: Collection[int]) -> None:
        """Set the steps whose result has one element."""
        self._single = set(single)


def _check_results(rule: Rule, found: Sequence[Any], shape: tuple[int, ...], where: str) -> None:
    for slot, value in zip(rule.states, found, strict=True):
        if slot.number:
            continue
        spec = spec_of(value)
        declared = TensorSpec(dtype=slot.kind, shape=shape if slot.shape is None else slot.shape)
        if spec != declared:
            raise GraphError(
                f"{where}: state {slot.name!r} is declared {declared.dtype}{list(declared.shape)}, but its program gives "
                f"{spec.dtype}{list(spec.shape)}"
            )


def _storages(items: Sequence[Any]) -> dict[int, int]:
    """The storages of tensors, with their bytes."""
    held = [item.untyped_storage() for item in items if isinstance(item, torch.Tensor)]
    return {storage._cdata: storage.nbytes() for storage in held}


@dataclass(frozen=True, slots=True)
class _Place:
    index: int


def _place(ref: ValueRef | StateRef | LocalRef) -> _Place:
    assert isinstance(ref, LocalRef)  # checked when the document was read
    return _Place(ref.index)


def _holds(arg: Any) -> bool:
    return isinstance(arg, _Place) or (isinstance(arg, list) and any(_holds(item) for item in arg))


def _build(arg: Any, places: Sequence[Any]) -> Any:
    if isinstance(arg, _Place):
        return places[arg.index]
    return [_build(item, places) for item in arg] if isinstance(arg, list) else arg


def _reads(step: InitStep) -> list[int]:
    return [ref.index for ref in iter_refs((step.args, tuple(arg for _, arg in step.kwargs))) if isinstance(ref, LocalRef)]


def _last_uses(program: UpdateProgram, inputs: int) -> dict[int, tuple[int, ...]]:
    """Step -> the places that nobody reads after it."""
    last: dict[int, int] = {}
    for number, step in enumerate(program.steps):
        last[inputs + number] = number
        last |= {place: number for place in _reads(step) if place >= inputs}
    for result in program.results:
        if isinstance(result, LocalRef):
            last.pop(result.index, None)
    found: dict[int, list[int]] = {}
    for place, number in last.items():
        found.setdefault(number, []).append(place)
    return {number: tuple(places) for number, places in found.items()}


class _CompiledRule:
    """The programs of a rule for parameters of one shape, element type and device."""

    def __init__(self, book: RuleBook, rule: Rule, sample: torch.Tensor, where: str) -> None:
        self.rule, self._where = rule, where
        shape, inputs = tuple(sample.shape), 2 + len(book.settings)
        meta = [torch.empty(shape, dtype=sample.dtype, device="meta") for _ in range(2)]
        states: list[Any] = []
        for slot in rule.states:
            size = shape if slot.shape is None else slot.shape
            states.append(1.0 if slot.number else torch.empty(size, dtype=TORCH_DTYPES[slot.kind], device="meta"))
        self._programs: tuple[list[_Compiled], list[_Compiled]] = ([], [])
        for program, later in rule.programs():
            given: list[Any] = [*meta, *(1.0 for _ in book.settings), *(states if later else [])]
            numbers = {place for place, item in enumerate(given) if isinstance(item, float)}
            count = inputs + (len(states) if later else 0)
            single = _Compiled(program, count, numbers, _META, where).check(rule, given)
            compiled = _Compiled(program, count, numbers, sample.device, where)
            compiled.allow_guards(single)
            self._programs[later].append(compiled)

    def run(
        self, parameter: torch.Tensor, gradient: torch.Tensor, settings: Sequence[float], states: ParameterStates
    ) -> list[Any]:
        """Update ``parameter`` in place; return its states.

        Raises:
            GraphError: no program applies.
        """
        inputs = [parameter, gradient, *settings, *(states or ())]
        for program in self._programs[states is not None]:
            if program.holds(inputs):
                return _own(program.run(inputs), inputs[:2], states or ())
        raise GraphError(
            f"{self._where}: the optimizer's code takes a way that was not captured (settings {', '.join(map(repr, settings))}); "
            "submit the job again with a smaller number of steps"
        )


def _own(results: Sequence[Any], given: Sequence[torch.Tensor], states: Sequence[Any]) -> list[Any]:
    """States in memory of their own: ``given`` are the parameter, which changes, and the gradient, which is dropped."""
    kept, taken = {id(item) for item in states}, set(_storages(given))
    found = []
    for item in results:
        value = item
        if isinstance(value, torch.Tensor):
            storage = value.untyped_storage()
            is_part = storage.nbytes() != value.nbytes and id(value) not in kept
            value = value.clone() if is_part or storage._cdata in taken else value
            taken.add(value.untyped_storage()._cdata)
        found.append(value)
    return found


class RuleOptimizer:
    """Steps the parameters of one stage by the rules that a job carries."""

    def __init__(self, spec: OptimizerSpec, book: RuleBook, parameters: Mapping[str, torch.Tensor]) -> None:
        self._parameters, self._narrow = dict(parameters), spec.state == "bf16"
        self._groups, self._settings = len(spec.groups) + 1, len(book.settings)
        self._group = {name: group_of(spec, name) for name in parameters}
        self._rules: dict[str, _CompiledRule] = {}
        self._states: dict[str, list[Any]] = {}
        compiled: dict[tuple[int, torch.Size, torch.dtype], _CompiledRule] = {}
        for name, parameter in self._parameters.items():
            dtype, shape = spec_of(parameter).dtype, tuple(parameter.shape)
            rule = book.find(self._group[name], dtype, shape)
            if rule is None:
                raise GraphError(
                    f"the optimizer's rules have none for parameter {name!r} ({dtype}{list(shape)}): submit the job again"
                )
            key = id(rule), parameter.shape, parameter.dtype
            if key not in compiled:
                compiled[key] = _CompiledRule(book, rule, parameter.detach(), f"the update of {name!r:.80}")
            self._rules[name] = compiled[key]

    def step(self, rates: Sequence[float]) -> None:
        """One step; ``rates`` has the learning rates of all groups, then their other settings.

        Raises:
            InputError: not as many rates as groups and settings.
            GraphError: an operator fails, or no program applies.
        """
        if len(rates) != self._groups * self._settings:
            raise InputError(f"{len(rates)} values for {self._settings} settings of {self._groups} groups")
        with torch.no_grad():
            for name, parameter in self._parameters.items():
                if parameter.grad is not None:
                    settings = rates[self._group[name] :: self._groups]
                    states = self._rules[name].run(parameter.detach(), parameter.grad, settings, self._wide(name))
                    self._states[name] = self._stored(name, states)

    def _wide(self, name: str) -> ParameterStates:
        states = self._states.get(name)
        if states is None or not self._narrow:
            return states
        slots, shape = self._rules[name].rule.states, tuple(self._parameters[name].shape)
        return [item.float() if slot.narrows(shape) else item for slot, item in zip(slots, states, strict=True)]

    def _stored(self, name: str, states: list[Any]) -> list[Any]:
        if not self._narrow:
            return states
        slots, shape = self._rules[name].rule.states, tuple(self._parameters[name].shape)
        return [item.bfloat16() if slot.narrows(shape) else item for slot, item in zip(slots, states, strict=True)]

    def export(self, *, copy: bool = True) -> dict[str, Array]:
        """``<slot>/<parameter>`` -> value."""
        found: dict[str, Array] = {}
        for name, states in self._states.items():
            for slot, item in zip(self._rules[name].rule.states, states, strict=True):
                array = (
                    to_array(item, copy=copy) if isinstance(item, torch.Tensor) else np.asarray(item, dtype=_NUMBERS[slot.kind])
                )
                found[f"{slot.name}/{name}"] = array
        return found

    def load(self, states: Mapping[str, Array]) -> None:
        """Set what ``export`` gave (parameters without an entry start afresh).

        Raises:
            CheckpointError: an entry is of another parameter or optimizer, or is missing.
        """
        given: dict[str, dict[str, Array]] = {}
        for key, array in states.items():
            slot, _, name = key.partition("/")
            if name not in self._parameters:
                raise CheckpointError(f"optimizer state {key!r} belongs to no trained parameter of this stage")
            given.setdefault(name, {})[slot] = array
        self._states = {name: self._read(name, arrays) for name, arrays in given.items()}

    def _read(self, name: str, arrays: Mapping[str, Array]) -> list[Any]:
        parameter, slots = self._parameters[name], self._rules[name].rule.states
        if arrays.keys() != {slot.name for slot in slots}:
            wrong = min(arrays.keys() ^ {slot.name for slot in slots})
            raise CheckpointError(f"optimizer state {wrong!r} of parameter {name!r} is missing, or of another optimizer")
        found: list[Any] = []
        for slot in slots:
            array, shape = arrays[slot.name], tuple(parameter.shape)
            wanted = () if slot.number else shape if slot.shape is None else slot.shape
            if array.shape != wanted:
                raise CheckpointError(f"optimizer state '{slot.name}/{name}' has shape {array.shape}, its rule {wanted}")
            if slot.number:
                found.append(array.item())
                continue
            value = from_array(array, _CPU if array.ndim == 0 else parameter.device)
            kept = torch.bfloat16 if self._narrow and slot.narrows(shape) else TORCH_DTYPES[slot.kind]
            found.append(value.to(kept))
        return found
