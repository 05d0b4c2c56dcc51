"""What the process that computes answers is checked before anybody uses it: payloads only where a coding asks for them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import msgspec
import numpy as np
import pytest

from farflung.codecs import get_codec
from farflung.engines.base import Array, EngineSettings
from farflung.engines.encoded_value import Coding, EncodedValue
from farflung.engines.isolated.arena import Arena, Slot, make_file
from farflung.engines.isolated.control import Done
from farflung.engines.isolated.encoded import write_encoded
from farflung.engines.isolated.runner import IsolatedRunner
from farflung.errors import WireError
from farflung.graph.cut import cut
from farflung.graph.ir import ValueRef
from farflung.memory_budget import MemoryBudget
from farflung.wire.arrays import ArrayMeta
from tests.support.steps.small_runs import small_graph, small_plan

BEND = ValueRef("bend")
VALUE = np.random.default_rng(0).standard_normal((4, 16)).astype(np.float32)


class Answering:
    """The exchange with a process that gives one answer."""

    def __init__(self) -> None:
        file = make_file(1 << 20)
        self.worker, self.other = Arena(file, 0), Arena(file, 1)
        os.close(file)
        self.done = Done()
        self.ended = False

    def answer(self, what: str) -> Done:
        return self.done

    def copy(self, slot: Slot, budget: MemoryBudget) -> Array:
        return self.worker.copy(slot, budget)

    def end(self) -> None:
        self.ended = True


@pytest.fixture
def answering() -> Iterator[Answering]:
    made = Answering()
    yield made
    made.worker.close()
    made.other.close()


def answered(answering: Answering, *, coded: bool = True, spoil: Callable[[Done], Done] = lambda done: done) -> EncodedValue:
    """The value of stage 0 that ``answering`` gives as a payload."""
    payload = get_codec("int8", block=16).encode(VALUE)
    value = EncodedValue(meta=ArrayMeta("float32", (4, 16)), payload=payload, seconds=0.1)
    answering.done = spoil(Done(encoded={"bend": write_encoded(answering.other, value)}))
    codings = (Coding(value=BEND, gradient=False, name="int8", micro_batches=(0,)),) if coded else ()
    (piece, _) = cut(small_graph(), small_plan().bounds)
    found = IsolatedRunner(answering, 0, piece, EngineSettings(codings=codings)).forwarded().values[BEND]  # type: ignore[arg-type]
    assert isinstance(found, EncodedValue)
    return found


def test_a_coding_allows_a_payload(answering: Answering) -> None:
    assert answered(answering).payload == get_codec("int8", block=16).encode(VALUE)
    assert not answering.ended


def changed(**fields: object) -> Callable[[Done], Done]:
    return lambda done: Done(encoded={"bend": msgspec.structs.replace(done.encoded["bend"], **fields)})


SPOILT: dict[str, tuple[Callable[[Done], Done], str]] = {
    "under another name": (lambda done: Done(encoded={"bind": done.encoded["bend"]}), "nothing for 'bend'"),
    "one too many": (lambda done: Done(encoded={**done.encoded, "bind": done.encoded["bend"]}), "a payload that nobody asked"),
    "beside the value": (
        lambda done: Done(encoded=done.encoded, values={"bend": done.encoded["bend"].sections}),
        "'bend' with 2 arrays",
    ),
    "another shape": (changed(shape=(16, 4)), "a payload for 'bend' that is another value's or too large"),
    "another type": (changed(dtype="float64"), "a payload for 'bend' that is another value's or too large"),
    "larger than the value": (changed(sections=(Slot("uint8", (257,), (1,), 0),)), "another value's or too large"),
    "no payload": (changed(head={}), "a payload that is none: bad payload: its header"),
}


@pytest.mark.parametrize(("spoil", "text"), SPOILT.values(), ids=SPOILT)
def test_other_payloads_end_the_process(spoil: Callable[[Done], Done], text: str, answering: Answering) -> None:
    with pytest.raises(WireError, match=text):
        answered(answering, spoil=spoil)
    assert answering.ended


def test_without_a_coding_there_is_no_payload(answering: Answering) -> None:
    with pytest.raises(WireError, match="a payload that nobody asked for"):
        answered(answering, coded=False)
    assert answering.ended
