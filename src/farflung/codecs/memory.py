"""Memory of what was dropped: codecs with a state that goes in and comes out, as arrays, at the sender and at the receiver.

``encode(array, state)`` gives the payload and the sender's next state, ``decode(payload, state)`` the array and the receiver's. A
state is a map of named arrays; an empty one is the beginning. Nothing is kept inside: whoever holds the states (one for each
value and direction) writes them into checkpoints as they are, or drops them, which loses what they remember and nothing else. If
one end of ``difference`` or ``econtrol`` begins anew, the other must too. A state with arrays of another shape counts as empty.

- ``none`` remembers nothing (``lowrank`` starts warm).
- ``error_feedback``: the sender keeps what was dropped. F. Seide et al., "1-bit SGD", 2014; S. P. Karimireddy et al., "Error
  Feedback Fixes SignSGD", 2019, Algorithm 2.
- ``difference``: both ends keep what the receiver has. P. Richtarik et al., "EF21", 2021; with a state for each sample, for its
  activations: J. Wang et al., "AQ-SGD", 2022.
- ``econtrol``: both, and the error is fed back by a share. Y. Gao et al., "EControl", 2023, Algorithm 2.
- ``dgc``: the sender keeps momentum and what was not sent of it. Y. Lin et al., "Deep Gradient Compression", 2018.

Differences: ``dgc`` takes what was sent off what waits, where the paper clears it, because values may travel in few bits.
``difference`` and ``econtrol`` send the first array by ``first`` (float16), as AQ-SGD sends its first visit, so that they don't
begin from zero. A NaN or an infinity is sent and not remembered. With ``lowrank`` both ends compute a matrix product, and hold
the same bits only on machines of one kind. Cost: one decode and two to four passes more than the codec, and one or two arrays
of float32 (float64 for float64 elements) for each value.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from farflung.codecs.base import FLOATING, Array, Codec, Payload, is_number
from farflung.codecs.dense import Cast
from farflung.codecs.keys import keyed
from farflung.codecs.low_rank.lowrank import LowRank
from farflung.codecs.members import decode_payload
from farflung.errors import InputError
from farflung.known_names import known_names
from farflung.registry import Registry

__all__ = [
    "MEMORIES",
    "DeepGradient",
    "Difference",
    "ErrorControl",
    "ErrorFeedback",
    "Forgetful",
    "Memory",
    "State",
    "get_memory",
    "warm_up_ratio",
]

#: Named arrays; the empty map is the state before the first message.
State = Mapping[str, Array]
_EMPTY: State = {}
_quiet = np.errstate(over="ignore", invalid="ignore")


class Memory(Protocol):
    """A codec with memory for one value in one direction. ``key`` names the message to codecs that draw (``keys.keyed``)."""

    def encode(self, array: Array, state: State, *key: int | str) -> tuple[Payload, State]:
        """The payload of ``array`` and the sender's state after it; ``array`` and ``state`` stay as they are.

        Raises:
            CodecError: the element type is not in the table.
        """

    def decode(self, payload: Payload, state: State) -> tuple[Array, State]:
        """The array and the receiver's state after it.

        Raises:
            CodecError: the payload is malformed.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Forgetful:
    """``codec`` alone; of ``lowrank`` the right factor is remembered (warm start)."""

    codec: Codec

    @_quiet
    def encode(self, array: Array, state: State, *key: int | str) -> tuple[Payload, State]:
        """See ``Memory``."""
        codec = keyed(self.codec, *key)
        if isinstance(codec, LowRank):
            payload, right = codec.encode_from(array, state.get("right"))
            return payload, _EMPTY if right is None else {"right": right}
        return codec.encode(array), _EMPTY

    def decode(self, payload: Payload, state: State) -> tuple[Array, State]:
        """See ``Memory``."""
        return decode_payload(payload), _EMPTY


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorFeedback:
    """p = x + e is sent; e = p - what arrives. ``decay`` less than 1 forgets old errors."""

    codec: Codec
    decay: float = 1.0

    def __post_init__(self) -> None:
        _check_share("error_feedback", "decay", self.decay)

    @_quiet
    def encode(self, array: Array, state: State, *key: int | str) -> tuple[Payload, State]:
        """See ``Memory``."""
        inner = Forgetful(codec=self.codec)
        if array.dtype.name not in FLOATING:
            return inner.encode(array, _EMPTY, *key)[0], state
        wanted = _wide(array) + np.asarray(self.decay, _wide_dtype(array)) * _part(state, "error", array)
        payload, further = inner.encode(_narrow(wanted, array), state, *key)
        return payload, {**further, "error": _remember(wanted - _wide(decode_payload(payload)))}

    def decode(self, payload: Payload, state: State) -> tuple[Array, State]:
        """See ``Memory``."""
        return decode_payload(payload), _EMPTY


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """d = x - h is sent; both ends add what arrives to h, which is the receiver's array."""

    codec: Codec
    first: Codec = field(default_factory=lambda: Cast(dtype="float16"))

    @_quiet
    def encode(self, array: Array, state: State, *key: int | str) -> tuple[Payload, State]:
        """See ``Memory``."""
        if array.dtype.name not in FLOATING:
            return self.first.encode(array), state
        if not _fits(state, "held", array):
            payload = self.first.encode(array)
            return payload, {"held": _remember(_wide(decode_payload(payload)))}
        held = state["held"]
        payload = keyed(self.codec, *key).encode(_narrow(_wide(array) - held, array))
        return payload, {"held": _remember(held + _wide(decode_payload(payload)))}

    def decode(self, payload: Payload, state: State) -> tuple[Array, State]:
        """See ``Memory``."""
        return _add_to_held(payload, state)


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorControl:
    """d = C(eta e + x - h) is sent; h += d at both ends; e += x - h. ``eta``: how strongly the error is fed back."""

    codec: Codec
    eta: float = 0.1
    first: Codec = field(default_factory=lambda: Cast(dtype="float16"))

    def __post_init__(self) -> None:
        _check_share("econtrol", "eta", self.eta)

    @_quiet
    def encode(self, array: Array, state: State, *key: int | str) -> tuple[Payload, State]:
        """See ``Memory``."""
        if array.dtype.name not in FLOATING:
            return self.first.encode(array), state
        wide = _wide(array)
        if not _fits(state, "held", array):
            payload = self.first.encode(array)
            held = _remember(_wide(decode_payload(payload)))
            return payload, {"held": held, "error": _remember(wide - held)}
        error = _part(state, "error", array)
        wanted = np.asarray(self.eta, wide.dtype) * error + wide - state["held"]
        payload = keyed(self.codec, *key).encode(_narrow(wanted, array))
        held = _remember(state["held"] + _wide(decode_payload(payload)))
        return payload, {"held": held, "error": _remember(error + wide - held)}

    def decode(self, payload: Payload, state: State) -> tuple[Array, State]:
        """See ``Memory``."""
        return _add_to_held(payload, state)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepGradient:
    """u = m u + clip(x); v += u is sent; what was sent leaves v, and u where it was sent. ``clip``: the largest 2-norm of x
    (0: no limit; with N replicas the paper takes the job's limit / sqrt(N))."""

    codec: Codec
    momentum: float = 0.9
    clip: float = 0.0

    def __post_init__(self) -> None:
        _check_share("dgc", "momentum", self.momentum)
        if not 0.0 <= self.clip < float("inf"):
            raise InputError(f"memory 'dgc' needs a clip of at least 0, got {self.clip!r}")

    @_quiet
    def encode(self, array: Array, state: State, *key: int | str) -> tuple[Payload, State]:
        """See ``Memory``."""
        inner = Forgetful(codec=self.codec)
        if array.dtype.name not in FLOATING:
            return inner.encode(array, _EMPTY, *key)[0], state
        wide = _wide(array)
        norm = float(np.linalg.norm(wide.reshape(-1)))
        if self.clip and norm > self.clip:
            wide = wide * np.asarray(self.clip / norm, wide.dtype)
        velocity = np.asarray(self.momentum, wide.dtype) * _part(state, "velocity", array) + wide
        waiting = _part(state, "waiting", array) + velocity
        payload, further = inner.encode(_narrow(waiting, array), state, *key)
        sent = _wide(decode_payload(payload))
        return payload, {
            **further,
            "velocity": _remember(np.where(sent != 0, 0, velocity)),
            "waiting": _remember(waiting - sent),
        }

    def decode(self, payload: Payload, state: State) -> tuple[Array, State]:
        """See ``Memory``."""
        return decode_payload(payload), _EMPTY


def warm_up_ratio(step: int, steps: int, ratio: float) -> float:
    """DGC's warm-up: the ratio of ``step`` (from 0), growing exponentially from about 4 to ``ratio`` over ``steps`` steps.

    Raises:
        InputError: a negative step, or a ratio below 1.
    """
    if step < 0 or steps < 0 or not 1.0 <= ratio < float("inf"):
        raise InputError(f"a warm-up needs steps from 0 and a ratio of at least 1, got {step}, {steps} and {ratio!r}")
    if step >= steps:
        return ratio
    begin = min(4.0, ratio)
    return float(begin * (ratio / begin) ** (step / steps))


#: Memories by name; a member is a callable that takes the codec and its parameters.
MEMORIES: Registry[Callable[..., Memory]] = Registry("memory", "memories")
MEMORIES.add("none", lambda: Forgetful)
MEMORIES.add("error_feedback", lambda: ErrorFeedback)
MEMORIES.add("difference", lambda: Difference)
MEMORIES.add("econtrol", lambda: ErrorControl)
MEMORIES.add("dgc", lambda: DeepGradient)


def get_memory(name: str, /, codec: Codec, **params: object) -> Memory:
    """The memory called ``name`` around ``codec``, e.g. ``get_memory("dgc", get_codec("topk"), momentum=0.9)``.

    Raises:
        InputError: no memory has that name (the text lists them), or it has no such parameter, or a value is out of range.
    """
    factory = MEMORIES.get(name)
    known = [key for key in inspect.signature(factory).parameters if key != "codec"]
    unknown = [key for key in params if key not in known]
    if unknown:
        raise InputError(f"memory {name!r} has no parameter {unknown[0]!r}: {known_names(unknown[0], known)}")
    return factory(codec=codec, **params)


@_quiet
def _add_to_held(payload: Payload, state: State) -> tuple[Array, State]:
    """The receiver's side of ``difference`` and ``econtrol``: the same sum as the sender's, to the bit."""
    array = decode_payload(payload)
    if array.dtype.name not in FLOATING:
        return array, state
    held = _wide(array)
    if _fits(state, "held", array):
        held = state["held"] + held
    return _narrow(held, array), {"held": _remember(held)}


def _wide_dtype(array: Array) -> np.dtype[np.floating]:
    return np.dtype(np.float64 if array.dtype == np.float64 else np.float32)


def _wide(array: Array) -> Array:
    wide: Array = array.astype(_wide_dtype(array))
    return wide


def _narrow(wide: Array, like: Array) -> Array:
    with np.errstate(over="ignore"):
        narrow: Array = wide.astype(like.dtype, copy=False)
    return narrow


def _fits(state: State, name: str, array: Array) -> bool:
    part = state.get(name)
    return part is not None and part.shape == array.shape and part.dtype == _wide_dtype(array)


def _part(state: State, name: str, array: Array) -> Array:
    return state[name] if _fits(state, name, array) else np.zeros(array.shape, _wide_dtype(array))


def _remember(array: Array) -> Array:
    """``array`` with zeros in place of what is not finite, so that a NaN does not stay for ever."""
    bad = ~np.isfinite(array)
    return np.where(bad, np.asarray(0, array.dtype), array) if bad.any() else array


def _check_share(name: str, parameter: str, value: float) -> None:
    if not is_number(value) or not 0.0 <= value <= 1.0:
        raise InputError(f"memory {name!r} needs {parameter} from 0 to 1, got {value!r}")
