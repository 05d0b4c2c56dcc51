"""Which task a device computes next."""

from __future__ import annotations

from collections.abc import Sequence

from farflung.protocol.pool.answer_times import AnswerTimes
from farflung.protocol.pool.pool_events import Task, TaskKind
from farflung.protocol.pool.pool_state import Device, PoolState, Slice

__all__ = ["TaskChoice"]


class TaskChoice:
    """Chooses tasks; changes nothing. Cost: O(devices x slices) per choice."""

    def __init__(self, state: PoolState, times: AnswerTimes) -> None:
        self._state, self._times = state, times

    def next_own(self, device: Device) -> Task | None:
        """Return the first forward of the device's share."""
        own = [one for one in self._waiting(device) if one.share == device.name]
        return self._state.task(own[0], TaskKind.FORWARD) if own else None

    def next_free(self, device: Device, now: float) -> Task | None:
        """Return a task for a device that has none of its own: a backward, a forward, or one that a helper is slow with."""
        task = self._next_backward(device) or self.next_own(device) or self._next_stolen(device)
        return task if task is not None or device.given else self._next_slow(device, now)

    def backwards_of(self, device: Device) -> list[Task]:
        """Return the open backwards whose forward ``device`` has retained."""
        mine = [one for one in self._state.slices.values() if one.retained and one.owner == device.name]
        return [self._state.task(one, TaskKind.BACKWARD) for one in mine if self._state.is_open(one, TaskKind.BACKWARD)]

    def hedged(self, device: Device, other: Device) -> Task | None:
        """Return the first task of the helper ``other`` that nobody else has, and that ``device`` may repeat."""
        if other is device or other.late or other.name == self._state.server:
            return None
        for task in other.given:
            open_yet = task.kind not in self._state.slices[task.index].done and self._times.until_hedge(task.kind) is not None
            if open_yet and self._state.takers(task) == 1 and (task.kind is TaskKind.BACKWARD or not self._state.full(device)):
                return task
        return None

    def _next_backward(self, device: Device) -> Task | None:
        """Return the first open backward whose forward ``device`` computed, or whose owner is lost or late."""
        for one in self._state.slices.values():
            task = self._state.task(one, TaskKind.BACKWARD)
            if self._state.is_open(one, TaskKind.BACKWARD) and task not in device.given:
                owner = self._state.devices.get(one.owner)
                if not one.retained or owner is None or owner is device or owner.late:
                    return task
        return None

    def _waiting(self, device: Device) -> list[Slice]:
        """Return the slices whose forward ``device`` could begin."""
        if self._state.full(device):
            return []
        waiting = [one for one in self._state.slices.values() if self._state.is_open(one, TaskKind.FORWARD)]
        return [one for one in waiting if self._state.task(one, TaskKind.FORWARD) not in device.given]

    def _next_stolen(self, device: Device) -> Task | None:
        """Return the last forward of the share of a device that would end it later."""
        waiting = self._waiting(device)
        others = [one for one in waiting if self._sooner(device, self._state.devices.get(one.share), waiting)]
        return self._state.task(others[-1], TaskKind.FORWARD) if others else None

    def _sooner(self, device: Device, owner: Device | None, waiting: Sequence[Slice]) -> bool:
        """Return whether ``device`` expects to end one more task before ``owner`` ends the rest of its share.

        The server does not wait for an owner without room: its own computing needs no transfer.
        """
        if owner is None or owner.late or (device.name == self._state.server and self._state.full(owner)):
            return True
        left = len(owner.given) + sum(one.share == owner.name for one in waiting)
        return (len(device.given) + 1) / self._state.power(device.name) < left / self._state.power(owner.name)

    def _next_slow(self, device: Device, now: float) -> Task | None:
        """Return a task that a helper has had for long."""
        for other in self._state.devices.values():
            task = self.hedged(device, other)
            if task is not None and (until := self._times.until_hedge(task.kind)) is not None and now - other.since >= until:
                return task
        return None
