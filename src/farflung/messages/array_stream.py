"""Arrays over the control plane: one tensor after another, in pieces, so that neither side holds more than one twice."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from farflung.errors import WireError
from farflung.memory_budget import MemoryBudget
from farflung.messages.array_headers import ArrayHeader
from farflung.messages.calls import ShardUpload, StatesRequest, TensorPiece, UploadEnd, UploadPiece, WeightsUpload
from farflung.messages.data import LentPiece
from farflung.messages.remote_calls import ask_all
from farflung.messages.schema import Message, kind_of
from farflung.messages.wire_form import encode
from farflung.transports.rpc import RpcClient
from farflung.wire.arrays import Array, ArrayMeta, check_dense, pack, unpack
from farflung.wire.frames import Frame, uninitialized

__all__ = ["PIECE_BYTES", "fetch_states", "join_pieces", "tensor_pieces", "upload_frames"]

#: Bytes of a piece of a tensor, except of its last one.
PIECE_BYTES = 4 << 20
_MAX_TENSOR = 64 << 30


def tensor_pieces(arrays: Iterable[tuple[str, Array]]) -> Iterator[TensorPiece]:
    """Return messages that carry ``arrays`` by name."""
    for name, array in arrays:
        meta, buffer = pack(np.ascontiguousarray(array).reshape(array.shape))
        count = max(1, -(-buffer.nbytes // PIECE_BYTES))
        for index in range(count):
            piece = buffer[index * PIECE_BYTES : (index + 1) * PIECE_BYTES]
            yield TensorPiece(name=name, array=ArrayHeader.of(meta), last=index == count - 1, sections=(piece,))


def join_pieces(
    pieces: Iterable[TensorPiece | LentPiece], budget: MemoryBudget | None = None, limit: int = _MAX_TENSOR
) -> dict[str, Array]:
    """Return the arrays that ``tensor_pieces`` took apart, of at most ``limit`` bytes each. They count in ``budget``.

    Raises:
        WireError: the pieces do not make up the tensors that they announce.
        MemoryExceeded: ``budget`` has no room for a tensor.
    """
    budget = budget or MemoryBudget()
    found: dict[str, Array] = {}
    begun: tuple[str, ArrayMeta] | None = None
    body, filled = memoryview(b""), 0
    for piece in pieces:
        name, meta, section = piece.name, piece.array.meta, memoryview(piece.sections[0]).cast("B")
        if begun is None:
            check_dense(meta, f"tensor {name!r}", limit)
            if section.nbytes < min(PIECE_BYTES, meta.packed_nbytes):
                raise WireError(
                    f"tensor {name!r} of {meta.packed_nbytes} bytes begins with {section.nbytes}: it was cut in transfer"
                )
            begun, body, filled = (name, meta), uninitialized(meta.packed_nbytes, f"tensor {name!r:.80}", budget), 0
        if begun != (name, meta):
            raise WireError(f"tensor {name!r} begins before the one before it has ended")
        if filled + section.nbytes > body.nbytes:
            raise WireError(f"tensor {name!r} is larger than it says")
        body[filled : filled + section.nbytes] = section
        filled += section.nbytes
        if piece.last:
            found[name] = unpack(meta, body[:filled], meta.packed_nbytes)  # refuses a tensor that is not whole
            begun = None
    if begun is not None:
        raise WireError(f"tensor {begun[0]!r} was cut in transfer")
    return found


def fetch_states(client: RpcClient, request: StatesRequest, budget: MemoryBudget | None = None) -> dict[str, Array]:
    """Return the states that the broker stores under the names of ``request``; they count in ``budget``.

    Raises:
        WireError: the answer is not a stream of tensors, or as ``join_pieces``.
        MemoryExceeded: as ``join_pieces``.
        FarflungError: the broker refuses, or is gone.
    """
    return join_pieces(_expected(ask_all(client, request)), budget)


def _expected(answers: Iterable[Message]) -> Iterator[TensorPiece]:
    for answer in answers:
        if not isinstance(answer, TensorPiece):
            raise WireError(f"a stream of tensors holds pieces, not {kind_of(answer)!r}")
        yield answer


def upload_frames(head: WeightsUpload | ShardUpload, blocks: Iterable[bytes | memoryview]) -> Iterator[Frame]:
    """Return the frames of an upload: ``head``, the bytes of ``blocks`` in pieces of some megabytes, and the end."""
    yield encode(head)
    for block in blocks:
        view = memoryview(block).cast("B")
        for start in range(0, view.nbytes, PIECE_BYTES):
            yield encode(UploadPiece(sections=(view[start : start + PIECE_BYTES],)))
    yield encode(UploadEnd())
