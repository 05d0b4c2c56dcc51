"""Values that leave a stage's device already encoded for a link."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from farflung.codecs.base import Array, Payload
from farflung.graph.ir import ValueRef
from farflung.wire.arrays import ArrayMeta

__all__ = ["Coding", "EncodedValue", "SentValues", "array_of", "arrays_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Coding:
    """Encode ``value``, or its ``gradient``, by the codec ``name`` with ``params`` before it leaves the device.

    All readers of the micro-batches ``micro_batches`` are on other workers and get this payload.
    """

    value: ValueRef
    gradient: bool
    name: str
    params: tuple[tuple[str, float | int | str], ...] = ()
    micro_batches: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedValue:
    """A value as its ``payload``; ``meta``: its layout, ``seconds``: what encoding took.

    ``array``: the value itself, now and then, for those who measure the codec's error.
    """

    meta: ArrayMeta
    payload: Payload
    seconds: float
    array: Array | None = None


#: What a forward or backward gives to other stages.
SentValues = Mapping[ValueRef, Array | EncodedValue]


def array_of(value: Array | EncodedValue) -> Array:
    """Return ``value``, which no coding names.

    Raises:
        TypeError: it is encoded, which is a defect.
    """
    if isinstance(value, EncodedValue):
        raise TypeError(f"a value {value.meta.dtype}{list(value.meta.shape)} is encoded where its array is needed")
    return value


def arrays_of(values: SentValues) -> dict[ValueRef, Array]:
    """Return ``values`` of a stage without codings."""
    return {name: array_of(value) for name, value in values.items()}
