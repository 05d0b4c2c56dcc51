"""Whatever comes in a frame, ``decode`` returns a message or raises ``WireError``, and takes little memory."""

from __future__ import annotations

import tracemalloc
from contextlib import suppress
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.errors import WireError
from farflung.messages.schema import Channel, Message, type_of
from farflung.messages.wire_form import decode, encode, types_on
from farflung.wire.frames import Frame, decode_frame, encode_frame

#: Bytes that decoding one small frame may take, whatever its header says.
MOST_MEMORY = 1 << 20

KINDS = [(channel, kind) for channel in Channel for kind in types_on(channel)]

#: What msgpack can carry; numbers at the borders of the bounds come often.
PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.sampled_from([0, 1, -1, 2**31, 2**53, 2**53 + 1, 10**6, 10**6 + 1])
    | st.floats()
    | st.text(max_size=8)
    | st.binary(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


def read(channel: Channel, frame: Frame) -> Message | None:
    """The message in a frame that has passed the wire (None: the wire or ``decode`` refuses it)."""
    with suppress(WireError):
        return decode(decode_frame(b"".join(map(bytes, encode_frame(frame)))), channel)
    return None


@settings(deadline=None, max_examples=400)
@given(place=st.sampled_from(KINDS), data=st.data())
def test_any_header_is_read_or_refused(place: tuple[Channel, str], data: st.DataObject) -> None:
    channel, kind = place
    names = [name for _, name in type_of(types_on(channel)[kind]).fields] or ["x"]
    header = data.draw(st.dictionaries(st.sampled_from(names) | st.text(max_size=6), PLAIN, max_size=8))
    read(channel, Frame(kind, header, (b"x",) * data.draw(st.integers(0, 3))))


def places(value: Any) -> Any:
    """Each (container, key) inside ``value``."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in list(items):
        yield value, key
        yield from places(inner)


@settings(deadline=None, max_examples=15)
@given(data=st.data())
def test_a_golden_frame_with_one_other_value_is_read_or_refused(golden: Any, data: st.DataObject) -> None:
    whole = decode_frame(b"".join(map(bytes, encode_frame(golden.frame))))
    header = dict(whole.header)
    found = list(places(header))
    if not found:
        return
    container, key = data.draw(st.sampled_from(found))
    container[key] = data.draw(PLAIN)
    message = read(golden.channel, Frame(whole.kind, header, whole.sections))
    if message is not None:  # then it is a message like any other
        assert read(golden.channel, encode(message)) is not None


@settings(deadline=None, max_examples=60)
@given(place=st.sampled_from(KINDS), kind=st.text(max_size=12))
def test_an_unknown_kind_is_refused(place: tuple[Channel, str], kind: str) -> None:
    channel, _ = place
    if kind not in types_on(channel):
        with pytest.raises(WireError, match="unknown message"):
            decode(Frame(kind, {}), channel)


def test_decoding_takes_little_memory(every_golden: list[Any]) -> None:
    """A length or a size in a header takes no memory: messages hold what came, and nothing that is announced."""
    for golden in every_golden:
        header = deepcopy(dict(golden.frame.header))
        for container, key in list(places(header)):
            if type(container[key]) is int:
                container[key] = 2**47
        read(golden.channel, golden.frame)  # caches are filled
        tracemalloc.start()
        try:
            read(golden.channel, Frame(golden.frame.kind, header, golden.frame.sections))
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < MOST_MEMORY, golden
