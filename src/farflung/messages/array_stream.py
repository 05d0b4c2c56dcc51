"""Arrays over the control plane: one tensor after another, in pieces, so that neither side holds more than one twice."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from farflung.errors import WireError
from farflung.messages.fields import text
from farflung.wire.arrays import Array, ArrayMeta, pack, unpack
from farflung.wire.frames import Frame

__all__ = ["pieces_of", "read_arrays", "write_arrays"]

_PIECE = 4 << 20
_MAX_TENSOR = 64 << 30


def write_arrays(arrays: Iterable[tuple[str, Array]]) -> Iterator[Frame]:
    """Frames that carry ``arrays`` by name."""
    for name, array in arrays:
        meta, buffer = pack(np.ascontiguousarray(array).reshape(array.shape))
        count = max(1, -(-buffer.nbytes // _PIECE))
        for index in range(count):
            header = {"name": name, "array": meta.to_header(), "last": index == count - 1}
            yield Frame("tensor", header, (buffer[index * _PIECE : (index + 1) * _PIECE],))


def read_arrays(frames: Iterable[Frame]) -> dict[str, Array]:
    """What ``write_arrays`` wrote.

    Raises:
        WireError: the pieces do not make up the tensors that they announce.
    """
    found: dict[str, Array] = {}
    pieces = bytearray()
    begun: tuple[str, ArrayMeta] | None = None
    for frame in frames:
        if frame.kind != "tensor" or len(frame.sections) != 1:
            raise WireError(f"a stream of tensors holds pieces with one section each, not a {frame.kind!r:.40}")
        name, meta = text(frame.header, "name"), ArrayMeta.from_header(frame.header.get("array"))
        if begun not in (None, (name, meta)):
            raise WireError(f"tensor {name!r} begins before the one before it has ended")
        if meta.packed_nbytes > _MAX_TENSOR or len(pieces) + len(frame.sections[0]) > meta.packed_nbytes:
            raise WireError(f"tensor {name!r} is larger than it says, or than {_MAX_TENSOR} bytes")
        pieces += frame.sections[0]
        begun = (name, meta)
        if frame.header.get("last"):
            found[name] = unpack(meta, pieces, _MAX_TENSOR)
            pieces, begun = bytearray(), None
    if begun is not None:
        raise WireError(f"tensor {begun[0]!r} was cut in transfer")
    return found


def pieces_of(blocks: Iterable[bytes | memoryview], kind: str, header: Mapping[str, str | int]) -> Iterator[Frame]:
    """A byte stream as frames of at most some megabytes; the first one carries ``header``, the last one says so."""
    yield Frame(kind, dict(header))
    for block in blocks:
        view = memoryview(block).cast("B")
        for start in range(0, view.nbytes, _PIECE):
            yield Frame("piece", {}, (view[start : start + _PIECE],))
    yield Frame("end")
