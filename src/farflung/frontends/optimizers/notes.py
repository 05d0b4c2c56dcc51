"""The notes of a recorder: calls in their order, the lines of code that made them, and which place holds which tensor."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from farflung.errors import CaptureError, GraphError
from farflung.frontends.optimizers.traced_numbers import Place, is_traced, plain, traced
from farflung.frontends.torch.checks.data_dependence import is_between, line_of
from farflung.graph.ir import DTYPES, Arg, DTypeArg, InitStep, LocalRef
from farflung.optim.numbers import COMPARISONS, Number, apply

__all__ = ["Line", "Notes", "dtype_name", "line_text", "place_text"]

_OPTIM = str(Path(torch.optim.__file__).parent)
_Geometry = tuple[int, int, tuple[int, ...], tuple[int, ...], torch.dtype]

#: File and number of a line of code.
Line = tuple[str, int]


def line() -> Line | None:
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


def line_text(at: Line | None) -> str:
    """``lion.py:17: p.add_(...)``."""
    if at is None:
        return "its step"
    place, text = line_of(*at)
    return f"{place}: {text}"


def place_text() -> str:
    """The text of the line of the optimizer's own code that runs."""
    return line_text(line())


class Notes:
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
        self.values: dict[int, torch.Tensor] = {}

    def register(self, tensor: torch.Tensor, place: int) -> None:
        """Note that ``tensor`` is the value of ``place``. It stays alive, so that no other tensor gets its identity."""
        self._alive.append(tensor)
        self._places[id(tensor)] = place
        self._geometries[_geometry(tensor)] = place

    def result(self, value: Any) -> LocalRef | Number:
        """Where a state's value comes from.

        Raises:
            CaptureError: no step made it.
        """
        if isinstance(value, torch.Tensor):
            return LocalRef(self.place(value))
        return LocalRef(value.place.index) if is_traced(value) else value

    def value_of(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """The value of a tensor with one element, if it is known."""
        if tensor.device.type != "meta":
            return tensor
        return self.values.get(id(tensor))

    def known(self, tensor: torch.Tensor) -> torch.Tensor:
        """``tensor``, or its value where it has one element."""
        value = self.value_of(tensor)
        return tensor if value is None else value

    def place(self, tensor: torch.Tensor) -> int:
        """The place that holds ``tensor``. A tensor with one element that nobody has seen is a constant.

        Raises:
            CaptureError: it is neither the parameter, its gradient nor a state, and no step made it.
        """
        found = self._places.get(id(tensor), self._geometries.get(_geometry(tensor)))
        if found is not None:
            return found
        if tensor.device.type == "meta" or tensor.numel() != 1:
            raise CaptureError(
                f"{place_text()} reads a tensor {list(tensor.shape)} that is neither the parameter, its gradient nor a state: "
                "keep it in self.state[parameter]"
            )
        return self.constant(tensor, tensor.item())

    def constant(self, tensor: torch.Tensor, value: Arg) -> int:
        """Note that ``tensor``, which has one element on the host, is made with ``value``."""
        place = self.note("aten.scalar_tensor.default", (value,), (("dtype", DTypeArg(dtype_name(tensor.dtype))),))
        if tensor.dim():
            place = self.note("aten.reshape.default", (LocalRef(place), tuple(tensor.shape)), ())
        self.register(tensor, place)
        return place

    def note(self, target: str, args: tuple[Arg, ...], kwargs: tuple[tuple[str, Arg], ...] = (), output: int = 0) -> int:
        """Note a call; return the place of its result."""
        self.steps.append(InitStep(target=target, args=args, kwargs=kwargs, output=output))
        self.lines.append(line())
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
        place = self.note(f"number.{name}", args)
        if name in COMPARISONS:
            self.guards.append((place, bool(value)))
            return bool(value)
        return traced(value, self, Place(place, data))


def _geometry(tensor: torch.Tensor) -> _Geometry:
    storage = int(tensor.untyped_storage()._cdata)
    return storage, int(tensor.storage_offset()), tuple(tensor.shape), tensor.stride(), tensor.dtype


def dtype_name(dtype: torch.dtype) -> str:
    """The name of an element type in a program.

    Raises:
        CaptureError: no program can have it.
    """
    name = str(dtype).removeprefix("torch.")
    if name not in DTYPES:
        raise CaptureError(f"{place_text()}: element type {name} is not supported")
    return name
