"""What replicas exchange through a codec with memory: the parameters of one exchange, and the registers that it leaves behind.

Sparse codecs choose among all elements of an exchange, so its arrays travel as one, the elements of each in C order one after the
other; others take array by array, because rows and blocks belong to one. What is remembered is kept by array either way, so it
follows a parameter into checkpoints and to another stage. A receiver of ``difference`` and ``econtrol`` adds what arrives to
what it has of that member.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import prod
from typing import Protocol

import numpy as np

from farflung.codecs.base import Array, Codec, Payload, foretold_bytes
from farflung.codecs.codec_strings import read_codec, read_memory
from farflung.codecs.dense import HEAD_BYTES
from farflung.codecs.low_rank.apportion import apportioned
from farflung.codecs.low_rank.lowrank import LowRank
from farflung.codecs.memory import Difference, ErrorControl, warm_up_ratio
from farflung.codecs.sparse.randomk import RandomK
from farflung.codecs.sparse.topk import TopK
from farflung.errors import CodecError

__all__ = ["PREFIX", "Exchanged", "Remembered", "coded_bytes", "shaped"]

#: What registers of what is remembered are called: ``memory.<part>``, of another member ``memory.held:<rank>``.
PREFIX = "memory."


class Exchanged(Protocol):
    """What is said of an exchange (``farflung.sync.Exchange``)."""

    @property
    def tag(self) -> str:
        """Its name."""

    @property
    def codec(self) -> str:
        """As ``read_codec`` takes it."""

    @property
    def memory(self) -> str:
        """As ``read_memory`` takes it."""

    @property
    def warm(self) -> tuple[int, int]:
        """Step and steps of the codec's warm-up."""


@dataclass(slots=True)
class Remembered:
    """What one member keeps between exchanges: register -> array name -> array. Names are those of what is exchanged."""

    registers: dict[str, dict[str, Array]] = field(default_factory=dict)
    #: Tags of exchanges under way whose values are differences.
    _differences: set[str] = field(default_factory=set)

    def encode(self, exchange: Exchanged, arrays: Mapping[str, Array], *key: int | str) -> list[Payload]:
        """The payloads of ``arrays``: one for all (sparse codecs), or one for each.

        Raises:
            InputError: codec or memory is unknown.
        """
        codec = _warmed(read_codec(exchange.codec), *exchange.warm)
        memory = read_memory(exchange.memory, codec)
        if isinstance(memory, Difference | ErrorControl):
            self._differences.add(exchange.tag)
        if not isinstance(codec, TopK | RandomK):
            found, codecs = [], apportioned(codec, arrays)
            for name, array in arrays.items():
                memory = read_memory(exchange.memory, codecs[name])
                state = {part: held[name] for part, held in self._parts().items() if name in held}
                payload, after = memory.encode(array, state, *key, name)
                self._keep({part: {name: value} for part, value in after.items()})
                found.append(payload)
            return found
        together = np.concatenate([array.reshape(-1) for array in arrays.values()])
        state = {
            part: np.concatenate([held[name].reshape(-1) for name in arrays])
            for part, held in self._parts().items()
            if all(name in held for name in arrays)
        }
        payload, after = memory.encode(together, state, *key)
        self._keep({part: dict(zip(arrays, shaped([value], arrays.values()), strict=True)) for part, value in after.items()})
        return [payload]

    def arrived(self, tag: str, rank: int, arrays: Mapping[str, Array]) -> Mapping[str, Array]:
        """The values that member ``rank`` sent, from what was decoded."""
        if tag not in self._differences:
            return arrays
        held = self.registers.setdefault(f"{PREFIX}held:{rank}", {})
        for name, array in arrays.items():
            wide = array.astype(np.float64 if array.dtype == np.float64 else np.float32)
            held[name] = held[name] + wide if name in held else wide
        return {name: held[name].astype(array.dtype) for name, array in arrays.items()}

    def arrives(self, tag: str, arrays: Mapping[str, Array]) -> Mapping[str, Array]:
        """The values that the others will have of what was just encoded here, from what they decode; nothing changes."""
        held = self.registers.get(f"{PREFIX}held", {})
        return {name: held[name] for name in arrays} if tag in self._differences and held.keys() >= arrays.keys() else arrays

    def done(self, tag: str) -> None:
        """All values of ``tag`` have been taken."""
        self._differences.discard(tag)

    def begun(self, tag: str, memory: str) -> None:
        """``tag`` was under way when the states of a checkpoint were written."""
        if memory.partition(":")[0] in ("difference", "econtrol"):
            self._differences.add(tag)

    def _parts(self) -> dict[str, dict[str, Array]]:
        """Registers of the member itself."""
        return {name.removeprefix(PREFIX): held for name, held in self.registers.items() if _own(name)}

    def _keep(self, parts: Mapping[str, Mapping[str, Array]]) -> None:
        for part, arrays in parts.items():
            self.registers.setdefault(PREFIX + part, {}).update(arrays)


def coded_bytes(codec: str, shapes: Iterable[tuple[int, ...]]) -> float:
    """Expected bytes of an exchange of float32 arrays of these shapes, after ``codec`` (as ``read_codec`` takes it); heads of
    payloads, which many arrays share a frame's for, are left out.

    Raises:
        InputError: the codec is unknown.
    """
    several, found = [shape for shape in shapes if prod(shape)], read_codec(codec)
    numel = sum(map(prod, several))
    if isinstance(found, LowRank) and found.ratio > 1.0:
        return 4.0 * numel / found.ratio  # what ``apportioned`` gives out, however it is cut into matrices
    together = isinstance(found, TopK | RandomK)
    return sum(_wire_bytes(codec, shape) for shape in ([(numel,)] if together and several else several))


@lru_cache(maxsize=65536)
def _wire_bytes(codec: str, shape: tuple[int, ...]) -> float:
    found = read_codec(codec)
    if isinstance(found, LowRank):
        return found.section_bytes(shape, 4)
    return max(0.0, foretold_bytes(found, shape, 4) - HEAD_BYTES)


def shaped(arrays: Sequence[Array], like: Iterable[Array]) -> list[Array]:
    """``arrays`` in the shapes of ``like``; one array may hold all of them, one after the other.

    Raises:
        CodecError: it doesn't.
    """
    wanted = list(like)
    if len(arrays) != 1 or (len(wanted) == 1 and arrays[0].shape == wanted[0].shape):
        return list(arrays)
    sizes = [array.size for array in wanted]
    if arrays[0].size != sum(sizes):
        raise CodecError(f"an exchange of {sum(sizes)} elements came with {arrays[0].size}")
    parts = np.split(arrays[0].reshape(-1), np.cumsum(sizes)[:-1])
    return [part.reshape(array.shape) for part, array in zip(parts, wanted, strict=True)]


def _own(register: str) -> bool:
    return register.startswith(PREFIX) and ":" not in register


def _warmed(codec: Codec, step: int, steps: int) -> Codec:
    """``codec`` at ``step`` of a warm-up of its ratio."""
    if step < steps and isinstance(codec, TopK | RandomK):
        return replace(codec, ratio=warm_up_ratio(step, steps, codec.ratio))
    return codec
