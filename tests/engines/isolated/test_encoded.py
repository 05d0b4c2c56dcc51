"""Encoded values cross the shared memory as they are, and parts that do not belong together are refused."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np
import pytest

from farflung.codecs import get_codec
from farflung.engines.encoded_value import EncodedValue
from farflung.engines.isolated.encoded import Encoded, copy_encoded, write_encoded
from farflung.errors import WireError
from farflung.memory_budget import MemoryBudget
from farflung.wire.arrays import compact
from tests.support.engines.arena_ends import ArenaEnds

GRID = np.random.default_rng(0).standard_normal((16, 64)).astype(np.float32)


def copied(ends: ArenaEnds, found: Encoded) -> EncodedValue:
    return copy_encoded(found, lambda slot: ends.worker.copy(slot, MemoryBudget()))


def encoded(array: np.ndarray, codec: str, *, beside: bool = False) -> EncodedValue:
    meta, flat = compact(array)
    payload = get_codec(codec).encode(flat.reshape(meta.shape) if meta.strides is None else flat)
    return EncodedValue(meta=meta, payload=payload, seconds=0.5, array=array if beside else None)


@pytest.mark.parametrize("codec", ["int4", "topk"])
@pytest.mark.parametrize("array", [GRID, GRID.T, np.broadcast_to(GRID[:1], (5, 64))], ids=["whole", "transposed", "broadcast"])
def test_values_come_back_as_they_are(array: np.ndarray, codec: str, ends: ArenaEnds) -> None:
    for beside in (False, True):
        value = encoded(array, codec, beside=beside)
        sent = msgspec.msgpack.decode(msgspec.msgpack.encode(write_encoded(ends.other, value)), type=Encoded)
        back = copied(ends, sent)
        assert (back.meta, back.seconds) == (value.meta, 0.5)
        assert back.payload.to_bytes() == value.payload.to_bytes()
        assert (back.array is not None) == beside
        if back.array is not None:
            np.testing.assert_array_equal(back.array, array)


def other_head(**changes: object) -> Callable[[Encoded], Encoded]:
    return lambda sent: msgspec.structs.replace(sent, head={**sent.head, **changes})


SPOILT: dict[str, Callable[[Encoded], Encoded]] = {
    "another element type": other_head(dtype="float16"),
    "another shape": other_head(shape=[16, 32]),
    "more elements": other_head(shape=[1 << 20, 1 << 20]),
    "another version": other_head(version=2),
    "no header": lambda sent: msgspec.structs.replace(sent, head={}),
    "no element type": lambda sent: msgspec.structs.replace(sent, dtype="object"),
    "gaps": lambda sent: msgspec.structs.replace(sent, strides=(1 << 30, 1)),
    "a section of floats": lambda sent: msgspec.structs.replace(
        sent, sections=(msgspec.structs.replace(sent.sections[0], dtype="float64"), *sent.sections[1:])
    ),
    "a section elsewhere": lambda sent: msgspec.structs.replace(
        sent, sections=(msgspec.structs.replace(sent.sections[0], offset=0), *sent.sections[1:])
    ),
    "a section many times": lambda sent: msgspec.structs.replace(sent, sections=sent.sections * 5),
    "another value beside": lambda sent: msgspec.structs.replace(sent, array=sent.sections[0]),
}


@pytest.mark.parametrize("spoil", SPOILT.values(), ids=SPOILT)
def test_parts_that_do_not_belong_together_are_refused(spoil: Callable[[Encoded], Encoded], ends: ArenaEnds) -> None:
    sent = write_encoded(ends.other, encoded(GRID, "int8"))
    with pytest.raises(WireError, match="the process that computes answered with"):
        copied(ends, spoil(sent))


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), -1.0])
def test_seconds_that_are_no_duration_count_as_none(seconds: float, ends: ArenaEnds) -> None:
    sent = write_encoded(ends.other, encoded(GRID, "int8"))
    assert copied(ends, msgspec.structs.replace(sent, seconds=seconds)).seconds == 0.0
