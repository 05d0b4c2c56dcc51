"""The one place where frames become messages and messages become frames."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import msgspec
from msgspec import UNSET
from msgspec.structs import force_setattr

from farflung.errors import WireError
from farflung.messages.schema import Channel, Message, SectionedMessage, message_types, type_of
from farflung.wire.frames import Frame
from farflung.wire.struct_types import prepare

__all__ = ["decode", "decode_as", "encode", "from_plain", "holds", "to_plain", "types_on"]

_Wanted = TypeVar("_Wanted", bound=Message)

#: Where the message types of each channel are. A process imports only the channels that it uses.
_MODULES = {
    Channel.COMMANDS: ("commands",),
    Channel.REPORTS: ("reports", "commands"),
    Channel.REQUESTS: ("calls",),
    Channel.ANSWERS: ("calls",),
    Channel.UPLOADS: ("calls",),
    Channel.WATCH: ("watching",),
    Channel.DATA: ("data", "hybrid", "serving"),
}
#: One part of the path in an error of msgspec: ``.name``, ``[3]`` or ``[...]`` (a key or a value of a map).
_PATH_PART = re.compile(r"\.(\w+)|\[(\d+)\]|(\[\.\.\.\])")


@cache
def types_on(channel: Channel) -> Mapping[str, type[Message]]:
    """Return all message types of ``channel`` by kind."""
    for name in _MODULES[channel]:
        import_module(f"farflung.messages.{name}")
    return message_types(channel)


def encode(message: Message) -> Frame:
    """Return the frame of ``message``. Fields that are ``UNSET`` are left out."""
    facts, header = type_of(type(message)), {}
    for attribute, name in facts.fields:
        value = getattr(message, attribute)
        if value is not UNSET:
            header[name] = msgspec.to_builtins(value, builtin_types=(bytes,))
    return Frame(facts.kind, header, message.sections if isinstance(message, SectionedMessage) else ())


def decode(frame: Frame, channel: Channel) -> Message:
    """Return the message in ``frame``, which came on ``channel``.

    Raises:
        WireError: the channel has no such kind, a field is missing, unknown, of another type or out of bounds, or the number of
            sections is wrong.
    """
    found = types_on(channel).get(frame.kind)
    if found is None:
        raise WireError(_unknown_kind(frame.kind, channel))
    prepare(found)
    try:
        message = msgspec.convert(frame.header, found)
    except (msgspec.ValidationError, RecursionError) as error:
        raise WireError(_explanation(frame, found, error)) from None
    least, most = type_of(found).sections
    if not least <= len(frame.sections) <= most:
        wanted = str(least) if least == most else f"{least} to {most}"
        raise WireError(f"bad message {frame.kind!r}: expected {wanted} sections, got {len(frame.sections)}")
    if frame.sections:
        force_setattr(message, "sections", frame.sections)  # nobody else has seen the message yet
    return message


def holds(frame: Frame, wanted: type[Message]) -> bool:
    """Return whether ``frame`` says that it holds a message of the type ``wanted``; nothing is decoded."""
    return frame.kind == type_of(wanted).kind


def decode_as(frame: Frame, channel: Channel, wanted: type[_Wanted]) -> _Wanted:
    """Return the message in ``frame``, which must be of the type ``wanted``.

    Raises:
        WireError: it is of another type, or as ``decode``.
    """
    message = decode(frame, channel)
    if not isinstance(message, wanted):
        raise WireError(f"unexpected message {frame.kind!r:.40}: expected {type_of(wanted).kind!r}")
    return message


def to_plain(message: Message) -> tuple[str, dict[str, Any]]:
    """Return kind and fields of a message without sections, as plain values: to store it outside of frames."""
    frame = encode(message)
    return frame.kind, dict(frame.header)


def from_plain(kind: str, fields: Mapping[str, Any], channel: Channel) -> Message:
    """Return the message that ``to_plain`` was given.

    Raises:
        WireError: as ``decode``.
    """
    return decode(Frame(kind, fields), channel)


def _unknown_kind(kind: str, channel: Channel) -> str:
    known = ", ".join(sorted(types_on(channel)))
    return f"unknown message {kind!r:.40}: {channel.value} are {known}; install the same farflung on both machines"


def _explanation(frame: Frame, message_type: type[Message], error: Exception) -> str:
    """Return the rule and the place as msgspec gives them, with the value, and the known values of a closed set."""
    rule, _, path = str(error).partition(" - at `$")
    path = path.removesuffix("`")
    found, value = _value_at(frame.header, path)
    got, known = f", got {value!r:.60}" if found and "got" not in rule else "", ""
    if rule.startswith("Invalid enum value"):
        rule, known = "Invalid enum value", _known_values(message_type, path)
    if rule.startswith("Expected `str` matching regex"):
        rule = "Expected a text without control characters"
    where = f" in {path.lstrip('.')!r:.100}" if path else ""
    return f"bad message {frame.kind!r:.40}: {rule[:200]}{where}{got}{known}"


def _known_values(message_type: type[Message], path: str) -> str:
    """The known values at ``path`` (empty: it leads deeper than a field)."""
    named = {name: attribute for attribute, name in type_of(message_type).fields}
    hint = get_type_hints(message_type).get(named.get(path.lstrip("."), ""))
    for choice in (hint, *get_args(hint)):
        if get_origin(choice) is Literal:
            return f": known are {', '.join(str(one) or repr('') for one in get_args(choice))}"
    return ""


def _value_at(value: Any, path: str) -> tuple[bool, Any]:
    """Whether ``path`` leads to one value, and the value."""
    for name, index, many in _PATH_PART.findall(path):
        if many:
            return False, None
        try:
            value = value[name] if name else value[int(index)]
        except (LookupError, TypeError):
            return False, None
    return bool(path), value
