"""Write docs/messages.md from the message types: ``python scripts/message_catalog.py``."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import msgspec

from farflung.messages import schema
from farflung.messages.schema import Channel, Message, type_of
from farflung.messages.wire_form import types_on

PAGE = Path(__file__).resolve().parent.parent / "docs" / "messages.md"

_HEAD = """# Messages

This page lists every message that brokers, workers and clients exchange. `python scripts/message_catalog.py` generates it
from the types in `src/farflung/messages`, and a test compares the two.

A message travels as a frame ([wire-format.md](wire-format.md)): the kind, a map with the fields, and sections with raw bytes.
A field with `?` may be missing. A receiver refuses a message with a field that is missing, unknown, of another type or out of
bounds.
[Decision 20](decisions/0020-typed-messages.md) gives the reasons. [Extend farflung](extending.md#message) explains how to add a
message.

The transport has one kind of its own, `relay-call`: a relay calls a member that another one wants to reach
([links](links.md#relays)).
"""


def catalog() -> str:
    """Return the page."""
    parts = [_HEAD, _field_types()]
    for channel in Channel:
        rows = [_row(kind, found) for kind, found in sorted(types_on(channel).items())]
        title = f"## {channel.value.capitalize()}\n\n{_channel_text(channel)}\n"
        head = [title, "| kind | type | purpose | fields | sections |", "| --- | --- | --- | --- | --- |"]
        parts.append("\n".join([*head, *rows]) + "\n")
    return "\n".join(parts)


def _row(kind: str, found: type[Message]) -> str:
    facts = type_of(found)
    fields = "<br>".join(_field(found, attribute, name) for attribute, name in facts.fields)
    least, most = facts.sections
    count = "" if most == 0 else str(least) if least == most else f"{least} or {most}" if most == 1 else "any"
    purpose = " ".join(inspect.cleandoc(found.__doc__ or "").split())
    return f"| `{kind}` | `{found.__module__.rpartition('.')[2]}.{found.__name__}` | {_code(purpose)} | {fields} | {count} |"


def _field(found: type[Message], attribute: str, name: str) -> str:
    annotation = next(vars(one)["__annotations__"][attribute] for one in found.__mro__ if attribute in _own(one))
    plain = re.sub(r"Annotated\[(.*), Meta\([^()]*\)\]", r"\1", str(annotation))
    optional = "?" if "UnsetType" in plain or plain == "Flag" else ""
    plain = plain.replace(" | UnsetType", "").replace("Flag", "bool").replace("|", "or")
    return f"`{name}{optional}`: {plain}".replace("Annotated[", "").replace(", ...]", ", ...]")


def _own(one: type) -> dict[str, object]:
    return dict(vars(one).get("__annotations__", {}))


def _code(text: str) -> str:
    return text.replace("``", "`").replace("|", "\\|")


def _channel_text(channel: Channel) -> str:
    """The comment above the channel in ``schema``."""
    lines = inspect.getsource(Channel).splitlines()
    at = next(number for number, line in enumerate(lines) if line.strip().startswith(f"{channel.name} ="))
    return lines[at - 1].strip().removeprefix("#:").strip()


def _field_types() -> str:
    """A table of the bounded types of ``schema``: their comments, and their bounds."""
    lines = inspect.getsource(schema).splitlines()
    rows, comment = [], ""
    for line in lines:
        if line.startswith("#:"):
            comment = f"{comment} {line.removeprefix('#:').strip()}".strip()
            continue
        match = re.match(r"(\w+) = Annotated\[(.+), Meta\((.*)\)\]$", line)
        if match is not None:
            metas = [one for one in getattr(schema, match[1]).__metadata__ if isinstance(one, msgspec.Meta)]
            bounds = "; ".join(
                f"{key.replace('_', ' ')} {value:g}" if isinstance(value, float) else f"{key.replace('_', ' ')} {value}"
                for meta in metas
                for key in ("ge", "gt", "le", "lt", "max_length")
                if (value := getattr(meta, key)) is not None
            )
            rows.append(f"| `{match[1]}` | {match[2]} | {bounds} | {comment} |")
        comment = ""
    head = ["## Types of fields", "", "| name | type | bounds | meaning |", "| --- | --- | --- | --- |"]
    return "\n".join([*head, *rows]) + "\n"


def main() -> None:
    """Write the page."""
    PAGE.write_text(catalog(), encoding="utf-8")


if __name__ == "__main__":
    main()
