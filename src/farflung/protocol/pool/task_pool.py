"""The task pool of one stage at one reliable server, as a pure state machine: events in, commands out; no clock, no I/O.

Source: Hybrid-PS sections 3.1 and 3.2. The server divides a step on the job's grid of slices (its micro-batches) and shares them
among itself and the unreliable helpers of the stage, in runs by index in proportion to their power. The device that computed a
forward also computes the backward. A helper that is silent for too long, or lost, loses its tasks to the next free device. A
backward on another device begins with the forward again, from the stage's input, which the server stores. The first answer of a
task counts and all others are discarded, so each slice counts once.

Where several servers have the stage, each has the pool of its own slices. Helpers may take part in all of these pools, with a
share in each, so slices go by power over the whole stage. The other servers, its *peers*, have no share. A peer without slices of
its own reports that, and gets one task at a time.

Differences. Shares bind nobody who would be idle: a device without tasks takes from the share of another one if it expects to
end first. Power is measured with each answer, not once per epoch. A device has at most ``room`` slices between forward and
backward. The order of answers decides only who computes what, since sums are ``InOrder``. The server alone can end any step.

Cost: O(devices x slices) per event.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from farflung.protocol.pool.answer_times import AnswerTimes, Patience
from farflung.protocol.pool.ordered_items import InOrder
from farflung.protocol.pool.pool_events import (
    Accept,
    Answered,
    Discard,
    Do,
    Give,
    GradientCame,
    HelperCame,
    HelperWent,
    InputCame,
    PeerFree,
    PoolCommand,
    PoolEvent,
    SendStates,
    ServerFree,
    StepBegan,
    Task,
    TaskKind,
    TimePassed,
)
from farflung.protocol.pool.pool_state import Device, PoolState, shares_of
from farflung.protocol.pool.task_choice import TaskChoice

__all__ = ["InOrder", "Patience", "TaskPool", "shares_of"]

#: Tasks of a helper at a time: one that it computes, and one on its way.
_GIVEN = 2


class TaskPool:
    """One stage's slices at one server; ``handle`` is the only way to change them."""

    def __init__(
        self,
        server: str,
        *,
        room: int = 1,
        helper_room: int = 2,
        patience: Patience | None = None,
        peers: Mapping[str, float] | None = None,
    ) -> None:
        """``room``, ``helper_room``: slices that the server and a helper have between forward and backward, at most.

        ``peers``: the stage's other servers, and how fast they are (this server: 1).
        """
        self.server = server
        self._state = PoolState(server, peers or {}, room, helper_room)
        self._times = AnswerTimes(patience or Patience())
        self._choice = TaskChoice(self._state, self._times)
        self._handlers: dict[type, Callable[[Any], list[PoolCommand]]] = {
            StepBegan: self._began,
            InputCame: lambda event: self._came(event.indices, TaskKind.FORWARD),
            GradientCame: lambda event: self._came(event.indices, TaskKind.BACKWARD),
            HelperCame: self._helper_came,
            HelperWent: self._helper_went,
            Answered: self._answered,
            TimePassed: lambda event: [],
            ServerFree: self._free,
            PeerFree: self._peer_free,
        }

    def handle(self, event: PoolEvent) -> list[PoolCommand]:
        """Take one event; the commands are to be carried out in order."""
        commands = self._handlers[type(event)](event)
        self._mark_late(event.now)
        commands += self._feed(event.now)
        self._state.validate()
        return commands

    # -- queries ------------------------------------------------------------------------------------------------------

    @property
    def step(self) -> int:
        """The current step (-1: none has begun)."""
        return self._state.step

    @property
    def done(self) -> bool:
        """Whether every slice of the step has its forward and its backward."""
        return all(len(one.done) == len(TaskKind) for one in self._state.slices.values())

    @property
    def helpers(self) -> tuple[str, ...]:
        """The present helpers, in the order in which they came."""
        return tuple(device.name for device in self._state.helpers())

    @property
    def spare(self) -> int:
        """For how many slices of peers the server has room: none before all its own slices have their forward."""
        if not all(TaskKind.FORWARD in one.done for one in self._state.slices.values()):
            return 0
        return self._state.space(self._state.devices[self.server])

    def owners(self) -> list[tuple[str, int, int]]:
        """Return which device computed which forwards, in order: (device, first slice, last slice)."""
        found: list[tuple[str, int, int]] = []
        for index in sorted(self._state.slices):
            owner = self._state.slices[index].owner
            if found and found[-1][0] == owner and found[-1][2] == index - 1:
                found[-1] = (owner, found[-1][1], index)
            elif owner:
                found.append((owner, index, index))
        return found

    def power(self, name: str) -> float:
        """Return the slices per second of a device."""
        return self._state.power(name)

    def takers(self, task: Task) -> int:
        """Return how many devices work on ``task``."""
        return self._state.takers(task)

    def deadline(self) -> float | None:
        """Return when the next helper will be late, or its task will be repeated (None: nobody works)."""
        server = self._state.devices[self.server]
        times = []
        for device in self._state.others():
            if device.given:
                times.append(device.since + self._times.until_late(device.given[0].kind))
                shared = self._choice.hedged(server, device)
                if shared is not None and (until := self._times.until_hedge(shared.kind)) is not None:
                    times.append(device.since + until)
        return min(times, default=None)

    # -- events -------------------------------------------------------------------------------------------------------

    def _began(self, event: StepBegan) -> list[PoolCommand]:
        assert self.done, f"step {self.step} is not over"
        self._state.begin(event.step, event.slices)
        return [SendStates(helper=name, step=self.step) for name in self.helpers]

    def _came(self, indices: Sequence[int], kind: TaskKind) -> list[PoolCommand]:
        for index in indices:
            self._state.slices[index].inputs.add(kind)
        return []

    def _helper_came(self, event: HelperCame) -> list[PoolCommand]:
        assert event.helper != self.server
        state = self._state
        state.add(event.helper, event.speed)
        state.share_out()
        # a peer that is not done yet may need the helper, too
        needed = any(device.peer for device in state.devices.values()) or not self.done
        return [SendStates(helper=event.helper, step=self.step)] if state.slices and needed else []

    def _helper_went(self, event: HelperWent) -> list[PoolCommand]:
        if event.helper != self.server and event.helper in self._state.devices:
            self._state.forget(event.helper)
            self._state.share_out()
        return []

    def _answered(self, event: Answered) -> list[PoolCommand]:
        device, task = self._state.devices.get(event.device), event.task
        asked = device is not None and task in device.given
        if device is not None and asked:
            seconds = device.answered(task, event.seconds, event.now)
            if device.name != self.server:
                self._times.add(task.kind, seconds)
        one = self._state.slices.get(task.index)
        if task.step != self.step or one is None or task.kind in one.done:
            return [Discard(device=event.device, task=task)]
        if task.kind not in one.inputs or (task.kind is TaskKind.BACKWARD and not one.owner):
            return [Discard(device=event.device, task=task)]  # nobody was asked for it
        if task.kind is TaskKind.FORWARD:
            one.owner, one.retained = event.device, asked
        one.done.add(task.kind)
        return [Accept(device=event.device, task=task)]

    def _free(self, event: ServerFree) -> list[PoolCommand]:
        server = self._state.devices[self.server]
        assert not server.given, f"{self.server} is not free: {server.given}"
        task = self._choice.next_free(server, event.now)
        if task is None:
            return []
        self._state.take(server, task, event.now)
        return [Do(task=task, recompute=self._state.recomputes(server, task))]

    def _peer_free(self, event: PeerFree) -> list[PoolCommand]:
        device = self._state.devices.get(event.peer)
        if device is not None and device.peer and event.step == self.step:
            device.free = True
        return []

    # -- after each event ---------------------------------------------------------------------------------------------

    def _mark_late(self, now: float) -> None:
        late = [
            device
            for device in self._state.others()
            if device.given and now - device.since >= self._times.until_late(device.given[0].kind)
        ]
        for device in late:
            device.late = True
        if late:
            self._state.share_out()

    def _feed(self, now: float) -> list[PoolCommand]:
        """Give tasks to helpers, first those of their own, then those of other devices; and then to peers."""
        others, helpers = self._state.others(), [device for device in self._state.helpers() if not device.late]
        commands: list[PoolCommand] = [
            self._give(device, task, now) for device in others for task in self._choice.backwards_of(device)
        ]
        for stealing in (False, True):
            for device in helpers:
                while len(device.given) < _GIVEN:
                    task = self._choice.next_free(device, now) if stealing else self._choice.next_own(device)
                    if task is None:
                        break
                    commands.append(self._give(device, task, now))
        for device in others:
            task = self._choice.next_free(device, now) if device.free and not device.given else None
            if task is not None:
                device.free = False
                commands.append(self._give(device, task, now))
        return commands

    def _give(self, device: Device, task: Task, now: float) -> Give:
        self._state.take(device, task, now)
        return Give(helper=device.name, task=task, recompute=self._state.recomputes(device, task))
