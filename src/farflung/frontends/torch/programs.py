"""Cut the initializer program of one state out of a record: a backward slice over the notes.

A write that leaves nothing old ends the search for earlier contents; the creation is kept. Steps that draw are numbered inside
the program. Where two states hold the same draw (one is a copy of the other), the second names the first one's key.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily

from farflung.errors import CaptureError, GraphError
from farflung.frontends.torch.arguments import dtype_name
from farflung.frontends.torch.recorder import Made, Note, Recording
from farflung.graph.ir import Arg, DTypeArg, InitStep, LocalRef
from farflung.graph.opset import check_initializer

__all__ = ["Programs", "tensor_bytes"]

_REMEDY = "initialise with torch.nn.init, or pass a module with real weights"
_META_REMEDY = (
    "pass the class or a function that makes the module in place of the meta module, which keeps no initializers "
    "except reset_parameters and init_weights, or pass a module with real weights"
)
_CONSTANT_LIMIT = 1 << 20
_LISTED = 64
_DROPPED = frozenset({"device", "layout", "pin_memory"})


class Programs:
    """The programs of a recording, state by state (in the module's order: the first holder of a draw owns its key).

    ``draws``: number of a note that draws -> the (state, number) that keys it, for what has been asked for so far.
    """

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._notes = recording.notes
        self.draws: dict[int, tuple[str, int]] = {}

    def all(self) -> dict[str, tuple[InitStep, ...] | bytes]:
        """State name -> program, or the bytes of a value that was there from the start.

        Raises:
            CaptureError: a state is never initialised, or by something that can't be recorded.
        """
        return {name: self.of(name, tensor) for name, tensor in self._recording.states.items()}

    def of(self, name: str, tensor: torch.Tensor) -> tuple[InitStep, ...] | bytes:
        """The program of one tensor, or its bytes."""
        if not isinstance(tensor, FakeTensor) and not tensor.is_meta:
            return tensor_bytes(tensor, name)
        made = self._recording.recorder.find(tensor)
        if made is None:
            raise CaptureError(f"{name} was not made by the factory's own operators: {_REMEDY}")
        picked = self._slice(made, tensor.untyped_storage()._cdata)
        first = self._notes[picked[0]]
        if len(picked) == 1 and first.constant is not None:
            return tensor_bytes(first.constant, name)
        if all(self._notes[i].view or self._notes[i].target.startswith("aten.empty") for i in picked):
            remedy = _REMEDY if self._recording.mode is not None else _META_REMEDY
            raise CaptureError(f"{name} is never initialised (it would hold whatever is in memory): {remedy}")
        return _Writer(name, self._notes, self.draws).write(picked, made)

    def _slice(self, made: Made, storage: int) -> list[int]:
        wanted, contents, picked = {made.note}, {storage: True}, []
        for index in range(len(self._notes) - 1, -1, -1):
            note = self._notes[index]
            written = any(contents.get(item, False) for item in note.writes)
            if not (index in wanted or written or any(item in contents for item in note.makes)):
                continue
            picked.append(index)
            for item in note.whole:
                contents[item] = False
            for read, item in note.reads:
                wanted.add(read.note)
                if note.view or item in note.whole:
                    contents.setdefault(item, False)
                else:
                    contents[item] = True
        return picked[::-1]


class _Writer:
    """Writes the steps of one program."""

    def __init__(self, name: str, notes: list[Note], draws: dict[int, tuple[str, int]]) -> None:
        self._name = name
        self._notes = notes
        self._draws = draws
        self._steps: list[InitStep] = []
        self._places: dict[tuple[int, int], int] = {}
        self._drawn = 0

    def write(self, picked: list[int], made: Made) -> tuple[InitStep, ...]:
        outputs = {made.note: {made.output}}
        for index in picked:
            for read, _ in self._notes[index].reads:
                outputs.setdefault(read.note, set()).add(read.output)
        last = -1
        for index in picked:
            note = self._notes[index]
            if note.constant is not None:
                self._constant(index, note.constant)
            else:
                for output in sorted(outputs.get(index, {0})):
                    self._call(index, note, output)
            first = note.args[0] if note.writes and note.args else None
            last = self._places[first.note, first.output] if isinstance(first, Made) else len(self._steps) - 1
        final = self._places[made.note, made.output]
        if last != final or self._steps[-1].output:
            self._steps.append(InitStep(target="aten.detach.default", args=(LocalRef(final),)))
        return tuple(self._steps)

    def _call(self, index: int, note: Note, output: int) -> None:
        target, args, kwargs = _without_out(note)
        self._check(target)
        step = InitStep(
            target=target,
            args=tuple(self._arg(item) for item in args),
            kwargs=tuple((key, self._arg(item)) for key, item in sorted(kwargs.items()) if self._kept(key, item)),
            rng=self._drawn if note.random else None,
            like=self._like(index) if note.random else None,
            output=output,
        )
        self._places[index, output] = len(self._steps)
        self._steps.append(step)
        if "out" in note.kwargs:
            copied = (self._arg(note.kwargs["out"]), LocalRef(len(self._steps) - 1))
            self._steps.append(InitStep(target="aten.copy_.default", args=copied))

    def _check(self, target: str) -> None:
        try:
            check_initializer(target)
        except GraphError as error:
            raise CaptureError(f"{self._name} is initialised with {target}, which can't be recorded: {_REMEDY}") from error

    def _like(self, index: int) -> tuple[str, int] | None:
        own = (self._name, self._drawn)
        self._drawn += 1
        owner = self._draws.setdefault(index, own)
        return None if owner == own else owner

    def _kept(self, key: str, item: Any) -> bool:
        if key == "generator" and item is not None:
            raise CaptureError(
                f"{self._name} is initialised from a generator of its own: use the default one, the job has a seed"
            )
        return key not in _DROPPED and key not in ("generator", "out") and item is not None

    def _arg(self, item: Any) -> Arg:
        if isinstance(item, Made):
            return LocalRef(self._places[item.note, item.output])
        if isinstance(item, torch.Tensor):
            raise CaptureError(f"{self._name} is initialised from a tensor that was made elsewhere: {_REMEDY}")
        if isinstance(item, torch.dtype):
            return DTypeArg(dtype_name(item))
        if isinstance(item, (list, tuple)):
            return tuple(self._arg(part) for part in item)
        if isinstance(item, torch.memory_format):
            return str(item).removeprefix("torch.")
        if item is None or isinstance(item, (bool, int, float, str)):
            return item
        raise CaptureError(f"{self._name} is initialised with a {type(item).__name__}, which can't be recorded: {_REMEDY}")

    def _constant(self, index: int, value: torch.Tensor) -> None:
        """Values listed one by one: there is no operator that takes a table of numbers."""
        if value.numel() > _LISTED:
            raise CaptureError(
                f"{self._name} is computed from a table of {value.numel()} numbers, and at most {_LISTED} can be recorded: "
                "register the finished values as a buffer, or pass a module with real weights"
            )
        dtype = (("dtype", DTypeArg(dtype_name(value.dtype))),)
        with unset_fake_temporarily():
            numbers = value.reshape(-1).tolist()
        first = len(self._steps)
        for number in numbers:
            self._steps.append(InitStep(target="aten.scalar_tensor.default", args=(number,), kwargs=dtype))
        if value.dim():
            refs = tuple(LocalRef(first + i) for i in range(len(numbers)))
            self._steps.append(InitStep(target="aten.stack.default", args=(refs,)))
            self._steps.append(InitStep(target="aten.view.default", args=(LocalRef(len(self._steps) - 1), tuple(value.shape))))
        self._places[index, 0] = len(self._steps) - 1


def _without_out(note: Note) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
    if "out" not in note.kwargs:
        return note.target, note.args, note.kwargs
    overload = note.target.rpartition(".")[2]
    name = overload.removesuffix("out").removesuffix("_") or "default"
    return f"{note.target.removesuffix(overload)}{name}", note.args, note.kwargs


def tensor_bytes(value: torch.Tensor, name: str) -> bytes:
    """The values of a real tensor, little-endian.

    Raises:
        CaptureError: there are none, or more than a graph may hold.
    """
    if value.nbytes > _CONSTANT_LIMIT:
        raise CaptureError(
            f"{name} has {value.nbytes} bytes, and a graph holds at most {_CONSTANT_LIMIT} per constant: "
            "make it with torch operators in the factory, or register it as a buffer of a module with real weights"
        )
    with unset_fake_temporarily():
        if value.is_meta or isinstance(value, FakeTensor):
            raise CaptureError(
                f"tensor {name} has no values (it is a parameter's .data, or on the meta device): "
                "use the parameter itself, or register the tensor as a buffer"
            )
        plain = value.detach().cpu().contiguous()
        return plain.reshape(-1).view(torch.uint8).numpy().tobytes()
