"""Pipeline schedules as data: for each stage a list of actions, written ``2F0`` (stage 2, forward of micro-batch 0)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from farflung.errors import InputError

__all__ = ["Action", "ActionKind", "PipelineSchedule"]

_ACTION = re.compile(r"(\d+)(F|B|W)(\d+)")


class ActionKind(StrEnum):
    """What an action does; sends and receives follow from the plan's links.

    Where a schedule has ``WEIGHT`` actions, its ``BACKWARD`` makes only the gradients that earlier stages wait for, and
    ``WEIGHT`` those of the parameters; else ``BACKWARD`` makes both.
    """

    FORWARD = "F"
    BACKWARD = "B"
    WEIGHT = "W"


@dataclass(frozen=True, slots=True, order=True)
class Action:
    """One unit of a stage's work in a step."""

    stage: int
    kind: ActionKind
    micro_batch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind.value}{self.micro_batch}"

    @classmethod
    def parse(cls, text: str) -> Action:
        """Read ``2F0``.

        Raises:
            InputError: the text is not an action.
        """
        match = _ACTION.fullmatch(text)
        if match is None:
            raise InputError(f"{text!r} is not an action; write stage, F, B or W, micro-batch, e.g. 2F0")
        return cls(int(match[1]), ActionKind(match[2]), int(match[3]))


class PipelineSchedule(Protocol):
    """Orders the actions of every stage; forwards and backwards of a stage each go by ascending micro-batch.

    One with the attribute ``as_ready = True`` gives an order that bounds what is in flight, and is not binding beyond that: a
    stage takes its next backward as soon as it can, else its next forward (``progress.Progress``).
    """

    def actions(self, stages: int, micro_batches: int) -> Sequence[Sequence[Action]]:
        """For each stage, its actions of one step in order."""
