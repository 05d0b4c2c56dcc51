"""Record how a module's weights are born, so that they can be born again where they live.

A factory runs under fake tensors, which have shapes and no memory; every ATen call that makes or changes a tensor is noted.
Memory is followed by storage: a parameter and its ``.data`` are one storage, a view is a geometry on it. ``programs`` then cuts
the calls that one state needs out of the record.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from farflung.errors import CaptureError
from farflung.foreign_code import first_line, translated
from farflung.frontends.torch.known_numbers import KnownNumbers
from farflung.frontends.torch.patches import PATCHES, replaced_here
from farflung.frontends.torch.twins import as_state, with_twins

__all__ = ["Made", "Note", "Recorder", "Recording", "record", "record_initializers", "recordable_torch"]

Geometry = tuple[int, int, tuple[int, ...], tuple[int, ...], torch.dtype]

_WHOLE = frozenset(
    {"normal_", "uniform_", "zero_", "fill_", "copy_", "exponential_", "log_normal_", "bernoulli_", "random_", "geometric_"}
)
_RESHAPED = {"t_": "t.default", "transpose_": "transpose.int", "squeeze_": "squeeze", "unsqueeze_": "unsqueeze.default"}
_ALIASES = frozenset({"lift_fresh", "lift", "detach", "alias"})


@dataclass(frozen=True, slots=True)
class Made:
    """An argument that is the result ``output`` of note ``note``."""

    note: int
    output: int = 0


@dataclass(slots=True, kw_only=True)
class Note:
    """One recorded call.

    ``writes``: storages that it changes; ``whole``: those of which nothing old is left; ``makes``: new storages.
    ``reads``: its tensor arguments with their storages. ``constant``: no call, but values that were there already.
    """

    target: str
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    writes: frozenset[int] = frozenset()
    whole: frozenset[int] = frozenset()
    makes: frozenset[int] = frozenset()
    reads: tuple[tuple[Made, int], ...] = ()
    view: bool = False
    random: bool = False
    constant: torch.Tensor | None = None


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes all calls while it is active (above a fake tensor mode)."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.notes: list[Note] = []
        self._made: dict[Geometry, Made] = {}
        self._alive: list[torch.UntypedStorage] = []
        self._values = KnownNumbers()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.ops.aten._local_scalar_dense.default and (number := self._values.item(args[0])) is not None:
            return number
        note = self._begin(func, args, kwargs)
        result = func(*args, **kwargs)
        self._end(note, func, args, result)
        self._values.computed(func, args, kwargs, result)
        return result

    def find(self, tensor: torch.Tensor) -> Made | None:
        """The note that made this tensor (None: made elsewhere)."""
        return self._made.get(_geometry(tensor)) if isinstance(tensor, FakeTensor) else None

    def _begin(self, func: Any, args: Any, kwargs: Any) -> Note:
        reads: list[tuple[Made, int]] = []

        def known(item: Any) -> Any:
            if not isinstance(item, torch.Tensor):
                return item
            made = self.find(item) if isinstance(item, FakeTensor) else self._constant(item)
            if made is None:
                return item
            reads.append((made, _storage(item)))
            return made

        schema = func._schema
        named = dict(zip((declared.name for declared in schema.arguments), args, strict=False)) | kwargs
        written = [named.get(item.name) for item in schema.arguments if item.alias_info and item.alias_info.is_write]
        written = [item for item in written if isinstance(item, torch.Tensor)]
        base = schema.name.partition("::")[2]
        whole = [item for item in written if base in _WHOLE and item.nbytes == item.untyped_storage().nbytes()]
        new_args, new_kwargs = pytree.tree_map(known, (tuple(args), dict(kwargs)))
        return Note(
            target=str(func),
            args=new_args,
            kwargs=new_kwargs,
            writes=frozenset(map(_storage, written)),
            whole=frozenset(map(_storage, whole)),
            reads=tuple(reads),
            random=torch.Tag.nondeterministic_seeded in func.tags,
        )

    def _constant(self, tensor: torch.Tensor) -> Made:
        self.notes.append(Note(target="constant", constant=tensor, makes=frozenset({_storage(tensor)})))
        self._alive.append(tensor.untyped_storage())
        return Made(len(self.notes) - 1)

    def _end(self, note: Note, func: Any, args: Any, result: Any) -> None:
        base = func._schema.name.partition("::")[2]
        results = [item for item in pytree.tree_leaves(result) if isinstance(item, FakeTensor)]
        self._alive += [item.untyped_storage() for item in results]
        if base in _ALIASES and len(results) == 1 and note.reads:
            self._made.setdefault(_geometry(results[0]), note.reads[0][0])
            return
        if base in _RESHAPED:
            name = _RESHAPED[base]
            overload = "" if "." in name else f".{func._overloadname}"
            note.target, note.writes, note.view = f"aten.{name}{overload}", frozenset(), True
        number = len(self.notes)
        if note.writes:
            self.notes.append(note)
            return
        read = {storage for _, storage in note.reads}
        note.makes = frozenset(_storage(item) for item in results) - read
        note.view = not note.makes
        if not note.makes and all(_geometry(item) in self._made for item in results):
            return
        if not note.reads and "dtype" not in note.kwargs and results:
            declared = {item.name for item in func._schema.arguments}
            note.kwargs |= {"dtype": results[0].dtype} if "dtype" in declared else {}
        self.notes.append(note)
        for index, item in enumerate(results):
            self._made[_geometry(item)] = Made(number, index)


def _storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _geometry(tensor: torch.Tensor) -> Geometry:
    return _storage(tensor), int(tensor.storage_offset()), tuple(tensor.shape), tensor.stride(), tensor.dtype


@dataclass(frozen=True, kw_only=True)
class Recording:
    """A module whose weights exist as shapes only, and the record of how they are made.

    ``mode`` is the fake tensor mode that the module's states belong to (None: the module is on the meta device).
    """

    module: nn.Module
    notes: list[Note]
    mode: FakeTensorMode | None
    states: Mapping[str, torch.Tensor]
    recorder: Recorder


def record(factory: Callable[[], nn.Module]) -> Recording:
    """Run ``factory`` without taking memory and record the initializers of what it makes.

    Raises:
        CaptureError: the factory needs values of tensors, or gives no module.
    """
    mode, recorder = FakeTensorMode(allow_non_fake_inputs=True), Recorder()
    with translated(_unrecordable), recordable_torch(), mode, recorder:
        module = factory()
    if not isinstance(module, nn.Module):
        raise CaptureError(f"the factory gives {module!r:.60}: return a torch.nn.Module")
    return Recording(module=module, notes=recorder.notes, mode=mode, states=_states(module), recorder=recorder)


def _unrecordable(error: Exception) -> Exception:
    if isinstance(error, CaptureError):
        return error
    if "UninitializedParameter" in str(error):
        return CaptureError(
            "the factory makes a lazy layer, which has no shape before the first forward: give the layer its sizes, or call the "
            "module once on a batch and pass the module itself"
        )
    if isinstance(error, TypeError) and "required positional argument" in str(error):
        owner = str(error).partition(".")[0].partition("(")[0]
        return CaptureError(
            f"the function that makes the model lacks arguments: {first_line(error)}; pass a module, or a function without "
            f"parameters, as in lambda: {owner}(...) with all arguments"
        )
    return CaptureError(
        f"the factory can't run without memory: {type(error).__name__}: {first_line(error)}; initialise with torch.nn.init, "
        "without looking at values, or pass a module with real weights"
    )


def record_initializers(module: nn.Module) -> Recording:
    """For a module that was built on the meta device: record what its own initializers would do.

    Those are ``init_weights`` (transformers) and ``reset_parameters`` (torch). The module stays on the meta device.

    Raises:
        CaptureError: a parameter or buffer has no such initializer (found when its program is asked for).
    """
    mode, recorder = FakeTensorMode(allow_non_fake_inputs=True), Recorder()
    with recordable_torch(), mode, recorder, _twins(module):
        _reset(module, set())
        states = _states(module)
    return Recording(module=module, notes=recorder.notes, mode=None, states=states, recorder=recorder)


@contextmanager
def recordable_torch() -> Iterator[None]:
    """Inside, what torch does by looking at values or memory is done by operators that can be recorded."""
    originals = {kind: kind.__deepcopy__ for kind in (nn.Parameter, torch.Tensor)}

    def copied(tensor: torch.Tensor, memo: dict[int, Any]) -> Any:
        if not isinstance(tensor, FakeTensor):
            kind = nn.Parameter if type(tensor) is nn.Parameter else torch.Tensor
            return originals[kind](tensor, memo)  # type: ignore[no-untyped-call]
        if id(tensor) not in memo:
            with torch.no_grad():
                twin = tensor.clone()
            is_parameter = isinstance(tensor, nn.Parameter)
            memo[id(tensor)] = nn.Parameter(twin, requires_grad=tensor.requires_grad) if is_parameter else twin
        return memo[id(tensor)]

    with PATCHES, ExitStack() as stack:
        stack.enter_context(replaced_here(nn.Module, "_apply", _apply))
        stack.enter_context(replaced_here(torch.Tensor, "__deepcopy__", copied))
        stack.enter_context(replaced_here(nn.Parameter, "__deepcopy__", copied))
        stack.enter_context(replaced_here(nn.init, "_no_grad_trunc_normal_", _trunc_normal))
        yield


def _trunc_normal(tensor: torch.Tensor, mean: float, std: float, a: float, b: float, generator: Any = None) -> torch.Tensor:
    """A truncated normal by the inverse of its distribution function: one draw per element, no loop over rejected ones."""
    low, high = (math.erf((edge - mean) / (std * math.sqrt(2.0))) for edge in (a, b))
    with torch.no_grad():
        tensor.uniform_(low, high, generator=generator)
        return tensor.erfinv_().mul_(std * math.sqrt(2.0)).add_(mean).clamp_(min=a, max=b)


def _apply(module: nn.Module, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> nn.Module:
    """``Module._apply`` for fake tensors: torch's own wants to swap them, which their bookkeeping forbids."""
    for child in module.children() if recurse else ():
        child._apply(fn)  # type: ignore[no-untyped-call]
    for parameter in module._parameters.values():
        if parameter is not None:
            with torch.no_grad():
                parameter.data = fn(parameter)
    for name, buffer in module._buffers.items():
        if buffer is not None:
            module._buffers[name] = fn(buffer)
    return module


def _states(module: nn.Module) -> dict[str, torch.Tensor]:
    return dict(module.named_parameters()) | dict(module.named_buffers())


def _reset(module: nn.Module, done: set[int]) -> None:
    if id(module) in done:
        return
    done.add(id(module))
    own = getattr(module, "init_weights", None) if hasattr(module, "_init_weights") else None
    if callable(own):
        own()
        done.update(map(id, module.modules()))
        return
    for child in module.children():
        _reset(child, done)
    reset = getattr(module, "reset_parameters", None)
    if callable(reset):
        reset()


def _twins(module: nn.Module) -> AbstractContextManager[None]:
    """Inside, meta states are fresh fake tensors whose creation is recorded."""
    return with_twins(
        module, lambda tensor: tensor.is_meta, lambda tensor: as_state(tensor, torch.empty(tensor.shape, dtype=tensor.dtype))
    )
