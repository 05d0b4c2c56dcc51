"""What a codec must offer, and the self-describing payload that it gives.

NumPy is the specification: an engine may bring the same codec for its own tensors, and must give the same bytes.
Codecs flatten an array in C order; its strides are the wire room's matter (``wire.arrays.compact`` and ``restore``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from farflung.errors import CodecError, VersionError, WireError
from farflung.wire.arrays import DTYPES, ArrayMeta
from farflung.wire.frames import Buffer, Frame, FrameLimits, decode_parts, encode_frame

__all__ = [
    "DEFAULT_LIMIT",
    "FLOATING",
    "PAYLOAD_VERSION",
    "Array",
    "ByShape",
    "Codec",
    "Payload",
    "as_section",
    "flatten",
    "foretold_bytes",
    "is_number",
]

Array = NDArray[Any]
PAYLOAD_VERSION = 1
#: The most bytes that a decoded array may take unless the caller says otherwise.
DEFAULT_LIMIT = 4 << 30
FLOATING = frozenset({"float64", "float32", "float16", "bfloat16"})
_MAX_SECTIONS = 8
#: The kind of frame that holds a payload by itself.
_KIND = "payload"


@dataclass(frozen=True, slots=True, kw_only=True)
class Payload:
    """An encoded array: which codec, what it decodes to (``dtype``, ``shape``), the codec's own ``fields`` and byte sections.

    A payload from outside comes through ``from_header`` or ``from_bytes``, which bound the size of what it decodes to.
    """

    codec: str
    dtype: str
    shape: tuple[int, ...]
    fields: Mapping[str, Any] = field(default_factory=dict)
    sections: tuple[memoryview | bytes, ...] = ()
    version: int = PAYLOAD_VERSION

    @property
    def numel(self) -> int:
        """Elements of the decoded array."""
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of ``to_bytes()``, head included."""
        return sum(len(buffer) for buffer in encode_frame(self._frame(), checksum=False))

    def to_header(self) -> dict[str, Any]:
        """All but the sections, as plain values for a frame's header."""
        return {
            "codec": self.codec,
            "version": self.version,
            "dtype": self.dtype,
            "shape": list(self.shape),
            "fields": dict(self.fields),
        }

    @classmethod
    def from_header(cls, header: object, sections: tuple[memoryview | bytes, ...], limit: int = DEFAULT_LIMIT) -> Payload:
        """Read what ``to_header`` wrote; ``limit`` bounds the bytes of the decoded array.

        Raises:
            CodecError: a key is missing or has the wrong type, or the decoded array needs more than ``limit`` bytes.
            VersionError: the sender writes another version of payloads.
        """
        if not isinstance(header, dict) or header.keys() != {"codec", "version", "dtype", "shape", "fields"}:
            raise CodecError("bad payload: its header must hold codec, version, dtype, shape and fields")
        version, name, fields = header["version"], header["codec"], header["fields"]
        if version != PAYLOAD_VERSION:
            raise VersionError(
                f"the sender writes payloads of version {version!r:.20}, this machine reads version {PAYLOAD_VERSION}; "
                "install the same farflung on both"
            )
        if not isinstance(name, str) or not isinstance(fields, dict) or len(sections) > _MAX_SECTIONS:
            raise CodecError(f"bad payload: codec must be a text, fields a map, sections at most {_MAX_SECTIONS}")
        try:
            meta = ArrayMeta.from_header([header["dtype"], header["shape"], None])
        except WireError as error:
            raise CodecError(f"bad payload: {error}") from None
        need = prod(max(size, 1) for size in meta.shape) * DTYPES[meta.dtype].itemsize
        if need > limit:
            raise CodecError(f"oversized payload: {meta.dtype} {meta.shape} needs {need} bytes, the limit is {limit}")
        return cls(codec=name, dtype=meta.dtype, shape=meta.shape, fields=fields, sections=sections)

    def to_bytes(self) -> bytes:
        """The payload as one self-contained run of bytes (a frame of kind ``payload``)."""
        return b"".join(encode_frame(self._frame()))

    @classmethod
    def from_bytes(cls, data: Buffer, limit: int = DEFAULT_LIMIT) -> Payload:
        """Read what ``to_bytes`` wrote; the sections are views of ``data``.

        Raises:
            CodecError: ``data`` is damaged or truncated, or as ``from_header``.
            VersionError: the sender speaks another version.
        """
        try:
            header, sections = decode_parts(data, _KIND, FrameLimits(max_header=1 << 16, max_sections=_MAX_SECTIONS))
        except WireError as error:
            raise CodecError(f"bad payload: {error}") from None
        return cls.from_header(header, sections, limit)

    def expect(self, dtype: str, shape: tuple[int, ...]) -> None:
        """Check what the payload decodes to before it is decoded.

        Raises:
            CodecError: another element type or shape was agreed.
        """
        if (self.dtype, self.shape) != (dtype, tuple(shape)):
            raise CodecError(f"the payload holds {self.dtype} {self.shape}, agreed was {dtype} {tuple(shape)}")

    def integer(self, name: str, low: int, high: int) -> int:
        """The field ``name``, an integer from ``low`` to ``high``.

        Raises:
            CodecError: it is missing or something else.
        """
        value = self.fields.get(name)
        if type(value) is not int or not low <= value <= high:
            raise CodecError(f"bad {self.codec} payload: {name} must be an integer from {low} to {high}, got {value!r:.40}")
        return value

    def choice(self, name: str, known: frozenset[str]) -> str:
        """The field ``name``, one of ``known``.

        Raises:
            CodecError: it is missing or something else.
        """
        value = self.fields.get(name)
        if not isinstance(value, str) or value not in known:
            raise CodecError(f"bad {self.codec} payload: {name} must be one of {', '.join(sorted(known))}, got {value!r:.40}")
        return value

    def sections_of(self, count: int) -> tuple[memoryview | bytes, ...]:
        """The sections, which must be ``count``.

        Raises:
            CodecError: there are more or less.
        """
        if len(self.sections) != count:
            raise CodecError(f"bad {self.codec} payload: it needs {count} sections, got {len(self.sections)}")
        return self.sections

    def elements(self, section: memoryview | bytes, dtype: str, count: int) -> Array:
        """``section`` as ``count`` elements of ``dtype``, 1-D, aligned; shares memory where it can.

        Raises:
            CodecError: the section has another size, or a bool is neither 0 nor 1.
        """
        kind, size = DTYPES[dtype], memoryview(section).nbytes
        if size != count * kind.itemsize:
            raise CodecError(f"bad {self.codec} payload: {count} x {dtype} need {count * kind.itemsize} bytes, got {size}")
        if not size:
            return np.empty(0, kind)
        flat: Array = np.frombuffer(section, kind)
        if dtype == "bool" and int(flat.view(np.uint8).max()) > 1:
            raise CodecError(f"bad {self.codec} payload: a bool must be 0 or 1")
        return flat if flat.flags.aligned else flat.copy()

    def _frame(self) -> Frame:
        return Frame(_KIND, self.to_header(), self.sections)


class Codec(Protocol):
    """Encodes arrays for a link. Codecs hold settings, no state: the same array gives the same bytes (what draws random
    numbers has its seed among the settings; see ``keys``)."""

    @property
    def name(self) -> str:
        """The family's name, as payloads carry it."""

    @property
    def lossless(self) -> bool:
        """Whether every array comes back bit for bit."""

    def encode(self, array: Array) -> Payload:
        """Encode ``array`` (any shape and strides, any element type of ``wire.arrays.DTYPES``); it is not modified.

        The payload may share memory with ``array``.

        Raises:
            CodecError: the element type is not in the table.
        """

    def decode(self, payload: Payload) -> Array:
        """The array, with the shape and element type of the encoded one; it may share memory with the payload.

        Raises:
            CodecError: the payload is another codec's, or malformed.
        """

    def wire_bytes(self, numel: int, itemsize: int) -> float:
        """Expected ``Payload.nbytes`` for ``numel`` floating-point elements of ``itemsize`` bytes, in one dim; for several too,
        unless the codec is one of ``ByShape``."""

    def error_bound(self, shape: tuple[int, ...]) -> float:
        """Bound on ``|x - x'| / |x|`` (2-norms) for a finite floating-point array x of ``shape`` that comes back as x', beside
        the rounding of x' to its element type; 0 for a lossless codec."""


@runtime_checkable
class ByShape(Protocol):
    """What a codec also offers whose payloads depend on more of a shape than how many elements it has."""

    def shaped_bytes(self, shape: tuple[int, ...], itemsize: int) -> float:
        """Expected ``Payload.nbytes`` for floating-point elements of ``itemsize`` bytes that have ``shape``."""


def foretold_bytes(codec: Codec, shape: tuple[int, ...], itemsize: int) -> float:
    """Expected ``Payload.nbytes`` for floating-point elements of ``itemsize`` bytes that have ``shape``."""
    if isinstance(codec, ByShape):
        return float(codec.shaped_bytes(shape, itemsize))
    return float(codec.wire_bytes(prod(shape), itemsize))


def flatten(array: Array) -> tuple[str, Array]:
    """Name of the element type, and the elements in C order as a 1-D little-endian array (a view where possible).

    Raises:
        CodecError: the element type is not in the table.
    """
    name = array.dtype.name
    if name not in DTYPES:
        raise CodecError(f"cannot encode elements of type {name}: known are {', '.join(DTYPES)}; convert the array first")
    return name, np.ascontiguousarray(array).reshape(-1).astype(DTYPES[name], copy=False)


def as_section(flat: Array) -> memoryview:
    """The bytes of a contiguous 1-D array, without a copy."""
    return flat.view(np.uint8).data if flat.size else memoryview(b"")


def is_number(value: object) -> bool:
    """Whether ``value`` is an int or float (parameters come from files and plans)."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)
