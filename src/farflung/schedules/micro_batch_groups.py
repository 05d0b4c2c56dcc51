"""Schedules whose unit is a group of micro-batches, for plans with sites."""

from __future__ import annotations

from collections.abc import Sequence

from farflung.errors import InputError
from farflung.schedules.base import Action, PipelineSchedule

__all__ = ["Grouped", "grouped", "read_group"]

_MARK, _LARGEST = "@", 1024


class Grouped:
    """Another schedule, whose unit is a group of consecutive micro-batches: ``1f1b@2`` has groups of two.

    A site computes a group at once, one micro-batch on each rank. All stages keep to the groups, so that none of them waits for
    a gradient before it has sent the whole group.
    """

    def __init__(self, schedule: PipelineSchedule, count: int) -> None:
        self.schedule, self.count = schedule, count
        self.as_ready = bool(getattr(schedule, "as_ready", False))

    def actions(self, stages: int, micro_batches: int) -> Sequence[Sequence[Action]]:
        """For each stage, its actions of one step in order."""
        groups = -(-micro_batches // self.count)
        return tuple(
            tuple(
                Action(action.stage, action.kind, index)
                for action in order
                for index in range(action.micro_batch * self.count, min((action.micro_batch + 1) * self.count, micro_batches))
            )
            for order in self.schedule.actions(stages, groups)
        )


def grouped(name: str, count: int) -> str:
    """The name of the schedule ``name`` in groups of ``count`` micro-batches (1: ``name``)."""
    return f"{name}{_MARK}{count}" if count > 1 else name


def read_group(name: str) -> tuple[str, int]:
    """Return the schedule and the group of a name that ``grouped`` made, or of a plain one.

    Raises:
        InputError: the group is no number from 2 to 1024.
    """
    base, found, count = name.partition(_MARK)
    if found and not (count.isdecimal() and 1 < int(count) <= _LARGEST):
        raise InputError(f"schedule {name!r:.60}: @ takes the micro-batches of a group, 2 to {_LARGEST}; write e.g. 1f1b@2")
    return base, int(count) if found else 1
