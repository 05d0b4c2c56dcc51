"""``auto``: for each link and direction the codec with which values arrive soonest, among those of limited error.

A codec that would take longer (encode, send, decode) than sending plainly is never taken, so fast links stay dense. Each link
has the job's limit for itself. A budget over all links (L-GreCo's, ``codecs.choice.allocate``) was tried: it spends the error
that fast links leave on slow ones, and a byte-level GPT then lost more than with four bits on every link
(docs/decisions/0011-codec-memory.md).

How much error a direction bears follows from ``benchmarks loss-study``, as a multiple of the job's ``error``, which is for
values on their way forward in training from scratch (``bearable``): gradients that go back bear a fifth more; in fine-tuning they
bear three times as much, and so do differences of samples that come again, because an error there is one of the difference and
not of the value. (Unbiased codecs were let have twice the error on the way back: three bits, rounded stochastically, then cost
2.6 % of the loss from scratch, and rounded to nearest, with half the error, 1.5 %, mean of three seeds.)

A plan is made before there are values, so errors are those of heavy-tailed numbers (Student's t, 3 degrees of freedom), computed
here, and seconds per element are twice those of ``benchmarks codecs`` (docs/results/codecs.json), one thread of one machine.
Candidates are rotated quantization, whose error depends least on the values, then sparse codecs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from farflung.codecs import get_codec
from farflung.codecs.choice import relative_error
from farflung.errors import InputError
from farflung.graph.ir import TensorSpec
from farflung.plan.model import CodecChoice
from farflung.plan.traffic import wire_bytes
from farflung.units import Seconds

__all__ = ["CANDIDATES", "Candidate", "Flow", "allocate_codecs", "typical_error", "why"]

_SAMPLE = 1 << 15


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A codec, and the seconds that both ends take for each element."""

    choice: CodecChoice
    seconds_per_element: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """What goes one way over one link in a micro-batch: the tensors, and the link's latency and rate.

    ``backward``: gradients. ``tuning``: the model is fine-tuned. ``memory``: what the ends remember (``CodecChoice.memory``).
    """

    tensors: tuple[TensorSpec, ...]
    latency: float
    bytes_per_second: float
    backward: bool = False
    tuning: bool = False
    memory: str = ""

    def seconds(self, candidate: Candidate) -> float:
        """Encode, send and decode all tensors, one after the other."""
        nbytes = sum(wire_bytes(candidate.choice, spec) for spec in self.tensors)
        elements = sum(spec.numel for spec in self.tensors if spec.floating)
        lossy = candidate.choice != CodecChoice()
        each = candidate.seconds_per_element + (_REMEMBERING if self.memory and lossy else 0.0)
        return self.latency + nbytes / self.bytes_per_second + elements * each

    def bearable(self, error: float) -> float:
        """How large the relative error of a codec may be there, where ``error`` is the job's."""
        if self.tuning and (self.backward or self.memory == "difference"):
            return _TUNED * error
        return _BACK * error if self.backward else error


#: See the head. Three bits have a typical error of 0.21, one bit has 0.6, and the default of ``error`` is 0.2.
_BACK, _TUNED = 1.2, 3.0
#: Seconds for each element at both ends to look up, add and keep what is remembered.
_REMEMBERING = 40e-9


def _quantized(bits: int, nanoseconds: float, block: int = 256, **params: str) -> Candidate:
    settings: tuple[tuple[str, float | int | str], ...] = (("bits", bits), ("block", block), ("rotate", 1), *params.items())
    return Candidate(
        choice=CodecChoice(name="quantized", params=settings),
        seconds_per_element=nanoseconds * 1e-9,
    )


def _sparse(ratio: float, nanoseconds: float) -> Candidate:
    params = (("ratio", ratio), ("values", "int8"))
    return Candidate(choice=CodecChoice(name="topk", params=params), seconds_per_element=nanoseconds * 1e-9)


#: The first is plain.
CANDIDATES: tuple[Candidate, ...] = (
    Candidate(choice=CodecChoice(), seconds_per_element=0.0),
    Candidate(choice=CodecChoice(name="bf16"), seconds_per_element=3.1e-9),
    Candidate(choice=CodecChoice(name="int8"), seconds_per_element=6.2e-9),
    _quantized(8, 40.0),
    _quantized(4, 40.0, scale="normal"),
    _quantized(3, 40.0, scale="normal"),
    _quantized(2, 70.0),
    _quantized(1, 65.0, block=1024),
    _sparse(30.0, 8.0),
    _sparse(100.0, 4.0),
    _sparse(1000.0, 2.5),
)


def allocate_codecs(flows: Sequence[Flow], error: float, candidates: Sequence[Candidate] = CANDIDATES) -> tuple[CodecChoice, ...]:
    """The codec of each flow, with a typical error that it bears where the job's limit is ``error``.

    Raises:
        InputError: the error is negative, or a link has no bandwidth.
    """
    if not error >= 0:
        raise InputError(f"the largest error of a codec must not be negative, got {error!r}")
    return tuple(_soonest(flow, error, candidates) for flow in flows)


def _soonest(flow: Flow, error: float, candidates: Sequence[Candidate]) -> CodecChoice:
    """Differences are remembered where that is sooner; a job that wants errors fed back has that with every lossy codec."""
    forgetful = [replace(flow, memory="")] if flow.memory == "difference" else []
    ways = [(way, one) for way in (flow, *forgetful) for one in candidates if typical_error(one.choice) <= way.bearable(error)]
    way, chosen = min(ways, key=lambda pair: pair[0].seconds(pair[1]))
    return chosen.choice if chosen.choice == CodecChoice() else replace(chosen.choice, memory=way.memory)


def why(flow: Flow, error: float, choice: CodecChoice) -> str:
    """What speaks for ``choice``, for people."""
    found = {one.choice: one for one in CANDIDATES}[replace(choice, memory="")]
    flow = flow if found is CANDIDATES[0] else replace(flow, memory=choice.memory)
    most = flow.bearable(error)
    plain, seconds = (Seconds(flow.seconds(one)) for one in (CANDIDATES[0], found))
    if found is CANDIDATES[0]:
        return f"no codec, {plain}; no codec with an error of at most {most:.2g} is faster, including encoding and decoding"
    typical = typical_error(found.choice)
    return f"{choice} in {seconds} (without codec {plain}); typical error {typical:.2g}, at most {most:.2g} allowed"


@lru_cache(maxsize=256)
def typical_error(choice: CodecChoice) -> float:
    """The relative error (2-norm) of a codec on heavy-tailed numbers."""
    if choice.name == "identity":
        return 0.0
    array = np.random.default_rng(0).standard_t(3, _SAMPLE).astype(np.float32)
    codec = get_codec(choice.name, **dict(choice.params))
    return relative_error(array, codec.decode(codec.encode(array)))
