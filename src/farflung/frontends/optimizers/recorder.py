"""Notes what an optimizer does to one parameter in one step.

The optimizer's own ``step`` runs on a stand-in on the meta device, which has a shape and no memory. Step counts and other tensors
with one element have values, so that the optimizer's branches on them can be followed. The calls are noted as they happen, in
place or not: a view stays a view when the calls are repeated, so nothing needs to be known about aliases.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from farflung.errors import CaptureError, GraphError
from farflung.frontends.optimizers.notes import Notes, dtype_name, place_text
from farflung.frontends.optimizers.traced_numbers import Place, is_traced, plain, traced, traced_functions
from farflung.graph.ir import Arg, DTypeArg, LocalRef
from farflung.graph.opset import OPSET, check_target, info
from farflung.optim.numbers import Number

__all__ = ["UpdateRecorder"]

#: Operators that give their argument itself.
_SAME = frozenset({"aten.lift_fresh.default", "aten.detach.default", "aten.alias.default", "aten.lift.default"})
#: Operators that leave memory unset, and what takes their place: nobody's memory gets into weights.
_UNSET = {
    "aten.empty.memory_format": "aten.zeros.default",
    "aten.empty_like.default": "aten.zeros_like.default",
    "aten.new_empty.default": "aten.new_zeros.default",
}
_PLACED = frozenset({"device", "layout", "pin_memory", "non_blocking"})
#: What a value of a tensor is taken for while code computes with it; no code's constants are this number.
_UNKNOWN = 0.7310585786300049


@dataclass(slots=True)
class _Pending:
    """Traced numbers among the arguments of the function that runs; ``used``: those that an operator has taken."""

    numbers: list[Any]
    used: set[int] = field(default_factory=set)
    operators: int = 0


class UpdateRecorder:
    """Notes one step. ``inputs``: the number of input places."""

    def __init__(self, inputs: int) -> None:
        self.notes = Notes(inputs)
        self._pending: list[_Pending] = []

    # -- what is known ------------------------------------------------------------------------------------------------

    def input_tensor(self, tensor: torch.Tensor, place: int) -> torch.Tensor:
        """Take ``tensor`` for the value of the input ``place``."""
        self.notes.register(tensor, place)
        return tensor

    def input_number(self, value: Number, place: int) -> Any:
        """``value`` as the number of the input ``place``."""
        return traced(value, self.notes, Place(place, data=False))

    def input_state(self, value: torch.Tensor, place: int) -> torch.Tensor:
        """A stand-in for a state that the step before left as ``value`` (``known``), at the input ``place``."""
        if value.numel() == 1 and value.device.type != "meta":
            return self.input_tensor(value.clone(), place)
        return self.input_tensor(torch.empty_like(value), place)

    def full_state(self, parameter: torch.Tensor, value: Number, dtype: torch.dtype) -> torch.Tensor:
        """A stand-in for a state like ``parameter`` that is ``value`` everywhere before the first step."""
        kind = ("dtype", DTypeArg(dtype_name(dtype)))
        place = self.notes.note("aten.full_like.default", (LocalRef(self.notes.place(parameter)), value), (kind,))
        made = torch.empty_like(parameter, dtype=dtype)
        self.notes.register(made, place)
        return made

    def item(self, tensor: torch.Tensor) -> Any:
        """The value of a tensor with one element as a traced number."""
        if tensor.numel() != 1:
            raise CaptureError(f"{place_text()}: item() of a tensor {list(tensor.shape)}, which has several elements")
        value = self.notes.value_of(tensor)
        place = self.notes.note("number.item", (LocalRef(self.notes.place(tensor)),))
        known: Number = _UNKNOWN if value is None else value.item()
        return traced(known, self.notes, Place(place, data=value is None))

    def make(self, args: Sequence[Any], kwargs: dict[str, Any]) -> torch.Tensor:
        """A tensor that is made from a traced number."""
        given = args[0] if args else kwargs["data"]
        number = given[0] if isinstance(given, (list, tuple)) and len(given) == 1 else given
        if not is_traced(number):
            raise CaptureError(f"{place_text()} makes a tensor of several numbers: make one tensor of each")
        with _disable_current_modes():
            made = torch.tensor([plain(number)] if number is not given else plain(number), dtype=kwargs.get("dtype"))
        self.notes.constant(made, LocalRef(number.place.index))
        return made

    # -- modes --------------------------------------------------------------------------------------------------------

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Inside, everything that is done with tensors and traced numbers is noted."""
        with traced_functions(), torch.no_grad(), _Functions(self), _Operators(self):
            yield

    @contextmanager
    def function(self, numbers: list[Any]) -> Iterator[None]:
        """Inside, a function runs whose arguments hold the traced ``numbers``."""
        pending = _Pending(numbers)
        self._pending.append(pending)
        try:
            yield
        finally:
            self._pending.pop()
        if pending.operators and len(pending.used) < len({id(item) for item in numbers}):
            raise CaptureError(
                f"{place_text()} passes a number that PyTorch changes before an operator gets it: compute it in Python first"
            )

    def call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operator on stand-ins and note it.

        Raises:
            CaptureError: the operator is not allowed in a program.
        """
        name = str(func)
        tensors = [item for item in pytree.tree_leaves((args, kwargs)) if isinstance(item, torch.Tensor)]
        if not name.startswith("aten."):
            if tensors:
                raise CaptureError(f"{place_text()} uses {name}, which is not on the operator allow-list")
            return func(*args, **kwargs)
        if name == "aten._local_scalar_dense.default":
            value = self.notes.value_of(tensors[0])
            if value is None:
                raise CaptureError(f"{place_text()} reads a value of a tensor, which is unknown before the run: use torch.where")
            return value.item()
        values = [self.notes.value_of(item) for item in tensors]
        noted = self._written(func, args, kwargs)
        result = self._run(func, args, kwargs, tensors)
        results = [item for item in pytree.tree_leaves(result) if isinstance(item, torch.Tensor)]
        if name in _SAME:
            self.notes.register(results[0], self.notes.place(tensors[0]))
        else:
            self._finish(noted, func, results)
        self._follow(func, args, kwargs, (values, results))
        return result

    def _run(self, func: Any, args: Any, kwargs: Any, tensors: Sequence[torch.Tensor]) -> Any:
        devices = {item.device.type for item in tensors}
        if len(devices) < 2:
            return func(*args, **kwargs)
        args, kwargs = pytree.tree_map_only(torch.Tensor, lambda item: item.to("meta"), (args, kwargs))
        return func(*args, **kwargs)

    def _follow(
        self, func: Any, args: Any, kwargs: Any, made: tuple[Sequence[torch.Tensor | None], Sequence[torch.Tensor]]
    ) -> None:
        """Compute the values of results with one element, if those of all arguments are known."""
        values, results = made
        if len(results) != 1 or results[0].numel() != 1 or results[0].device.type != "meta" or any(v is None for v in values):
            return
        known = iter(values)
        args, kwargs = pytree.tree_map_only(torch.Tensor, lambda _: next(known), (args, kwargs))
        kwargs = {**kwargs, "device": "cpu"} if kwargs.get("device") is not None else kwargs
        self.notes.values[id(results[0])] = func(*args, **kwargs)

    def _written(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[str, tuple[Arg, ...], dict[str, Arg]]:
        """The call in a program's terms, without devices."""
        found: list[Arg] = []
        named: dict[str, Arg] = {}
        for declared, value in zip(func._schema.arguments, args, strict=False):
            if declared.name in _PLACED or isinstance(value, torch.memory_format) or named:
                if declared.name not in _PLACED:
                    named[declared.name] = self._argument(value)
            else:
                found.append(self._argument(value))
        named |= {key: self._argument(value) for key, value in kwargs.items() if key not in _PLACED and value is not None}
        name = str(func)
        if name in _UNSET:
            name = _UNSET[name]
            if name != "aten.zeros_like.default":
                named.pop("memory_format", None)
        if self._pending:
            self._pending[-1].operators += 1
        return name, tuple(found), named

    def _argument(self, value: Any) -> Arg:
        if isinstance(value, torch.Tensor):
            return LocalRef(self.notes.place(value))
        if isinstance(value, (list, tuple)):
            return tuple(self._argument(item) for item in value)
        if isinstance(value, torch.dtype):
            return DTypeArg(dtype_name(value))
        if isinstance(value, torch.memory_format):
            return str(value).removeprefix("torch.")
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return self._number_argument(value)
        if value is None or isinstance(value, (bool, str)):
            return value
        raise CaptureError(f"{place_text()} passes a {type(value).__name__}, which is no argument of a program")

    def _number_argument(self, value: Number) -> Arg:
        """A number that reached an operator: the traced one that the running function was given, or a constant."""
        for pending in reversed(self._pending):
            alike = [item for item in pending.numbers if plain(item) == value]
            if alike:
                pending.used |= {id(item) for item in alike}
                return LocalRef(alike[0].place.index)
        return plain(value)

    def _finish(self, noted: tuple[str, tuple[Arg, ...], dict[str, Arg]], func: Any, results: Sequence[torch.Tensor]) -> None:
        name, args, named = noted
        out = named.pop("out", None)
        if out is not None:
            name = _functional_out(func)
        known = OPSET.get(name)
        written = out if out is not None else args[0] if func._schema.name.endswith("_") and args else None
        if written is not None and (out is not None or known is None):
            self._change(name if out is not None else _functional(func), (args, named), written, results[0])
            return
        _check_allowed(name)
        kwargs = tuple(sorted(named.items()))
        for index, item in enumerate(results):
            place = self.notes.note(name, args, kwargs, index)
            self.notes.register(item, place)

    def _change(self, name: str, given: tuple[tuple[Arg, ...], dict[str, Arg]], written: Arg, result: torch.Tensor) -> None:
        """Note an operator without a form that changes its argument: compute, then copy."""
        _check_allowed(name)
        value = self.notes.note(name, given[0], tuple(sorted(given[1].items())))
        self.notes.note("aten.copy_.default", (written, LocalRef(value)))
        assert isinstance(written, LocalRef)
        self.notes.register(result, written.index)


def _check_allowed(name: str) -> None:
    try:
        known = info(name)
        if not known.in_place and not known.initializer:
            check_target(name)
    except GraphError as error:
        raise CaptureError(f"{place_text()} uses {name}, which no update program can have: {error}") from None
    if known.random:
        raise CaptureError(f"{place_text()} draws random numbers, which an update program can't do: remove the noise")


def _functional(func: Any) -> str:
    return f"aten.{func._schema.name.partition('::')[2].removesuffix('_')}.{func._overloadname}"


def _functional_out(func: Any) -> str:
    base, overload = func._schema.name.partition("::")[2], func._overloadname
    kept = overload.removesuffix("_out")
    return f"aten.{base}.{'default' if overload == 'out' else kept}"


class _Functions(TorchFunctionMode):
    """Sees Python's calls of torch, with traced numbers among their arguments."""

    def __init__(self, recorder: UpdateRecorder) -> None:
        super().__init__()
        self._recorder = recorder

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.Tensor.item:
            return self._recorder.item(args[0])
        if func is torch.Tensor.__bool__:
            return bool(self._recorder.item(args[0]))
        numbers = [item for item in pytree.tree_leaves((args, kwargs)) if is_traced(item)]
        if not numbers:
            return func(*args, **kwargs)
        if func in (torch.tensor, torch.as_tensor, torch.scalar_tensor):
            return self._recorder.make(args, kwargs)
        with self._recorder.function(numbers):
            return func(*args, **kwargs)


class _Operators(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees the operators that functions of torch call."""

    def __init__(self, recorder: UpdateRecorder) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._recorder = recorder

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self._recorder.call(func, args, kwargs or {})
