"""Conformance of message types: ``check_message`` makes messages and hostile frames of a type from its fields, and decodes them.

A frame may come from anybody. So whatever is in it, decoding gives a message of the type or raises ``WireError`` with one line of
text, and takes little memory. A decoded message is one like any other: it can be encoded, and read again, without a change.
"""

from __future__ import annotations

import re
import tracemalloc
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np
from msgspec import inspect as types

from farflung.errors import WireError
from farflung.messages.array_headers import ELEMENT_TYPES, ArrayHeader
from farflung.messages.schema import Channel, Message, type_of
from farflung.messages.wire_form import decode, encode
from farflung.testing.damage import bent, hurt
from farflung.wire.frames import Frame, decode_frame, encode_frame

__all__ = ["MOST_MEMORY", "HostileFrames", "check_message", "damaged_frame", "some_frame"]

#: Bytes that decoding one small frame may take, whatever its header says.
MOST_MEMORY = 1 << 20
#: Items that a made list or map has at most, and sections of a made frame.
_MOST_ITEMS = 3
#: How often a made header is tried: a type may refuse fields that do not go together.
_TRIES = 50
#: The pattern of a text that is a number of hexadecimal digits.
_HEXADECIMAL = re.compile(r"\^\[0-9a-f\]\{(\d+)\}\\Z")

Make = Callable[[Any, np.random.Generator], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostileFrames:
    """How many frames ``check_message`` makes. The same seed gives the same frames."""

    inputs: int = 100
    seed: int = 0


def check_message(message_type: type[Message], frames: HostileFrames | None = None) -> None:
    """Check one message type on each of its channels.

    Raises:
        AssertionError: the first deviation, with the frame that shows it.
    """
    frames, facts = frames or HostileFrames(), type_of(message_type)
    generator = np.random.default_rng([frames.seed, len(facts.kind)])
    for channel in facts.channels:
        for _ in range(frames.inputs):
            frame = some_frame(message_type, generator)
            assert _taken(frame, channel), f"a well-formed frame is refused: {frame!r:.1000}"
            _taken(damaged_frame(frame, generator), channel)


def some_frame(message_type: type[Message], generator: np.random.Generator) -> Frame:
    """Return a frame with a message of ``message_type``: each field within its bounds, often at one of them.

    Raises:
        AssertionError: the type refuses all of the frames that its fields allow.
    """
    facts = type_of(message_type)
    info = types.type_info(message_type)
    assert isinstance(info, types.StructType)
    least, most = facts.sections
    for _ in range(_TRIES):
        count = int(generator.integers(least, min(most, least + _MOST_ITEMS) + 1))
        frame = Frame(facts.kind, _some_fields(info, generator), tuple(generator.bytes(8) for _ in range(count)))
        if _decoded(frame, facts.channels[0]) is not None:
            return frame
    raise AssertionError(f"{message_type.__name__} refuses frames whose fields are all within their bounds: {frame!r:.1000}")


def _bytes(frame: Frame) -> bytes:
    return b"".join(map(bytes, encode_frame(frame)))


def _decoded(frame: Frame, channel: Channel) -> Message | None:
    """The message in ``frame`` after it has passed the wire (None: it is refused)."""
    try:
        return decode(decode_frame(_bytes(frame)), channel)
    except WireError as error:
        text = str(error)
    except Exception as error:
        raise AssertionError(f"{type(error).__name__} instead of a WireError: {error}; {frame!r:.1000}") from error
    assert len(text.splitlines()) == 1, f"an error of several lines: {text!r:.1000}"
    return None


def _taken(frame: Frame, channel: Channel) -> bool:
    """Whether ``frame`` holds a message. Decoding takes little memory, and the message stays the same when it is sent again."""
    used = _memory(frame, channel)
    if used > MOST_MEMORY:  # a table of the interpreter may have grown just now
        used = _memory(frame, channel)
    assert used <= MOST_MEMORY, f"decoding took {used} bytes: {frame!r:.1000}"
    message = _decoded(frame, channel)
    if message is None:
        return False
    sent, again = encode(message), _decoded(encode(message), channel)
    assert again is not None, f"a message is refused when it is sent again: {message!r:.1000}"
    assert _bytes(sent) == _bytes(encode(again)), f"a message changes when it is sent again: {message!r:.1000}, {again!r:.1000}"
    return True


def _memory(frame: Frame, channel: Channel) -> int:
    """The most bytes that decoding ``frame`` takes."""
    tracing = tracemalloc.is_tracing()
    if not tracing:
        tracemalloc.start()
    try:
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        _decoded(frame, channel)
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        if not tracing:
            tracemalloc.stop()


def damaged_frame(frame: Frame, generator: np.random.Generator) -> Frame:
    """Return ``frame`` with one to three changes of its header or its sections."""
    for _ in range(int(generator.integers(1, 4))):
        choice = int(generator.integers(9))
        if choice == 0:
            frame = replace(frame, sections=(*frame.sections, b"more"))
        elif choice == 1:
            frame = replace(frame, sections=frame.sections[1:])
        elif choice == 2 and frame.sections:
            place = int(generator.integers(len(frame.sections)))
            changed = bent(bytes(frame.sections[place]), generator)
            frame = replace(frame, sections=(*frame.sections[:place], changed, *frame.sections[place + 1 :]))
        elif choice == 3:
            frame = replace(frame, header={**frame.header, "unknown": 1})
        elif choice == 4 and frame.header:
            lost = sorted(frame.header)[int(generator.integers(len(frame.header)))]
            frame = replace(frame, header={name: value for name, value in frame.header.items() if name != lost})
        else:
            header = hurt(dict(frame.header), generator)
            frame = replace(frame, header=header) if isinstance(header, dict) else frame
    return frame


# -- values from types ----------------------------------------------------------------------------------------------------


def _some_fields(info: types.StructType, generator: np.random.Generator) -> dict[str, Any]:
    found = {}
    for field in info.fields:
        if field.name != "sections" and (field.required or generator.random() < 0.5):
            found[field.encode_name] = _some(field.type, generator)
    # A field that may be unset is a union with a type that no value has.
    return {name: value for name, value in found.items() if value is not msgspec.UNSET}


def _some(kind: types.Type, generator: np.random.Generator) -> Any:
    """A plain value of ``kind``, as a header holds it."""
    return _MAKERS[type(kind)](kind, generator)


def _some_struct(kind: types.StructType, generator: np.random.Generator) -> Any:
    if kind.cls is ArrayHeader:
        shape = [int(size) for size in generator.integers(0, 9, int(generator.integers(0, 4)))]
        return [str(generator.choice(ELEMENT_TYPES)), shape, None if generator.random() < 0.5 else [1] * len(shape)]
    if not kind.array_like:
        return _some_fields(kind, generator)
    values = [_some(field.type, generator) for field in kind.fields]
    return values if kind.tag is None else [kind.tag, *values]


def _some_number(kind: types.IntType | types.FloatType, generator: np.random.Generator) -> int | float:
    low = kind.ge if kind.ge is not None else kind.gt + 1 if kind.gt is not None else -(1 << 40)
    high = kind.le if kind.le is not None else kind.lt - 1 if kind.lt is not None else 1 << 40
    between = low + (min(high, low + 1000) - low) * float(generator.random())
    value = (low, high, between, between)[int(generator.integers(4))]
    return float(value) if isinstance(kind, types.FloatType) else int(value)


def _some_text(kind: types.StrType, generator: np.random.Generator) -> str:
    if digits := _HEXADECIMAL.fullmatch(kind.pattern or ""):
        return generator.bytes(int(digits[1]) // 2).hex()
    longest = kind.max_length if kind.max_length is not None else 8
    length = longest if longest < 500 and generator.random() < 0.1 else int(generator.integers(0, min(longest, 8) + 1))
    return "".join(generator.choice(list("aé~0/ "), length))


def _some_items(kind: types.VarTupleType | types.ListType, generator: np.random.Generator) -> list[Any]:
    return [_some(kind.item_type, generator) for _ in range(_some_count(kind.max_length, generator))]


def _some_map(kind: types.DictType, generator: np.random.Generator) -> dict[Any, Any]:
    count = _some_count(kind.max_length, generator)
    return {_some(kind.key_type, generator): _some(kind.value_type, generator) for _ in range(count)}


def _some_count(most: int | None, generator: np.random.Generator) -> int:
    return int(generator.integers(0, min(_MOST_ITEMS if most is None else most, _MOST_ITEMS) + 1))


def _some_choice(kind: types.UnionType, generator: np.random.Generator) -> Any:
    return _some(kind.types[int(generator.integers(len(kind.types)))], generator)


_MAKERS: Mapping[type[types.Type], Make] = {
    types.StructType: _some_struct,
    types.IntType: _some_number,
    types.FloatType: _some_number,
    types.StrType: _some_text,
    types.VarTupleType: _some_items,
    types.ListType: _some_items,
    types.TupleType: lambda kind, generator: [_some(item, generator) for item in kind.item_types],
    types.DictType: _some_map,
    types.UnionType: _some_choice,
    types.EnumType: lambda kind, generator: [each.value for each in kind.cls][int(generator.integers(len(kind.cls)))],
    types.LiteralType: lambda kind, generator: kind.values[int(generator.integers(len(kind.values)))],
    types.BoolType: lambda kind, generator: bool(generator.integers(2)),
    types.BytesType: lambda kind, generator: generator.bytes(int(generator.integers(0, 9))),
    types.NoneType: lambda kind, generator: None,
    types.AnyType: lambda kind, generator: int(generator.integers(9)),
    types.CustomType: lambda kind, generator: msgspec.UNSET,
}
