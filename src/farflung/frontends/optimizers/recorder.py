"""Notes what an optimizer does to one parameter in one step.

The optimizer's own ``step`` runs on a stand-in on the meta device, which has a shape and no memory. Step counts and other tensors
with one element have values, so that the optimizer's branches on them can be followed. The calls are noted as they happen, in
place or not: a view stays a view when the calls are repeated, so nothing needs to be known about aliases.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from farflung.errors import CaptureError, GraphError
from farflung.frontends.optimizers.traced import Place, is_traced, plain, traced, traced_functions
from farflung.frontends.torch.data_dependence import is_between, line_of
from farflung.graph.ir import DTYPES, Arg, DTypeArg, InitStep, LocalRef
from farflung.graph.opset import OPSET, check_target, info
from farflung.optim.numbers import COMPARISONS, Number, apply

__all__ = ["Line", "UpdateRecorder", "line_text"]

#: Operators that give their argument itself.
_SAME = frozenset({"aten.lift_fresh.default", "aten.detach.default", "aten.alias.default", "aten.lift.default"})
#: Operators that leave memory unset, and what takes their place: nobody's memory gets into weights.
_UNSET = {
    "aten.empty.memory_format": "aten.zeros.default",
    "aten.empty_like.default": "aten.zeros_like.default",
    "aten.new_empty.default": "aten.new_zeros.default",
}
_PLACED = frozenset({"device", "layout", "pin_memory", "non_blocking"})
_OPTIM = str(Path(torch.optim.__file__).parent)
#: What a value of a tensor is taken for while code computes with it; no code's constants are this number.
_UNKNOWN = 0.7310585786300049

_Geometry = tuple[int, int, tuple[int, ...], tuple[int, ...], torch.dtype]


#: File and number of a line of code.
Line = tuple[str, int]


def _line() -> Line | None:
    """The innermost line of the optimizer's own code that runs."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(_OPTIM):
            if not file.endswith("optim/optimizer.py"):
                return file, frame.f_lineno
        elif not is_between(file):
            return file, frame.f_lineno
        frame = frame.f_back
    return None


def line_text(line: Line | None) -> str:
    """``lion.py:17: p.add_(...)``."""
    if line is None:
        return "its step"
    place, text = line_of(*line)
    return f"{place}: {text}"


def place_text() -> str:
    """The text of the line of the optimizer's own code that runs."""
    return line_text(_line())


@dataclass(slots=True)
class _Pending:
    """Traced numbers among the arguments of the function that runs; ``used``: those that an operator has taken."""

    numbers: list[Any]
    used: set[int] = field(default_factory=set)
    operators: int = 0


class UpdateRecorder:
    """The calls of one step. ``inputs``: the number of input places."""

    def __init__(self, inputs: int) -> None:
        self.steps: list[InitStep] = []
        #: The line of code of each step.
        self.lines: list[Line | None] = []
        self.guards: list[tuple[int, bool]] = []
        self._inputs = inputs
        self._places: dict[int, int] = {}
        self._geometries: dict[_Geometry, int] = {}
        self._alive: list[torch.Tensor] = []
        #: The values of meta tensors with one element that follow from the program alone.
        self._values: dict[int, torch.Tensor] = {}
        self._pending: list[_Pending] = []

    # -- what is known ------------------------------------------------------------------------------------------------

    def input_tensor(self, tensor: torch.Tensor, place: int) -> torch.Tensor:
        """Take ``tensor`` for the value of the input ``place``."""
        self._register(tensor, place)
        return tensor

    def input_number(self, value: Number, place: int) -> Any:
        """``value`` as the number of the input ``place``."""
        return traced(value, self, Place(place, data=False))

    def input_state(self, value: torch.Tensor, place: int) -> torch.Tensor:
        """A stand-in for a state that the step before left as ``value`` (``known``), at the input ``place``."""
        if value.numel() == 1 and value.device.type != "meta":
            return self.input_tensor(value.clone(), place)
        return self.input_tensor(torch.empty_like(value), place)

    def full_state(self, parameter: torch.Tensor, value: Number, dtype: torch.dtype) -> torch.Tensor:
        """A stand-in for a state like ``parameter`` that is ``value`` everywhere before the first step."""
        kind = ("dtype", DTypeArg(_dtype_name(dtype)))
        place = self._note("aten.full_like.default", (LocalRef(self._place(parameter)), value), (kind,))
        made = torch.empty_like(parameter, dtype=dtype)
        self._register(made, place)
        return made

    def known(self, tensor: torch.Tensor) -> torch.Tensor:
        """``tensor``, or its value where it has one element."""
        value = self.value_of(tensor)
        return tensor if value is None else value

    def _register(self, tensor: torch.Tensor, place: int) -> None:
        self._alive.append(tensor)
        self._places[id(tensor)] = place
        self._geometries[_geometry(tensor)] = place

    def result(self, value: Any) -> LocalRef | Number:
        """Where a state's value comes from.

        Raises:
            CaptureError: no step made it.
        """
        if isinstance(value, torch.Tensor):
            return LocalRef(self._place(value))
        return LocalRef(value.place.index) if is_traced(value) else value

    def value_of(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """The value of a tensor with one element, if it is known."""
        if tensor.device.type != "meta":
            return tensor
        return self._values.get(id(tensor))

    def _place(self, tensor: torch.Tensor) -> int:
        found = self._places.get(id(tensor), self._geometries.get(_geometry(tensor)))
        if found is not None:
            return found
        if tensor.device.type == "meta" or tensor.numel() != 1:
            raise CaptureError(
                f"{place_text()} reads a tensor {list(tensor.shape)} that is neither the parameter, its gradient nor a state: "
                "keep it in self.state[parameter]"
            )
        return self._constant(tensor, tensor.item())

    def _constant(self, tensor: torch.Tensor, value: Arg) -> int:
        """Note that ``tensor``, which has one element on the host, is made with ``value``."""
        place = self._note("aten.scalar_tensor.default", (value,), (("dtype", DTypeArg(_dtype_name(tensor.dtype))),))
        if tensor.dim():
            place = self._note("aten.reshape.default", (LocalRef(place), tuple(tensor.shape)), ())
        self._register(tensor, place)
        return place

    # -- notes --------------------------------------------------------------------------------------------------------

    def _note(self, target: str, args: tuple[Arg, ...], kwargs: tuple[tuple[str, Arg], ...] = (), output: int = 0) -> int:
        self.steps.append(InitStep(target=target, args=args, kwargs=kwargs, output=output))
        self.lines.append(_line())
        return self._inputs + len(self.steps) - 1

    def number(self, name: str, operands: tuple[Number, ...]) -> Any:
        """Note an operator on numbers; comparisons become guards.

        Raises:
            CaptureError: a branch depends on the values of tensors.
        """
        data = any(is_traced(item) and item.place.data for item in operands)  # type: ignore[union-attr]
        args = tuple(LocalRef(item.place.index) if is_traced(item) else item for item in operands)  # type: ignore[union-attr]
        try:
            value = apply(name, *map(plain, operands))
        except GraphError as error:
            raise CaptureError(f"{place_text()}: {error}") from None
        if name in COMPARISONS and data:
            raise CaptureError(
                f"{place_text()} decides by the values of a tensor, which are unknown before the run: "
                "use torch.where, or min and max of two numbers"
            )
        place = self._note(f"number.{name}", args)
        if name in COMPARISONS:
            self.guards.append((place, bool(value)))
            return bool(value)
        return traced(value, self, Place(place, data))

    def item(self, tensor: torch.Tensor) -> Any:
        """The value of a tensor with one element as a traced number."""
        if tensor.numel() != 1:
            raise CaptureError(f"{place_text()}: item() of a tensor {list(tensor.shape)}, which has several elements")
        value = self.value_of(tensor)
        place = self._note("number.item", (LocalRef(self._place(tensor)),))
        known: Number = _UNKNOWN if value is None else value.item()
        return traced(known, self, Place(place, data=value is None))

    def make(self, args: Sequence[Any], kwargs: dict[str, Any]) -> torch.Tensor:
        """A tensor that is made from a traced number."""
        given = args[0] if args else kwargs["data"]
        number = given[0] if isinstance(given, (list, tuple)) and len(given) == 1 else given
        if not is_traced(number):
            raise CaptureError(f"{place_text()} makes a tensor of several numbers: make one tensor of each")
        with _disable_current_modes():
            made = torch.tensor([plain(number)] if number is not given else plain(number), dtype=kwargs.get("dtype"))
        self._constant(made, LocalRef(number.place.index))
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
            value = self.value_of(tensors[0])
            if value is None:
                raise CaptureError(f"{place_text()} reads a value of a tensor, which is unknown before the run: use torch.where")
            return value.item()
        values = [self.value_of(item) for item in tensors]
        noted = self._written(func, args, kwargs)
        result = self._run(func, args, kwargs, tensors)
        results = [item for item in pytree.tree_leaves(result) if isinstance(item, torch.Tensor)]
        if name in _SAME:
            self._register(results[0], self._place(tensors[0]))
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
        self._values[id(results[0])] = func(*args, **kwargs)

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
            return LocalRef(self._place(value))
        if isinstance(value, (list, tuple)):
            return tuple(self._argument(item) for item in value)
        if isinstance(value, torch.dtype):
            return DTypeArg(_dtype_name(value))
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
            place = self._note(name, args, kwargs, index)
            self._register(item, place)

    def _change(self, name: str, given: tuple[tuple[Arg, ...], dict[str, Arg]], written: Arg, result: torch.Tensor) -> None:
        """Note an operator without a form that changes its argument: compute, then copy."""
        _check_allowed(name)
        value = self._note(name, given[0], tuple(sorted(given[1].items())))
        self._note("aten.copy_.default", (written, LocalRef(value)))
        assert isinstance(written, LocalRef)
        self._register(result, written.index)


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


def _geometry(tensor: torch.Tensor) -> _Geometry:
    storage = int(tensor.untyped_storage()._cdata)
    return storage, int(tensor.storage_offset()), tuple(tensor.shape), tensor.stride(), tensor.dtype


def _dtype_name(dtype: torch.dtype) -> str:
    name = str(dtype).removeprefix("torch.")
    if name not in DTYPES:
        raise CaptureError(f"{place_text()}: element type {name} is not supported")
    return name


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
