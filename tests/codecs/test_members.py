"""Every codec passes the public conformance kit, and the kit notices codecs that break a rule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest

from farflung.codecs import CODECS, Codec, Payload, get_codec
from farflung.codecs.base import Array
from farflung.errors import CodecError
from farflung.testing.codecs import check_codec

SETTINGS: list[tuple[str, dict[str, object]]] = [
    *((name, {}) for name in CODECS),
    ("topk", {"ratio": 1}),
    ("topk", {"ratio": 1.5}),
    ("topk", {"ratio": 3, "values": "bfloat16"}),
    ("topk", {"ratio": 10, "values": "float16"}),
    ("topk", {"ratio": 1000}),
    ("topk", {"ratio": 100, "format": "paper"}),
    ("topk", {"ratio": 5, "format": "paper", "values": "float16"}),
    ("topk", {"ratio": 20, "selection": "blocks", "values": "int8"}),
    ("topk", {"ratio": 20, "selection": "sampled", "values": "int4"}),
    ("topk", {"ratio": 50, "format": "paper", "values": "int8"}),
    ("randomk", {"ratio": 10, "values": "int8", "seed": 7}),
    ("randomk", {"ratio": 3, "scaled": False, "values": "float16"}),
    ("quantized", {"bits": 3, "rotate": True}),
    ("quantized", {"bits": 1, "rounding": "stochastic", "block": 64}),
    ("quantized", {"bits": 2, "block": "row"}),
    ("int8", {"block": 64, "rounding": "stochastic"}),
    ("int4", {"block": "row", "rotate": True, "rounding": "stochastic"}),
    ("int4", {"block": 2}),
    ("quantized", {"bits": 3, "rotate": True, "scale": "normal"}),
    ("quantized", {"bits": 4, "scale": "normal", "rounding": "stochastic"}),
    ("lowrank", {}),
    ("lowrank", {"rank": 2, "values": "int4"}),
    ("lowrank", {"rank": 3, "values": "int8"}),
    ("lowrank", {"rank": 16, "values": "int4", "ratio": 100}),
    ("lowrank", {"rank": 8, "ratio": 10}),
]


@pytest.mark.parametrize(("name", "params"), SETTINGS, ids=[f"{name}-{params}" for name, params in SETTINGS])
def test_members_conform(name: str, params: dict[str, object]) -> None:
    check_codec(get_codec(name, **params), size=20_000)


@dataclass
class Broken:
    """A codec with one fault around a good one."""

    inner: Codec
    on_encode: Callable[[Array, Payload], Payload] = lambda array, payload: payload
    on_decode: Callable[[Array], Array] = lambda array: array
    scale: float = 1.0
    bound: float = 1.0

    @property
    def name(self) -> str:
        return self.inner.name

    @property
    def lossless(self) -> bool:
        return self.inner.lossless

    def encode(self, array: Array) -> Payload:
        return self.on_encode(array, self.inner.encode(array))

    def decode(self, payload: Payload) -> Array:
        return self.on_decode(self.inner.decode(payload))

    def wire_bytes(self, numel: int, itemsize: int) -> float:
        return self.scale * self.inner.wire_bytes(numel, itemsize)

    def error_bound(self, shape: tuple[int, ...]) -> float:
        return self.bound * self.inner.error_bound(shape)


def modify(array: Array, payload: Payload) -> Payload:
    if array.flags.writeable and array.size:
        array.reshape(-1)[0] += np.ones((), array.dtype)
    return payload


counter = iter(range(10**9))

FAULTS: list[tuple[Broken, str]] = [
    (Broken(get_codec("topk"), on_encode=modify), "encode modified the array"),
    (Broken(get_codec("identity"), on_encode=lambda _, p: replace(p, fields={"n": next(counter)})), "different bytes"),
    (Broken(get_codec("identity"), on_decode=lambda a: a.reshape(-1)), "came back as"),
    (Broken(get_codec("identity"), on_decode=np.zeros_like), "decodes differently"),
    (Broken(get_codec("topk"), scale=0.5), "wire_bytes says"),
    (Broken(get_codec("lowrank")), r"of 4 x 32 x 32: wire_bytes says 2192, the payload takes 26"),
    (Broken(get_codec("int8"), bound=0.1), "error_bound says"),
    (Broken(get_codec("identity"), on_encode=lambda _, p: replace(p, fields={"pad": bytes(300)})), "dense ones"),
]


@pytest.mark.parametrize(("codec", "text"), FAULTS, ids=[text for _, text in FAULTS])
def test_the_kit_notices_faults(codec: Broken, text: str) -> None:
    with pytest.raises(AssertionError, match=text):
        check_codec(codec, size=20_000)


def test_the_kit_notices_other_exceptions() -> None:
    def explode(array: Array) -> Array:
        if array.size == 1 << 20:
            raise ValueError("boom")
        return array

    with pytest.raises(ValueError, match="boom"):
        check_codec(Broken(get_codec("topk", ratio=10), on_decode=explode), size=20_000)


def test_a_codec_refuses_payloads_of_others() -> None:
    payload = get_codec("topk", ratio=10).encode(np.arange(1000, dtype=np.float32))
    for name, text in [("identity", "identity can't decode"), ("fp16", "cast can't decode"), ("int8", "quantized can't decode")]:
        with pytest.raises(CodecError, match=f"{text} a payload of 'topk'; take the codec that the payload names"):
            get_codec(name).decode(payload)
    with pytest.raises(CodecError, match="topk can't decode a payload of 'quantized'"):
        get_codec("topk").decode(get_codec("int8").encode(np.arange(1000, dtype=np.float32)))
