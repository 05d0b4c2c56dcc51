"""The one place where frames become messages and messages become frames."""

from __future__ import annotations

import re
from typing import Any

import msgspec
from msgspec import UNSET
from msgspec.structs import force_setattr

from farflung.errors import WireError
from farflung.messages import calls, commands, data, hybrid, reports, watching
from farflung.messages.schema import Channel, Message, SectionedMessage, message_types, type_of
from farflung.wire.frames import Frame

__all__ = ["MODULES", "decode", "encode"]

#: The modules whose message types ``decode`` knows: importing them fills the tables.
MODULES = (commands, reports, calls, watching, data, hybrid)
#: One part of the path in an error of msgspec: ``.name``, ``[3]`` or ``[...]`` (a key or a value of a map).
_PATH_PART = re.compile(r"\.(\w+)|\[(\d+)\]|(\[\.\.\.\])")


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
    found = message_types(channel).get(frame.kind)
    if found is None:
        raise WireError(_unknown_kind(frame.kind, channel))
    try:
        message = msgspec.convert(frame.header, found)
    except (msgspec.ValidationError, RecursionError) as error:
        raise WireError(_explanation(frame, error)) from None
    least, most = type_of(found).sections
    if not least <= len(frame.sections) <= most:
        wanted = str(least) if least == most else f"{least} to {most}"
        raise WireError(f"bad message {frame.kind!r}: expected {wanted} sections, got {len(frame.sections)}")
    if frame.sections:
        force_setattr(message, "sections", frame.sections)  # nobody else has seen the message yet
    return message


def _unknown_kind(kind: str, channel: Channel) -> str:
    known = ", ".join(sorted(message_types(channel)))
    return f"unknown message {kind!r:.40}: {channel.value} are {known}; install the same farflung on both machines"


def _explanation(frame: Frame, error: Exception) -> str:
    """The rule and the place as msgspec gives them, with the value."""
    rule, _, path = str(error).partition(" - at `$")
    found, value = _value_at(frame.header, path.removesuffix("`"))
    got = f", got {value!r:.60}" if found and "got" not in rule else ""
    where = f" in {path.removesuffix('`').lstrip('.')!r:.100}" if path else ""
    return f"bad message {frame.kind!r:.40}: {rule[:200]}{where}{got}"


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
