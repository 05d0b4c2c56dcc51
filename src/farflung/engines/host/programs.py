"""One call of a program on the host, with its arguments checked and its memory bounded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from farflung.engines.base import Array
from farflung.engines.host.call_bytes import call_bytes
from farflung.engines.host.operators import host_dtype, host_function
from farflung.errors import FarflungError, GraphError
from farflung.graph.ir import Arg, DTypeArg, InitStep, LocalRef, iter_refs

__all__ = ["call", "check_memory", "last_uses", "reads"]


def call(
    step: InitStep, read: Callable[[int], Any], where: str, allow: Callable[[int], object] | None = None, **extra: Any
) -> Any:
    """The result of ``step``; ``read`` gives the value of a place, ``extra`` what the operator takes besides.

    ``allow`` gets the bytes that the call takes, before it takes them, and raises an error where they are too many.

    Raises:
        GraphError: the operator refuses its arguments.
    """
    function = host_function(step.target)
    args, kwargs = [_resolve(arg, read) for arg in step.args], {name: _resolve(arg, read) for name, arg in step.kwargs}
    kwargs.pop("memory_format", None)
    try:
        if allow is not None:
            allow(call_bytes(step.target, args, kwargs))
        found = function(*args, **kwargs, **extra)
        found = found[step.output] if isinstance(found, tuple) else found
    except FarflungError:
        raise
    except Exception as error:  # NumPy refuses in many ways
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise GraphError(f"{where} failed at {step.target}: {first}") from error
    given = [arg for arg in args if isinstance(arg, np.ndarray)]
    return _narrow(np.asarray(found), given)


def _narrow(found: Array, given: Sequence[Array]) -> Array:
    """``found`` in float32 where NumPy has widened it to float64 without a float64 argument."""
    if found.dtype == np.float64 and given and all(item.dtype != np.float64 for item in given):
        return found.astype(np.float32)
    return found


def _resolve(arg: Arg, read: Callable[[int], Any]) -> Any:
    if isinstance(arg, tuple):
        return [_resolve(item, read) for item in arg]
    if isinstance(arg, LocalRef):
        return read(arg.index)
    return host_dtype(arg.name) if isinstance(arg, DTypeArg) else arg


def reads(step: InitStep) -> list[int]:
    """The places that ``step`` reads."""
    return [ref.index for ref in iter_refs((step.args, tuple(arg for _, arg in step.kwargs))) if isinstance(ref, LocalRef)]


def last_uses(steps: Sequence[InitStep], first: int, kept: Sequence[int]) -> dict[int, list[int]]:
    """Step -> the places from ``first`` on that nobody reads after it; ``kept`` places stay."""
    last: dict[int, int] = {}
    for number, step in enumerate(steps):
        last[first + number] = number
        last |= {place: number for place in reads(step) if place >= first}
    found: dict[int, list[int]] = {}
    for place, number in last.items():
        if place not in kept:
            found.setdefault(number, []).append(place)
    return found


def check_memory(items: Sequence[Any], more: int, most: int, where: str) -> int:
    """Refuse a call that takes ``more`` bytes where the program's values ``items`` and they exceed ``most``; return their sum.

    Raises:
        GraphError: names the bytes.
    """
    owners = {id(owner): owner.nbytes for item in items if isinstance(item, np.ndarray) for owner in (_owner(item),)}
    taken = sum(owners.values()) + more
    if taken > most:
        raise GraphError(f"{where}: its values take {taken} bytes, at most {most} are allowed")
    return taken


def _owner(item: Array) -> Array:
    while isinstance(item.base, np.ndarray):
        item = item.base
    return item
