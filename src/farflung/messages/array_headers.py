"""How headers describe arrays. This module does without NumPy, so that short commands start quickly."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta

from farflung.messages.schema import UNSET, Item, UnsetType

if TYPE_CHECKING:
    from farflung.wire.arrays import ArrayMeta

__all__ = ["ELEMENT_TYPES", "ArrayHeader", "ArrayItem", "PayloadHeader"]

#: The names in ``wire.arrays.DTYPES``; a test compares the two.
ELEMENT_TYPES = (
    "float64",
    "float32",
    "float16",
    "bfloat16",
    "int64",
    "int32",
    "int16",
    "int8",
    "uint8",
    "bool",
    "complex64",
    "complex128",
)
_MOST_DIMS = 32
_Sizes = Annotated[tuple[Annotated[int, Meta(ge=0, lt=1 << 48)], ...], Meta(max_length=_MOST_DIMS)]

#: The header of a codec's payload. ``codecs.base.Payload`` checks its keys when the payload is decoded.
PayloadHeader = Annotated[dict[str, Any], Meta(max_length=5)]


class ArrayHeader(Item, array_like=True):
    """Element type, shape, and strides in elements (None: C order without gaps)."""

    dtype: Annotated[str, Meta(max_length=20)]
    shape: _Sizes
    strides: _Sizes | None

    def __post_init__(self) -> None:
        """Refuse an unknown element type, and strides that are not of the shape.

        Raises:
            ValueError: this is one; ``decode`` makes a ``WireError`` of it.
        """
        if self.dtype not in ELEMENT_TYPES:
            raise ValueError(f"unknown element type {self.dtype!r}: known are {', '.join(ELEMENT_TYPES)}")
        if self.strides is not None and len(self.strides) != len(self.shape):
            raise ValueError(f"{len(self.shape)} sizes but {len(self.strides)} strides")

    @classmethod
    def of(cls, meta: ArrayMeta) -> ArrayHeader:
        """Return the header of an array that ``meta`` describes."""
        return cls(dtype=meta.dtype, shape=meta.shape, strides=meta.strides)

    @property
    def meta(self) -> ArrayMeta:
        """The same for ``wire.arrays``."""
        from farflung.wire.arrays import ArrayMeta  # here: it loads NumPy, which farflung status does not need

        return ArrayMeta(self.dtype, self.shape, self.strides)


class ArrayItem(Item):
    """One of several arrays in a frame, and how many of the frame's sections belong to it."""

    array: ArrayHeader
    payload: PayloadHeader | UnsetType = UNSET
    sections: Annotated[int, Meta(ge=1, le=0xFFFF)]
