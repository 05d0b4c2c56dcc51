"""The safetensors format by byte ranges: read single tensors or rows of them, write without a second copy in memory.

Format (https://huggingface.co/docs/safetensors): 8 bytes header length (little-endian), a JSON header with element type,
shape and byte range of each tensor, then the data. Nothing is executed and every size is checked before memory is taken.
The library of the same name reads whole local files only, hence this index; what is written here is read by it (a test).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from farflung.checkpoint.blob import Blob
from farflung.errors import CheckpointError
from farflung.graph.ir import DTYPES, TensorSpec
from farflung.known_names import did_you_mean

__all__ = ["Array", "SafetensorsIndex", "TensorEntry", "dtype_of", "encode", "spec_of"]

Array = NDArray[Any]

#: The library's own limit.
MAX_HEADER = 100_000_000
#: Items of a header, counted before it is parsed: 100,000 tensors. One of empty lists would take a minute and gigabytes.
MAX_ITEMS = 1_000_000
#: Elements along a dimension, all elements of a tensor without any, and bytes: NumPy counts no further.
_MOST = (1 << 63) - 1
_CODES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint8": "U8",
    "bool": "BOOL",
}
_NAMES = {code: name for name, code in _CODES.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorEntry:
    """One tensor of a file: its spec and its byte range ``start`` to ``stop`` from the file's beginning."""

    name: str
    spec: TensorSpec
    start: int
    stop: int


class SafetensorsIndex:
    """Where each tensor of a safetensors file lies.

    Raises:
        CheckpointError: the header is torn, too large, or doesn't describe the file.
    """

    def __init__(self, blob: Blob) -> None:
        self.blob = blob
        if blob.size < 8:
            raise self._error(f"has {blob.size} bytes, too few for a header: it is torn")
        length = int.from_bytes(blob.read(0, 8), "little")
        if length > MAX_HEADER or length + 8 > blob.size:
            raise self._error(
                f"has a header of {length} bytes in a file of {blob.size} (limit {MAX_HEADER}): it is torn or no such file"
            )
        text = bytes(blob.read(8, length))
        items = text.count(b",") + text.count(b"[") + text.count(b"{")
        if items > MAX_ITEMS:
            raise self._error(f"has a header with {items} items (limit {MAX_ITEMS}): write its tensors into several files")
        try:
            header = json.loads(text, object_pairs_hook=self._unique)
        except (ValueError, RecursionError):
            raise self._error("has a header that is not JSON: it is torn or no safetensors file") from None
        if not isinstance(header, dict):
            raise self._error("has a header that is no JSON object")
        self.metadata: Mapping[str, str] = self._metadata(header.pop("__metadata__", {}))
        base = 8 + length
        self.tensors: Mapping[str, TensorEntry] = {name: self._entry(name, value, base) for name, value in header.items()}
        self._check_layout(base)

    def read(self, name: str) -> Array:
        """The tensor ``name``."""
        entry = self.entry(name)
        return _array(self.blob.read(entry.start, entry.stop - entry.start), entry.spec.dtype, entry.spec.shape)

    def read_rows(self, name: str, start: int, stop: int) -> Array:
        """Rows ``start`` to ``stop`` (first dimension) of the tensor ``name``; only their bytes are read."""
        entry = self.entry(name)
        if not entry.spec.shape or not 0 <= start <= stop <= entry.spec.shape[0]:
            raise self._error(f"has {name!r} of shape {list(entry.spec.shape)}: there are no rows {start} to {stop}")
        shape = entry.spec.shape[1:]
        row = prod(shape) * DTYPES[entry.spec.dtype]
        data = self.blob.read(entry.start + start * row, (stop - start) * row)
        return _array(data, entry.spec.dtype, (stop - start, *shape))

    def entry(self, name: str) -> TensorEntry:
        """Spec and byte range of ``name``.

        Raises:
            CheckpointError: there is no such tensor.
        """
        try:
            return self.tensors[name]
        except KeyError:
            raise self._error(
                f"has no tensor {name!r}: {did_you_mean(name, self.tensors)}it has {len(self.tensors)}, e.g. "
                f"{', '.join(list(self.tensors)[:3])}"
            ) from None

    def _unique(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            raise self._error("has a header that names something twice")
        return found

    def _metadata(self, value: object) -> dict[str, str]:
        if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
            raise self._error("has metadata that is not a table of texts")
        return value

    def _entry(self, name: str, value: object, base: int) -> TensorEntry:
        if not isinstance(value, dict) or value.keys() != {"dtype", "shape", "data_offsets"}:
            raise self._error(f"describes {name!r} in an unknown way")
        dtype, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
        if not isinstance(dtype, str) or dtype not in _NAMES:
            raise self._error(f"has {name!r} of element type {dtype!r}: known are {', '.join(_NAMES)}")
        if not _counts(shape) or len(shape) > 32 or not _counts(offsets) or len(offsets) != 2:
            raise self._error(f"has {name!r} with shape {shape!r} and range {offsets!r}: neither may be that")
        spec = TensorSpec(dtype=_NAMES[dtype], shape=tuple(shape))
        if prod(size or 1 for size in shape) * DTYPES[spec.dtype] > _MOST:
            raise self._error(f"has {name!r} with {len(shape)} dimensions that are together larger than any array")
        start, stop = offsets
        if stop - start != spec.nbytes:
            raise self._error(f"gives {name!r} {stop - start} bytes where its shape needs {spec.nbytes}")
        return TensorEntry(name=name, spec=spec, start=base + start, stop=base + stop)

    def _check_layout(self, base: int) -> None:
        place = base
        for entry in sorted(self.tensors.values(), key=lambda entry: (entry.start, entry.stop)):
            if entry.start != place:
                raise self._error(f"has a hole or an overlap before {entry.name!r}")
            place = entry.stop
        if place != self.blob.size:
            raise self._error(f"has {self.blob.size} bytes, its header describes {place}: it is torn")

    def _error(self, text: str) -> CheckpointError:
        return CheckpointError(f"safetensors file {self.blob.name} {text}")


def spec_of(array: Array) -> TensorSpec:
    """Element type and shape of ``array``.

    Raises:
        CheckpointError: the element type isn't in the closed table.
    """
    if array.dtype.name not in _CODES:
        raise CheckpointError(f"element type {array.dtype.name} can't be stored: known are {', '.join(_CODES)}")
    return TensorSpec(dtype=array.dtype.name, shape=array.shape)


def encode(
    specs: Mapping[str, TensorSpec], load: Callable[[str], Array], metadata: Mapping[str, str] | None = None
) -> Iterator[bytes | memoryview]:
    """The file in pieces: the header, then each tensor as ``load(name)`` gives it, one at a time.

    Raises:
        CheckpointError: ``load`` gives something else than its spec says.
    """
    yield _header(specs, metadata)
    for name in _order(specs):
        array = load(name)
        if spec_of(array) != specs[name]:
            raise CheckpointError(f"tensor {name!r} is {spec_of(array)} but {specs[name]} was announced")
        little = array.dtype.newbyteorder("<") if array.dtype.byteorder == ">" else array.dtype
        flat = np.ascontiguousarray(array, dtype=little).reshape(-1)
        yield flat.view(np.uint8).data


def dtype_of(name: str) -> np.dtype[Any]:
    """The NumPy element type called ``name`` in ``graph.DTYPES``."""
    found: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)
    return found


def _order(specs: Mapping[str, TensorSpec]) -> list[str]:
    """Wide elements first, so that everything is aligned; then by name."""
    return sorted(specs, key=lambda name: (-DTYPES[specs[name].dtype], name))


def _header(specs: Mapping[str, TensorSpec], metadata: Mapping[str, str] | None) -> bytes:
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    place = 0
    for name in _order(specs):
        spec = specs[name]
        stop = place + spec.nbytes
        header[name] = {"dtype": _CODES[spec.dtype], "shape": list(spec.shape), "data_offsets": [place, stop]}
        place = stop
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _array(data: bytes | bytearray, dtype: str, shape: tuple[int, ...]) -> Array:
    """An array of its own memory (writable)."""
    found = np.frombuffer(data, dtype=dtype_of(dtype)).reshape(shape)
    return found if found.flags.writeable else found.copy()


def _counts(value: object) -> bool:
    return isinstance(value, list) and all(type(item) is int and 0 <= item <= _MOST for item in value)
