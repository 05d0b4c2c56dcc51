"""What a simulation can be told beside plan and topology: steps, randomness, the runtime's queues, codecs' speeds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from farflung.errors import InputError

__all__ = ["CODEC_SPEEDS", "CodecSpeed", "Jitter", "SimulationSettings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CodecSpeed:
    """Dense bytes per second that a codec encodes and decodes on one thread (infinite: it takes no time)."""

    encode: float
    decode: float


#: Dense bytes per second of the NumPy codecs on 4 MB of float32, as ``benchmarks simulator`` measures them.
CODEC_SPEEDS: Mapping[str, CodecSpeed] = MappingProxyType(
    {
        "identity": CodecSpeed(encode=8e9, decode=8e9),
        "fp16": CodecSpeed(encode=0.5e9, decode=0.5e9),
        "bf16": CodecSpeed(encode=3e9, decode=10e9),
        "int8": CodecSpeed(encode=2.5e9, decode=8e9),
        "topk": CodecSpeed(encode=2.5e9, decode=10e9),
    }
)
#: For a codec without an entry above.
_OTHER = CodecSpeed(encode=0.3e9, decode=0.5e9)


@dataclass(frozen=True, slots=True, kw_only=True)
class Jitter:
    """Random factors, lognormal with median 1: ``compute`` and ``link`` are the standard deviations of their logarithms."""

    compute: float = 0.0
    link: float = 0.0

    def __post_init__(self) -> None:
        for name, value in (("compute", self.compute), ("link", self.link)):
            if not 0 <= value <= 5:
                raise InputError(f"jitter of {name} must be from 0 (none) to 5, got {value}; 0.1 means about 10 %")


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationSettings:
    """``steps``: optimizer steps in a row. ``spans``: keep what happened when (a trace). ``seed``: of all random draws.

    ``queue``: frames that wait for one peer before the computing thread blocks (``step.transfer.outbox``). ``window``: frames on
    their way to one peer before the sending thread blocks (``transports.config``). ``frame_bytes``: head of a frame on the wire.
    ``codecs``: codec -> speed.
    """

    steps: int = 1
    spans: bool = False
    seed: int = 0
    jitter: Jitter = field(default_factory=Jitter)
    queue: int = 6
    window: int = 4
    frame_bytes: float = 300.0
    codecs: Mapping[str, CodecSpeed] = field(default_factory=lambda: CODEC_SPEEDS)

    def __post_init__(self) -> None:
        for name, value in (("steps", self.steps), ("queue", self.queue), ("window", self.window)):
            if not 1 <= value <= 1_000_000:
                raise InputError(f"simulation setting {name} must be from 1 to 1000000, got {value}")

    def codec(self, name: str) -> CodecSpeed:
        """The speed of the codec called ``name``."""
        return self.codecs.get(name, _OTHER)
