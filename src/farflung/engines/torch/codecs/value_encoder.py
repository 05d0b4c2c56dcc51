"""Encodes the values and gradients that leave the device for other workers only."""

from __future__ import annotations

import torch

from farflung.clock import monotonic
from farflung.codecs import get_codec, keyed
from farflung.codecs.base import Codec
from farflung.engines.base import EngineSettings, MicroBatch
from farflung.engines.encoded_value import EncodedValue
from farflung.engines.torch.arrays import to_array
from farflung.engines.torch.codecs.encode import encode_tensor
from farflung.graph.ir import ValueRef

__all__ = ["ValueEncoder"]

#: One value in this many brings its array along, so that the sender can measure the codec's error.
_MEASURED = 128


class ValueEncoder:
    """The codings of one stage's settings."""

    def __init__(self, settings: EngineSettings) -> None:
        self._seed = settings.seed
        self._codecs: dict[tuple[ValueRef, bool], tuple[frozenset[int], Codec]] = {
            (one.value, one.gradient): (frozenset(one.micro_batches), get_codec(one.name, **dict(one.params)))
            for one in settings.codings
        }
        self._encoded: dict[tuple[ValueRef, bool], int] = {}

    def encode(self, key: MicroBatch, value: ValueRef, tensor: torch.Tensor, *, gradient: bool) -> EncodedValue | None:
        """``tensor``, which is ``value`` or its ``gradient``, encoded; ``None`` if the host encodes it."""
        micro_batches, codec = self._codecs.get((value, gradient), (frozenset(), None))
        if codec is None or key.index not in micro_batches:
            return None
        begin = monotonic()
        found = encode_tensor(keyed(codec, self._seed, key.step, key.index, str(value), int(gradient)), tensor)
        if found is None:
            return None
        seconds, count = monotonic() - begin, self._encoded.get((value, gradient), 0)
        self._encoded[value, gradient] = count + 1
        array = to_array(tensor, copy=True) if count % _MEASURED == 0 else None
        return EncodedValue(meta=found[0], payload=found[1], seconds=seconds, array=array)
