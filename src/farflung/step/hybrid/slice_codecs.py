"""The codecs of values that a server and its helpers send each other.

A value goes to and from a helper in the codec of its links between stages. The device that computes a slice must change no bit.
So a value is encoded only where the codec loses nothing more:

- to a helper: decoding gives the same bits. The value has already passed the codec on its way to the server.
- from a helper: encoding the decoded value gives the same bytes. The server then sends what it would send of its own slice.

Other values go as they are: those between stages of one device, and those whose links have different codecs.
Cost: the sender decodes each value once, and encodes a value for its server twice.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from farflung.codecs import get_codec, keyed
from farflung.codecs.base import Codec
from farflung.engines.base import Array
from farflung.graph.cut import Edge
from farflung.messages.arrays import PackedArray, decode_array, encode_array
from farflung.plan.model import CodecChoice
from farflung.protocol.pool.pool_events import Task
from farflung.step.run_setup import RunSetup

__all__ = ["SliceCodecs"]

#: The size of what this process has encoded needs no limit.
_NO_LIMIT = 1 << 62


@dataclass(frozen=True, slots=True)
class SliceCodecs:
    """The codecs of the slices of one run."""

    setup: RunSetup

    def for_helper(self, task: Task, edges: Iterable[Edge], array: Array, *, gradient: bool) -> PackedArray:
        """Pack ``array`` for a helper. It came to the server over ``edges``, or is the gradient of their value."""
        codec = self._codec(task, edges, gradient=gradient)
        packed = encode_array(array, codec)
        if codec is None or _bits(decode_array(packed, _NO_LIMIT)) == _bits(array):
            return packed
        return encode_array(array, None)

    def for_server(self, task: Task, edges: Iterable[Edge], array: Array, *, gradient: bool) -> PackedArray:
        """Pack ``array`` for the server, which sends it over ``edges``."""
        codec = self._codec(task, edges, gradient=gradient)
        packed = encode_array(array, codec)
        if codec is None or _same(encode_array(decode_array(packed, _NO_LIMIT), codec), packed):
            return packed
        return encode_array(array, None)

    def _codec(self, task: Task, edges: Iterable[Edge], *, gradient: bool) -> Codec | None:
        """Return the one lossy codec of all ``edges``, keyed as the stages key it (None: there is none)."""
        plan, places = self.setup.plan, self.setup.places
        choices: set[CodecChoice | None] = set()
        value = ""
        for edge in edges:
            link, value = plan.link.get((edge.source, edge.target)), str(edge.value)
            apart = places[edge.source][task.index] != places[edge.target][task.index]
            choice = None if link is None or not apart else link.gradients if gradient else link.activations
            choices.add(choice if choice is not None and choice.name != "identity" and not choice.memory else None)
        if len(choices) != 1 or (choice := choices.pop()) is None:
            return None
        codec = get_codec(choice.name, **dict(choice.params))
        return keyed(codec, self.setup.job.seed, task.step, task.index, value, int(gradient))


def _bits(array: Array) -> bytes:
    return array.tobytes()


def _same(one: PackedArray, other: PackedArray) -> bool:
    """Whether two packed arrays have the same bytes."""
    return one.payload == other.payload and [bytes(part) for part in one.sections] == [bytes(part) for part in other.sections]
