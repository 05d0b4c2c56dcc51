"""What the watchers of a run received beside its records, in ``watch.log`` of the run's folder, so that a restart keeps it.

Each line is a time, and a JSON list: the records before the message, its kind, its fields.
"""

from __future__ import annotations

import json
from pathlib import Path

from farflung.errors import WireError
from farflung.messages.schema import Channel, Message
from farflung.messages.watching import CheckpointWritten, GeneratedText, Note, Planned, Started
from farflung.messages.wire_form import from_plain, to_plain
from farflung.telemetry.log_file import LogWriter, read_last

__all__ = ["read_history", "write_history"]

_FILE = "watch.log"
#: The messages that are stored. Others describe a moment that is over after a restart.
_STORED = (Planned, Started, CheckpointWritten, GeneratedText, Note)
#: Messages that are read at most, and characters of one: a longer one is left out.
_MOST, _LONGEST = 256, 200_000


def write_history(writer: LogWriter, folder: Path, message: Message, records: int) -> None:
    """Store ``message``, which watchers received after ``records`` records. It never waits."""
    if isinstance(message, _STORED):
        line = json.dumps([records, *to_plain(message)])
        if len(line) <= _LONGEST:
            writer.write(folder / _FILE, line)


def read_history(folder: Path, records: int) -> list[tuple[int, Message]]:
    """Return the stored messages, each with the records before it (at most ``records``). A damaged line is left out."""
    found = []
    for line in read_last(folder / _FILE, _MOST).lines:
        try:
            before, kind, fields = json.loads(line[line.index("[") :])
            found.append((max(min(int(before), records), 0), from_plain(kind, fields, Channel.WATCH)))
        except (ValueError, TypeError, WireError):
            continue
    return found
