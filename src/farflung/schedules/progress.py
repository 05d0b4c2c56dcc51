"""How far a stage is in a step, and which of its actions may come next.

Where a schedule is not binding (``as_ready``), its order is one of many: backwards and forwards each go by their places in it,
but either may come first, as long as no more micro-batches are in flight than in the order. So nothing waits for an order that a
slow link has upset, and memory stays bounded. It can't come to a standstill: the oldest micro-batch on its way is never held up
by the bound, since at the first stage that has not had it nothing else is in flight. Results don't depend on it
(docs/exactness.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from farflung.schedules.base import Action, ActionKind, PipelineSchedule
from farflung.schedules.dry_run import in_flight

__all__ = ["Progress", "Track", "as_ready", "tracks_of"]


@dataclass(frozen=True, slots=True)
class Track:
    """Actions of a stage that come in this order. Where the stage has two tracks, the next action of this one may begin once
    those begun of the other exceed those of this one by ``lead`` at least (negative: they may be fewer)."""

    actions: tuple[Action, ...]
    lead: int = 0


def as_ready(schedule: PipelineSchedule) -> bool:
    """Whether a stage takes what has arrived instead of waiting for the order's next action (``PipelineSchedule``)."""
    return bool(getattr(schedule, "as_ready", False))


def tracks_of(order: Sequence[Action], *, free: bool = False) -> tuple[Track, ...]:
    """The tracks of a stage: its order; where ``free``, one of backwards, each after its forward, and one of forwards, which
    stops at the order's bound."""
    if not free:
        return (Track(tuple(order)),)
    backwards, forwards = (tuple(a for a in order if a.kind is kind) for kind in (ActionKind.BACKWARD, ActionKind.FORWARD))
    return (Track(backwards, lead=1), Track(forwards, lead=1 - in_flight(order)))


class Progress:
    """The actions of one stage that are left."""

    def __init__(self, order: Sequence[Action], *, free: bool = False) -> None:
        self._tracks = tracks_of(order, free=free)
        self._at = [0] * len(self._tracks)

    @property
    def done(self) -> bool:
        """Whether nothing is left."""
        return all(at == len(track.actions) for at, track in zip(self._at, self._tracks, strict=True))

    def heads(self) -> tuple[Action, ...]:
        """What may come next, the preferred one first; whether its inputs are here is not asked."""
        found: list[Action] = []
        for index, (at, track) in enumerate(zip(self._at, self._tracks, strict=True)):
            if len(self._tracks) == 1 or self._at[1 - index] - at >= track.lead:
                found += track.actions[at : at + 1]
        return tuple(found)

    def run(self, head: Action, most: int) -> tuple[Action, ...]:
        """``head``, one of ``heads``, and the actions of its kind that follow it, up to a multiple of ``most`` micro-batches."""
        for at, track in zip(self._at, self._tracks, strict=True):
            if track.actions[at : at + 1] == (head,):
                same = takewhile(
                    lambda a: a.kind is head.kind and a.micro_batch // most == head.micro_batch // most, track.actions[at:]
                )
                return tuple(same)
        raise ValueError(f"{head} is not next: it is one of {self.heads()}")

    def take(self, action: Action) -> None:
        """``action``, one of ``heads``, begins.

        Raises:
            ValueError: it is none.
        """
        if action not in self.heads():
            raise ValueError(f"{action} is not next: it is one of {self.heads()}")
        self._at[len(self._tracks) - 1 if action.kind is ActionKind.FORWARD else 0] += 1

    def left(self) -> list[Action]:
        """What has not begun, track by track."""
        return [action for at, track in zip(self._at, self._tracks, strict=True) for action in track.actions[at:]]
