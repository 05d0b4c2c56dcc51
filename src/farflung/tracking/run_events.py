"""The events of a run for trackers: plans, checkpoints, losses, joins and other notes, from ``watch.log`` of the run's folder."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from farflung.telemetry.log_file import read_more

__all__ = ["RunEvent", "read_events"]

#: Characters of a text at most.
_LONGEST = 4000


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEvent:
    """One event. ``records``: lines of ``metrics.jsonl`` before it. ``end``: the byte of ``watch.log`` after it.

    ``name``: for trackers, such as ``events/checkpoint``.
    """

    records: int
    name: str
    text: str
    end: int


def read_events(folder: Path, position: int) -> Iterator[RunEvent]:
    """Return the events of the run in ``folder`` after the byte ``position`` of its ``watch.log``."""
    part = read_more(folder / "watch.log", position)
    end = part.position - sum(len(line.encode()) + 1 for line in part.lines)
    for line in part.lines:
        end += len(line.encode()) + 1
        with suppress(ValueError, TypeError, KeyError):  # a damaged line is left out
            records, kind, fields = json.loads(line[line.index("[") :])
            if (said := _text(kind, fields)) is not None:
                yield RunEvent(records=int(records), name=said[0], text=said[1][:_LONGEST], end=end)


def _text(kind: str, fields: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return the name and the text of an event (``None``: trackers do not get it)."""
    if kind == "planned":
        return "events/plan", f"plan {fields['attempt']}: {fields['summary']}"
    if kind == "checkpoint":
        return "events/checkpoint", f"checkpoint after step {fields['step']}"
    if kind == "note" and not fields.get("detail"):
        return "events/note", str(fields["text"])
    return None
