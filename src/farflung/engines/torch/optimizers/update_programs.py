"""Runs the update programs of a rule book: an optimizer that arrived as data.

Each program is compiled once per shape. Before the first run it is replayed on the meta device, which has no memory: this checks
the states that it makes, and bounds the memory of its temporaries. A program changes the parameter and its states in place, as
the optimizer's own code does, so the bits are those of that code.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from farflung.engines.present import PRESENT, label
from farflung.engines.torch.arrays import TORCH_DTYPES, spec_of
from farflung.engines.torch.program import installed_signature, kernel, resolve
from farflung.errors import GraphError
from farflung.graph.ir import InitStep, LocalRef, StateRef, TensorSpec, ValueRef, iter_refs
from farflung.optim import Rule, StateSlot, UpdateProgram
from farflung.optim.document import check_types
from farflung.optim.numbers import ITEM, PREFIX, apply

__all__ = ["CompiledRule", "Missing", "ParameterStates", "missing_program"]

_META, _CPU = torch.device("meta"), torch.device("cpu")
#: Bytes that the values of a program may take at a time: a multiple of the parameter's, and in any case.
_GROWTH, _SMALL = 12, 1 << 20


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

    def follow(self, inputs: Sequence[Any]) -> list[Any] | None:
        """The states after this program as far as they are numbers or have one element, the others as None.

        Only the calls on such values run, on copies. None: a guard does not hold.

        Raises:
            GraphError: a guard depends on a tensor of several elements.
        """
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
                return None  # what follows may have no result here: the root of a negative number
        return self.results(places)

    def holds(self, inputs: Sequence[Any]) -> bool:
        """Whether the guards hold."""
        return not self.program.guards or self.follow(inputs) is not None

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
            taken = sum(size for storage, size in _storages(places).items() if storage not in own)
            if taken > most:
                raise GraphError(f"{self.where}: its values take {taken} bytes, at most {most} are allowed for such a parameter")
            for done in call.free:  # after the sum: a value that nobody reads takes memory, too
                places[done] = None
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
        declared = TensorSpec(dtype=slot.kind, shape=slot.shape_for(shape))
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


def _empty(slot: StateSlot, shape: tuple[int, ...]) -> torch.Tensor:
    return torch.empty(slot.shape_for(shape), dtype=TORCH_DTYPES[slot.kind], device="meta")


class CompiledRule:
    """The programs of a rule for parameters of one shape, element type and device."""

    def __init__(self, rule: Rule, settings: int, sample: torch.Tensor, where: str) -> None:
        self.rule, self._where = rule, where
        shape, inputs = tuple(sample.shape), 2 + settings
        meta = [torch.empty(shape, dtype=sample.dtype, device="meta") for _ in range(2)]
        states = [1.0 if slot.number else _empty(slot, shape) for slot in rule.states]
        self._programs: tuple[list[_Compiled], list[_Compiled]] = ([], [])
        for program, later in rule.programs():
            given: list[Any] = [*meta, *([1.0] * settings), *(states if later else [])]
            numbers = {place for place, item in enumerate(given) if isinstance(item, float)}
            count = inputs + (len(states) if later else 0)
            single = _Compiled(program, count, numbers, _META, where).check(rule, given)
            compiled = _Compiled(program, count, numbers, _CPU if sample.is_meta else sample.device, where)
            compiled.allow_guards(single)
            self._programs[later].append(compiled)

    def follow(self, settings: Sequence[float], states: ParameterStates) -> list[Any] | None:
        """The states after a step as far as guards may depend on them (None: no program fits)."""
        inputs = [None, None, *settings, *(states or ())]
        for program in self._programs[states is not None]:
            found = program.follow(inputs)
            if found is not None:
                return found
        return None

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
            f"{self._where}: no program of the optimizer fits this step (settings {', '.join(map(repr, settings))}); submit the "
            "job again, with as many steps as it will have"
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


#: Values of the settings, and of the states as far as they are numbers or have one element, in a step that no program fits.
Missing = tuple[tuple[float, ...], list[Any] | None]


def missing_program(rule: Rule, spec: TensorSpec, settings: Iterable[Sequence[float]]) -> Missing | None:
    """Follow the guards of ``rule`` through a whole run; ``settings``: values of each step. None: some program fits each step.

    Raises:
        GraphError: a guard depends on a tensor of several elements.
    """
    if not any(program.guards for program, _ in rule.programs()):
        return None
    sample = torch.empty(spec.shape, dtype=TORCH_DTYPES[spec.dtype], device="meta")
    states: list[Any] | None = None
    compiled: CompiledRule | None = None
    with torch.no_grad():
        for values in settings:
            compiled = compiled or CompiledRule(rule, len(values), sample, "an update")
            found = compiled.follow(values, states)
            if found is None:
                return tuple(values), states
            states = found
    return None
