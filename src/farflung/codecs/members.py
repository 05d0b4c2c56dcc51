"""The codecs by name, and the decoder that takes the codec from the payload."""

from __future__ import annotations

import inspect
from collections.abc import Callable

from farflung.codecs.base import Array, Codec, Payload
from farflung.codecs.dense import Cast, Identity
from farflung.codecs.low_rank.lowrank import LowRank
from farflung.codecs.quantization.quantized import BlockQuantized
from farflung.codecs.sparse.randomk import RandomK
from farflung.codecs.sparse.topk import TopK
from farflung.errors import CodecError, InputError
from farflung.known_names import known_names
from farflung.registry import Registry

__all__ = ["CODECS", "decode_payload", "get_codec", "on_devices"]

#: Codecs by name; a member is a callable that takes the codec's parameters (all with defaults).
CODECS: Registry[Callable[..., Codec]] = Registry("codec", "codecs")


def get_codec(name: str, /, **params: object) -> Codec:
    """The codec called ``name`` with ``params``, e.g. ``get_codec("topk", ratio=100)``.

    Raises:
        InputError: no codec has that name (the text lists them), it has no such parameter (the text lists them), or a value
            is out of range; or the package that brings it is broken.
    """
    factory = CODECS.get(name)
    with CODECS.blame(name, "is no callable with named parameters"):
        known = inspect.signature(factory).parameters
    unknown = [key for key in params if key not in known]
    if unknown:
        raise InputError(f"codec {name!r} has no parameter {unknown[0]!r}: {known_names(unknown[0], known)}")
    with CODECS.blame(name, "can't be made"):
        return factory(**params)


def on_devices(codec: Codec) -> bool:
    """Whether an engine can encode by ``codec`` on any device, with the bytes of NumPy."""
    return isinstance(codec, BlockQuantized | TopK) and codec.exact


def decode_payload(payload: Payload) -> Array:
    """Decode ``payload`` with the codec that it names.

    Raises:
        CodecError: no codec has that name, or the payload is malformed, or a plug-in failed.
    """
    if payload.codec not in CODECS:
        raise CodecError(f"bad payload: unknown codec {payload.codec!r:.40}; known are {', '.join(CODECS)}")
    with CODECS.blame(payload.codec, "can't decode a payload", CodecError):
        return CODECS.get(payload.codec)().decode(payload)


def _fp16() -> Codec:
    return Cast(dtype="float16")


def _bf16() -> Codec:
    return Cast(dtype="bfloat16")


def _int8(block: int | str = 256, rounding: str = "nearest", rotate: bool = False, seed: int = 0) -> Codec:
    return BlockQuantized(bits=8, block=block, rounding=rounding, rotate=rotate, seed=seed)


def _int4(block: int | str = 128, rounding: str = "nearest", rotate: bool = False, seed: int = 0) -> Codec:
    return BlockQuantized(bits=4, block=block, rounding=rounding, rotate=rotate, seed=seed)


def _int2(block: int | str = 256, rounding: str = "nearest", rotate: bool = False, seed: int = 0) -> Codec:
    return BlockQuantized(bits=2, block=block, rounding=rounding, rotate=rotate, seed=seed)


def _sign(block: int | str = 1024) -> Codec:
    return BlockQuantized(bits=1, block=block)


CODECS.add("lowrank", lambda: LowRank)
CODECS.add("identity", lambda: Identity)
CODECS.add("cast", lambda: Cast)
CODECS.add("fp16", lambda: _fp16)
CODECS.add("bf16", lambda: _bf16)
CODECS.add("topk", lambda: TopK)
CODECS.add("randomk", lambda: RandomK)
CODECS.add("quantized", lambda: BlockQuantized)
CODECS.add("int8", lambda: _int8)
CODECS.add("int4", lambda: _int4)
CODECS.add("int2", lambda: _int2)
CODECS.add("sign", lambda: _sign)
