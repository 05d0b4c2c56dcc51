"""The protocol of experiment trackers: what a tracker gets of a run, in which order, and on which thread."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable

from farflung.job.spec import ReportSpec

__all__ = ["MakeTracker", "Setting", "TrackedRun", "Tracker"]

#: The value of a setting of a run, as tables of trackers show it.
Setting = bool | int | float | str


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedRun:
    """One run, as a tracker gets it.

    ``id``: unique, and the same each time the same run is reported, so that a tracker can continue its own record of it.
    ``name``: for people. ``settings``: the job and a summary of its plan by dotted names. ``folder``: a folder for files of the
    tracker; it may not exist yet.
    """

    id: str
    name: str
    folder: Path
    project: str = "farflung"
    group: str = ""
    tags: tuple[str, ...] = ()
    offline: bool = False
    settings: Mapping[str, Setting] = field(default_factory=dict)


@runtime_checkable
class Tracker(Protocol):
    """Reports one run to one experiment tracker.

    One thread calls, first ``begin`` and last ``end``, and never a thread that trains. A call may wait for a server, and may
    raise anything: then the tracker is made anew later, and continues after what the last ``flush`` has stored. Steps count
    from 1, so the values of step ``n`` are those after ``n`` optimizer steps. Each step comes once, in order, although a run
    that recovers from a loss makes some steps again.
    """

    def begin(self, run: TrackedRun) -> Mapping[str, int] | None:
        """Open the record of ``run``, or continue it.

        Return the highest step that the record holds already, by the name of the value: those steps do not come again, and what
        is missing does. ``None``: the tracker cannot read its own record; then what was flushed does not come again.
        """

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Take the ``values`` of ``step`` by name, such as ``train/loss``; ``docs/trackers.md`` lists the names."""

    def text(self, step: int, name: str, text: str) -> None:
        """Take a text: an event such as ``events/checkpoint``, or ``samples/generated``. A name may come twice in a step."""

    def flush(self) -> None:
        """See that everything so far is stored, or on its way to the server in another process."""

    def end(self, status: str) -> None:
        """The run is over: ``finished``, ``stopped`` or ``failed``. Not called where the run goes on without this process."""


#: Makes the tracker of one run; raises ``InputError`` where its library is missing.
MakeTracker = Callable[[ReportSpec], Tracker]
