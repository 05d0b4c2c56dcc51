"""The base of all message types: bounded field types, the channels, and the table that binds a kind of frame to its type.

A message type is one class in ``commands``, ``reports``, ``calls``, ``watching``, ``data`` or ``hybrid``::

    class StopRun(Message, kind="stop", on=Channel.COMMANDS):
        run: Run

The class statement enters the type in the table of its channel. ``messages.wire_form`` decodes and encodes. msgspec checks every
type, length and range while it builds the message (docs/decisions/0020-typed-messages.md), so no receiver checks a field again.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Literal, dataclass_transform

import msgspec
from msgspec import UNSET, Meta, UnsetType, field

__all__ = [
    "ANY_SECTIONS",
    "FINITE",
    "NO_SECTIONS",
    "ONE_SECTION",
    "PLAIN",
    "SHA256",
    "UNSET",
    "Address",
    "Amount",
    "Channel",
    "Count",
    "Document",
    "Flag",
    "Index",
    "Item",
    "Label",
    "LongText",
    "Member",
    "Message",
    "MessageType",
    "Name",
    "Names",
    "Parting",
    "Positive",
    "Run",
    "SectionedMessage",
    "Sections",
    "Sha256",
    "StateHashes",
    "Text",
    "UnsetType",
    "Version",
    "field",
    "kind_of",
    "message_types",
    "type_of",
]

_MOST_WHOLE = 2**53
#: The largest finite number: a bound that infinity and NaN do not pass.
FINITE = sys.float_info.max

#: What names and other short words have: no control characters, and none that change the direction of text. They would reach
#: terminals and logs.
PLAIN = r"^[^\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]*\Z"
#: What a SHA-256 hash in hexadecimal looks like.
SHA256 = r"^[0-9a-f]{64}\Z"
#: A SHA-256 hash in hexadecimal.
Sha256 = Annotated[str, Meta(pattern=SHA256)]
#: The name of a run, or of one attempt of a run.
Run = Annotated[str, Meta(max_length=200, pattern=PLAIN)]
#: The name of a member: a worker, a client or the broker.
Member = Annotated[str, Meta(max_length=300, pattern=PLAIN)]
#: Where a member listens, as ``host:port``. Empty: other members cannot dial it.
Address = Annotated[str, Meta(max_length=300, pattern=PLAIN)]
#: One keyword of a closed set, such as a role.
Label = Annotated[str, Meta(max_length=60, pattern=PLAIN)]
#: The name of a state, a value or an operator.
Name = Annotated[str, Meta(max_length=4000)]
#: A text for people, from a worker or a client.
Text = Annotated[str, Meta(max_length=4000)]
#: A text for people, from the broker.
LongText = Annotated[str, Meta(max_length=1 << 20)]
#: A document, such as a plan as JSON. The receiver's limit for headers is the tighter bound.
Document = Annotated[str, Meta(max_length=256 << 20)]
Names = Annotated[tuple[Name, ...], Meta(max_length=200_000)]
#: State -> hash.
StateHashes = Annotated[dict[Name, Sha256], Meta(max_length=200_000)]
#: Steps, samples or bytes.
Count = Annotated[int, Meta(ge=0, le=_MOST_WHOLE)]
#: The number of a stage, a micro-batch, a bucket or a rank.
Index = Annotated[int, Meta(ge=0, le=1_000_000)]
#: The number of an attempt, a session or a format: from 1.
Version = Annotated[int, Meta(ge=1, le=_MOST_WHOLE)]
#: Seconds, bytes per second or another finite quantity from 0.
Amount = Annotated[float, Meta(ge=0.0, le=FINITE)]
#: A finite quantity above 0.
Positive = Annotated[float, Meta(gt=0.0, le=FINITE)]
#: How a worker's owner wants it to go; see ``protocol.members.Parting``.
Parting = Literal["", "drain", "leave"]
#: A field that only some senders set.
Flag = bool | UnsetType

if TYPE_CHECKING:
    Sections = tuple[memoryview | bytes, ...]
else:
    # ``decode`` puts the frame's sections here. A header that claims to have any is refused.
    Sections = Annotated[tuple[bytes, ...], Meta(max_length=0)]

#: How many sections a frame of a kind has: at least, at most.
NO_SECTIONS, ONE_SECTION, ANY_SECTIONS = (0, 0), (1, 1), (0, 0xFFFF)


class Channel(StrEnum):
    """Where a message travels. A kind names one message type per channel."""

    #: The broker to a worker, in the worker's session.
    COMMANDS = "commands"
    #: A worker to the broker, in the worker's session.
    REPORTS = "reports"
    #: A member to the broker: the request of a call.
    REQUESTS = "requests"
    #: The broker to a member: the answers to a call.
    ANSWERS = "answers"
    #: A member to the broker: weights, or a worker's shard of a checkpoint.
    UPLOADS = "uploads"
    #: The broker to everybody who watches a run.
    WATCH = "watch"
    #: Members of a run to each other, on the data plane.
    DATA = "data"


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageType:
    """How a message type travels. ``sections``: how many sections its frames have, at least and at most."""

    kind: str
    channels: tuple[Channel, ...]
    sections: tuple[int, int]
    #: (attribute, name in the header) of each field, in the order in which the fields are written
    fields: tuple[tuple[str, str], ...]


_TYPES: dict[Channel, dict[str, type[Message]]] = {channel: {} for channel in Channel}
_FACTS: dict[type[Message], MessageType] = {}


class _StrictMeta(msgspec.StructMeta):
    """Makes each class immutable, and lets it refuse fields that it does not have."""

    def __new__(mcls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **options: Any) -> Any:
        settings = {"frozen": True, "kw_only": True, "forbid_unknown_fields": True} | options
        return super().__new__(mcls, name, bases, namespace, **settings)


class _MessageMeta(_StrictMeta):
    """Enters each class that has a ``kind`` in the tables of the channels ``on`` which it travels.

    ``sections``: how many sections its frames have. ``first``: fields that are written before all others, whatever class declares
    them.
    """

    def __new__(mcls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **options: Any) -> Any:
        kind: str = options.pop("kind", "")
        on: Channel | tuple[Channel, ...] = options.pop("on", ())
        sections: tuple[int, int] = options.pop("sections", NO_SECTIONS)
        first: tuple[str, ...] = options.pop("first", ())
        created: Any = super().__new__(mcls, name, bases, namespace, **options)
        channels = (on,) if isinstance(on, Channel) else on
        for channel in channels:
            if kind in _TYPES[channel]:
                raise TypeError(f"kind {kind!r} on {channel.value} is {_TYPES[channel][kind].__name__} already, not {name}")
            _TYPES[channel][kind] = created
        if kind:
            pairs = zip(created.__struct_fields__, created.__struct_encode_fields__, strict=True)
            ordered = sorted(pairs, key=lambda pair: pair[0] not in first)  # a base's fields stand before a type's own
            fields = tuple(pair for pair in ordered if pair[0] != "sections")
            _FACTS[created] = MessageType(kind=kind, channels=channels, sections=sections, fields=fields)
        return created


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(msgspec.field,))
class Message(msgspec.Struct, metaclass=_MessageMeta, frozen=True, kw_only=True):
    """Base of all messages: immutable, its fields are given by name, and a header with other fields is refused."""


class SectionedMessage(Message):
    """Base of messages whose frames have sections: buffers that travel as they are, beside the header."""

    sections: Sections = ()


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(msgspec.field,))
class Item(msgspec.Struct, metaclass=_StrictMeta, frozen=True, kw_only=True):
    """Base of structures inside messages."""


def type_of(message: type[Message]) -> MessageType:
    """Return the kind, channels, sections and fields of a message type."""
    return _FACTS[message]


def kind_of(message: Message) -> str:
    """Return the kind of ``message``: its name on the wire and in texts for people."""
    return _FACTS[type(message)].kind


def message_types(channel: Channel) -> Mapping[str, type[Message]]:
    """Return the message types of ``channel`` by kind, as far as their modules are imported (``wire_form.types_on``: all)."""
    return MappingProxyType(_TYPES[channel])
