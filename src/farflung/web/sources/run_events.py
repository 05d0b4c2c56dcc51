"""The events of a run, from its log: joins, losses, recoveries, new plans, checkpoints. Lines about single steps are left out."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["RunEvent", "run_events"]

_LINE = re.compile(r"(\d{4}-\d\d-\d\d) (\d\d:\d\d:\d\d) (.*)")
_CHECKPOINT = re.compile(r"checkpoint after step \d+")
_DULL = re.compile(r"(step \d+: loss|evaluation after step|generated:)")
#: Beginnings or words of lines -> tone.
_TONES = (
    (re.compile(r"\b(failed|lost|died|gone|dead|cannot|damaged|full)\b"), "bad"),
    (re.compile(r"\b(slow|silent|warning|stopped|waits?|paused|leaves|left)\b"), "warn"),
    (re.compile(r"\b(joined|resumed|finished|training begins|checkpoint)\b"), "good"),
)


@dataclass(frozen=True, slots=True)
class RunEvent:
    """One event. ``when``: local date and time. ``tone``: ``good``, ``warn``, ``bad`` or empty."""

    when: str
    text: str
    tone: str = ""


def run_events(lines: Sequence[str]) -> list[RunEvent]:
    """Return the events in the lines of a log, the newest first. Checkpoints in a row are one event."""
    found: list[RunEvent] = []
    dull, row = True, 0
    for line in lines:
        match = _LINE.fullmatch(line)
        if match is None:  # a line that continues the one before
            if found and not dull:
                found[-1] = RunEvent(found[-1].when, f"{found[-1].text} {line.strip()}", found[-1].tone)
            continue
        date, time, text = match.groups()
        dull = _DULL.match(text) is not None
        if not dull:
            tone = next((tone for pattern, tone in _TONES if pattern.search(text)), "")
            row = row + 1 if _CHECKPOINT.fullmatch(text) else 0
            if row > 1:
                found.pop()
                text += f", the newest of {row}"
            found.append(RunEvent(f"{date} {time}", text, tone))
    return found[::-1]
