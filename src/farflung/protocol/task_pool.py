"""The task pool of one stage at one reliable server, as a pure state machine: events in, commands out; no clock, no I/O.

Source: Hybrid-PS sections 3.1 and 3.2. The server cuts a step on the job's grid of slices (its micro-batches) and shares them
among itself and the unreliable helpers of the stage, in runs by index in proportion to their power. The list of who made which
forward says who makes which backward. A helper that is silent for too long, or gone, loses its tasks to the next free device; a
backward that is taken over begins with the forward again, from the stage's input, which the server keeps. The first answer of
a task counts and all others are discarded, so each slice counts once.

Where several servers hold the stage, each has the pool of its own slices. Helpers may stand in all of these pools, and have a
share in each; so slices go by power over the whole stage. The other servers, its *fellows*, have no share: one that has nothing
left of its own says so, and is given one task at a time.

What differs. Shares bind nobody who would be idle: a device without anything of its own takes from the share of another one if
it expects to end first. Power is measured anew with each answer instead of once an epoch. A device holds at most ``room``
slices between forward and backward. Nothing here depends on the order of answers but who does what: sums are ``InOrder``. The
server alone can end any step.

Cost: O(devices x slices) per event.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Generic, TypeVar

from farflung.errors import InputError
from farflung.protocol.pool_events import (
    Accept,
    Answered,
    Discard,
    Do,
    FellowFree,
    Give,
    GradientCame,
    HelperCame,
    HelperWent,
    InputCame,
    PoolCommand,
    PoolEvent,
    SendStates,
    ServerFree,
    StepBegan,
    Task,
    TaskKind,
    TimePassed,
)

__all__ = ["InOrder", "Patience", "TaskPool", "shares_of"]

Item = TypeVar("Item")

_SEEN = 16
_NEW = 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long a helper may take for a task before others may have it: ``factor`` times the longest of the last answers of the
    kind, but ``least`` seconds; ``first`` before there was any answer.

    ``hedge``: a device with nothing else to do also does a helper's task that has taken ``hedge`` times as long as the middle one
    of the last answers (0: never).
    """

    least: float = 2.0
    factor: float = 4.0
    first: float = 20.0
    hedge: float = 0.0


class InOrder(Generic[Item]):
    """Gives items back by ascending index, however they come: the order in which they are added up."""

    def __init__(self, indices: Sequence[int]) -> None:
        self._left = deque(sorted(indices))
        self._held: dict[int, Item] = {}

    def put(self, index: int, item: Item) -> Iterator[tuple[int, Item]]:
        """Keep ``item``; all that are next now."""
        assert index in self._left, f"slice {index} counts once"
        assert index not in self._held, f"slice {index} counts once"
        self._held[index] = item
        while self._left and self._left[0] in self._held:
            first = self._left.popleft()
            yield first, self._held.pop(first)

    @property
    def done(self) -> bool:
        """Whether all were given back."""
        return not self._left


@dataclass(slots=True)
class _Device:
    """The server, a helper or a fellow. ``given``: tasks on their way, the oldest first; ``since``: from when on it has had the
    first. ``fellow``: it has its own slices, and takes a task of this pool when it is ``free``."""

    name: str
    speed: float
    rate: float = 0.0
    given: list[Task] = field(default_factory=list)
    since: float = 0.0
    late: bool = False
    fellow: bool = False
    free: bool = False


@dataclass(slots=True)
class _Slice:
    """``has``: what it has the input of (forward, backward). ``done``: what was accepted. ``owner``: who made the forward, and
    ``kept``: still has what the backward needs of it."""

    index: int
    share: str
    has: set[TaskKind] = field(default_factory=set)
    done: set[TaskKind] = field(default_factory=set)
    owner: str = ""
    kept: bool = False


def shares_of(power: Sequence[float], count: int) -> list[int]:
    """``count`` slices in proportion to ``power`` (largest remainders, the first of equal ones).

    Raises:
        InputError: a power is not more than 0.
    """
    if not power or min(power) <= 0:
        raise InputError(f"shares need powers above 0, got {list(power)!r:.80}")
    total = sum(power)
    exact = [count * one / total for one in power]
    found = [int(one) for one in exact]
    for k in sorted(range(len(power)), key=lambda k: (found[k] - exact[k], k))[: count - sum(found)]:
        found[k] += 1
    return found


class TaskPool:
    """One stage's slices at one server; ``handle`` is the only way in."""

    def __init__(
        self,
        server: str,
        *,
        room: int = 1,
        helper_room: int = 2,
        patience: Patience | None = None,
        fellows: Mapping[str, float] | None = None,
    ) -> None:
        """``room``, ``helper_room``: slices that the server and a helper hold between forward and backward, at most.

        ``fellows``: the stage's other servers, and how fast they are (this server: 1).
        """
        self.server = server
        self.step = -1
        self._room, self._helper_room = max(room, 1), max(helper_room, 1)
        self._patience = patience or Patience()
        #: The server first, then its fellows, then helpers as they came.
        self._devices = {server: _Device(server, 1.0)}
        self._devices |= {name: _Device(name, speed, fellow=True) for name, speed in (fellows or {}).items()}
        self._slices: dict[int, _Slice] = {}
        self._seen: dict[TaskKind, deque[float]] = {kind: deque(maxlen=_SEEN) for kind in TaskKind}
        self._handlers: dict[type, Callable[[Any], list[PoolCommand]]] = {
            StepBegan: self._began,
            InputCame: lambda event: self._came(event.indices, TaskKind.FORWARD),
            GradientCame: lambda event: self._came(event.indices, TaskKind.BACKWARD),
            HelperCame: self._helper_came,
            HelperWent: self._helper_went,
            Answered: self._answered,
            TimePassed: lambda event: [],
            ServerFree: self._free,
            FellowFree: self._fellow_free,
        }

    def handle(self, event: PoolEvent) -> list[PoolCommand]:
        """Take one event; the commands are to be carried out in order."""
        commands = self._handlers[type(event)](event)
        self._look_for_late(event.now)
        commands += self._feed(event.now)
        self.validate()
        return commands

    # -- looking ------------------------------------------------------------------------------------------------------

    @property
    def done(self) -> bool:
        """Whether every slice of the step has its forward and its backward."""
        return all(len(one.done) == len(TaskKind) for one in self._slices.values())

    @property
    def helpers(self) -> tuple[str, ...]:
        """The helpers that are here, as they came."""
        return tuple(device.name for device in self._devices.values() if self._helps(device))

    @property
    def spare(self) -> int:
        """How many slices of fellows the server has room for: none before its own ones have all had their forward."""
        if not all(TaskKind.FORWARD in one.done for one in self._slices.values()):
            return 0
        return self._room - self._held(self._devices[self.server])

    def _helps(self, device: _Device) -> bool:
        return device.name != self.server and not device.fellow

    def owners(self) -> list[tuple[str, int, int]]:
        """The ordered list of who made which forwards: (device, first slice, last slice)."""
        found: list[tuple[str, int, int]] = []
        for index in sorted(self._slices):
            owner = self._slices[index].owner
            if found and found[-1][0] == owner and found[-1][2] == index - 1:
                found[-1] = (owner, found[-1][1], index)
            elif owner:
                found.append((owner, index, index))
        return found

    def power(self, name: str) -> float:
        """Forwards per second; what was not measured is taken from the devices' speeds, in the proportion of those that were."""
        device = self._devices[name]
        if device.rate:
            return device.rate
        known = [one for one in self._devices.values() if one.rate]
        return device.speed * (sum(one.rate for one in known) / sum(one.speed for one in known) if known else 1.0)

    def deadline(self) -> float | None:
        """When the next helper will be late (None: nobody works)."""
        times = [
            device.since + wait
            for device in self._devices.values()
            if device.given and device.name != self.server and not device.late
            for wait in self._waits(device)
        ]
        return min(times, default=None)

    def _waits(self, device: _Device) -> list[float]:
        """How long ``device`` may take: until it is late, and until the server does what it has, too."""
        shared = self._shareable(self._devices[self.server], device)
        hedged = [] if shared is None else [self._hedged(shared.kind)]
        return [self._allowed(device.given[0].kind), *hedged]

    def validate(self) -> None:
        """The machine's own invariants (a failure is a defect of this class)."""
        for one in self._slices.values():
            assert bool(one.owner) == (TaskKind.FORWARD in one.done), f"slice {one.index}: a forward has one owner"
            assert TaskKind.BACKWARD not in one.done or TaskKind.FORWARD in one.done, f"slice {one.index}: backward came first"
        for device in self._devices.values():
            assert len(set(device.given)) == len(device.given), f"{device.name} has a task twice"

    # -- events -------------------------------------------------------------------------------------------------------

    def _began(self, event: StepBegan) -> list[PoolCommand]:
        assert self.done, f"step {self.step} is not over"
        self.step = event.step
        self._slices = {index: _Slice(index, self.server) for index in event.slices}
        for device in self._devices.values():
            device.given.clear()  # a late helper begins anew with the others: it drops what it has of the last step
            device.late = device.free = False
        self._share_out()
        return [SendStates(helper=name, step=self.step) for name in self.helpers]

    def _came(self, indices: Sequence[int], kind: TaskKind) -> list[PoolCommand]:
        for index in indices:
            self._slices[index].has.add(kind)
        return []

    def _helper_came(self, event: HelperCame) -> list[PoolCommand]:
        assert event.helper != self.server
        self._forget(event.helper)
        self._devices[event.helper] = _Device(event.helper, event.speed)
        self._share_out()
        wanted = any(device.fellow for device in self._devices.values()) or not self.done  # a fellow may not be done
        return [SendStates(helper=event.helper, step=self.step)] if self._slices and wanted else []

    def _helper_went(self, event: HelperWent) -> list[PoolCommand]:
        if event.helper != self.server and event.helper in self._devices:
            self._forget(event.helper)
            self._share_out()
        return []

    def _forget(self, helper: str) -> None:
        """What it had kept is gone, also if it comes back."""
        self._devices.pop(helper, None)
        for one in self._slices.values():
            one.kept = one.kept and one.owner != helper

    def _answered(self, event: Answered) -> list[PoolCommand]:
        device, task = self._devices.get(event.device), event.task
        asked = device is not None and task in device.given
        if device is not None and asked:
            device.late = False
            if event.device != self.server:
                self._seen[task.kind].append(event.now - device.since)
            device.given.remove(task)
            device.since = event.now
            if task.kind is TaskKind.FORWARD:
                rate = 1.0 / max(event.seconds, 1e-9)
                device.rate = rate if not device.rate else (1 - _NEW) * device.rate + _NEW * rate
        one = self._slices.get(task.index)
        if task.step != self.step or one is None or task.kind in one.done:
            return [Discard(device=event.device, task=task)]
        if task.kind not in one.has or (task.kind is TaskKind.BACKWARD and not one.owner):
            return [Discard(device=event.device, task=task)]  # nobody was asked for it
        if task.kind is TaskKind.FORWARD:
            one.owner, one.kept = event.device, asked
        one.done.add(task.kind)
        return [Accept(device=event.device, task=task)]

    def _free(self, event: ServerFree) -> list[PoolCommand]:
        server = self._devices[self.server]
        assert not server.given, f"{self.server} is not free: {server.given}"
        task = self._next_free(server, event.now)
        if task is None:
            return []
        self._take(server, task, event.now)
        return [Do(task=task, recompute=self._repeats(server, task))]

    def _fellow_free(self, event: FellowFree) -> list[PoolCommand]:
        device = self._devices.get(event.fellow)
        if device is not None and device.fellow and event.step == self.step:
            device.free = True
        return []

    # -- who does what ------------------------------------------------------------------------------------------------

    def _share_out(self) -> None:
        """Slices that nobody has begun, in runs by index, in proportion to power; late helpers get none."""
        able = [device for device in self._devices.values() if not device.late and not device.fellow]
        waiting = [self._slices[i] for i in sorted(self._slices) if self._unbegun(self._slices[i])]
        at = 0
        for device, count in zip(able, shares_of([self.power(one.name) for one in able], len(waiting)), strict=True):
            for one in waiting[at : at + count]:
                one.share = device.name
            at += count

    def _unbegun(self, one: _Slice) -> bool:
        return TaskKind.FORWARD not in one.done and not self._has_taker(self._task(one, TaskKind.FORWARD))

    def _has_taker(self, task: Task) -> bool:
        """Whether somebody works on it who is not late."""
        return any(task in device.given for device in self._devices.values() if not device.late)

    def _look_for_late(self, now: float) -> None:
        late = [
            device
            for device in self._devices.values()
            if device.name != self.server and device.given and not device.late
            if now - device.since >= self._allowed(device.given[0].kind)
        ]
        for device in late:
            device.late = True
        if late:
            self._share_out()

    def _allowed(self, kind: TaskKind) -> float:
        seen = self._seen[kind]
        return max(self._patience.least, self._patience.factor * max(seen)) if seen else self._patience.first

    def _feed(self, now: float) -> list[PoolCommand]:
        """Tasks for helpers: first what only they should do, then what they can take from others; then for fellows."""
        commands: list[PoolCommand] = []
        others = [device for device in self._devices.values() if device.name != self.server and not device.late]
        for device in others:
            mine = [one for one in self._slices.values() if one.kept and one.owner == device.name]
            ready = [self._task(one, TaskKind.BACKWARD) for one in mine if self._open(one, TaskKind.BACKWARD)]
            commands += [self._give(device, task, now) for task in ready]
        for stealing in (False, True):
            for device in filter(self._helps, others):
                while len(device.given) < 2:
                    task = self._next_free(device, now) if stealing else self._next_forward(device, stealing=False)
                    if task is None:
                        break
                    commands.append(self._give(device, task, now))
        for device in others:
            task = self._next_free(device, now) if device.free and not device.given else None
            if task is not None:
                device.free = False
                commands.append(self._give(device, task, now))
        return commands

    def _next_free(self, device: _Device, now: float) -> Task | None:
        """What a device that has nothing of its own can take from others."""
        task = self._next_backward(device) or self._next_forward(device, stealing=True)
        return task if task is not None or device.given else self._next_slow(device, now)

    def _give(self, device: _Device, task: Task, now: float) -> Give:
        self._take(device, task, now)
        return Give(helper=device.name, task=task, recompute=self._repeats(device, task))

    def _take(self, device: _Device, task: Task, now: float) -> None:
        if not device.given:
            device.since = now
        device.given.append(task)

    def _repeats(self, device: _Device, task: Task) -> bool:
        one = self._slices[task.index]
        return task.kind is TaskKind.BACKWARD and not (one.kept and one.owner == device.name)

    def _task(self, one: _Slice, kind: TaskKind) -> Task:
        return Task(step=self.step, kind=kind, index=one.index)

    def _open(self, one: _Slice, kind: TaskKind) -> bool:
        """Whether it can be done and nobody does it."""
        if kind not in one.has or kind in one.done or (kind is TaskKind.BACKWARD and not one.owner):
            return False
        return not self._has_taker(self._task(one, kind))

    def _next_backward(self, device: _Device) -> Task | None:
        """The first whose forward ``device`` has made, or whose owner is gone or late."""
        for one in self._slices.values():
            if self._open(one, TaskKind.BACKWARD) and self._task(one, TaskKind.BACKWARD) not in device.given:
                owner = self._devices.get(one.owner)
                if not one.kept or owner is None or owner is device or owner.late:
                    return self._task(one, TaskKind.BACKWARD)
        return None

    def _next_forward(self, device: _Device, *, stealing: bool) -> Task | None:
        """The first of its share, else the last of the share of who would be later with it."""
        if self._full(device):
            return None
        waiting = [one for one in self._slices.values() if self._open(one, TaskKind.FORWARD)]
        waiting = [one for one in waiting if self._task(one, TaskKind.FORWARD) not in device.given]
        own = [one for one in waiting if one.share == device.name]
        if own:
            return self._task(own[0], TaskKind.FORWARD)
        others = [one for one in waiting if stealing and self._sooner(device, self._devices.get(one.share), waiting)]
        return self._task(others[-1], TaskKind.FORWARD) if others else None

    def _hedged(self, kind: TaskKind) -> float:
        """How long a task of ``kind`` may take before somebody idle does it, too."""
        return self._patience.hedge * median(self._seen[kind])

    def _shareable(self, device: _Device, other: _Device) -> Task | None:
        """The first task of the helper ``other`` that nobody else has, and that ``device`` may do, too."""
        if not self._patience.hedge or other is device or other.late or other.name == self.server:
            return None
        for task in other.given:
            open_yet = task.kind not in self._slices[task.index].done and bool(self._seen[task.kind])
            alone = sum(task in one.given for one in self._devices.values()) == 1
            if open_yet and alone and (task.kind is TaskKind.BACKWARD or not self._full(device)):
                return task
        return None

    def _next_slow(self, device: _Device, now: float) -> Task | None:
        """A helper's task that takes long; ``device`` has nothing to do."""
        for other in self._devices.values():
            task = self._shareable(device, other)
            if task is not None and now - other.since >= self._hedged(task.kind):
                return task
        return None

    def _full(self, device: _Device) -> bool:
        """Whether it holds as many slices as it may."""
        begun = sum(task.kind is TaskKind.FORWARD for task in device.given)
        return self._held(device) + begun >= (self._room if device.name == self.server else self._helper_room)

    def _held(self, device: _Device) -> int:
        """How many slices it has between forward and backward."""
        return sum(one.kept and one.owner == device.name and TaskKind.BACKWARD not in one.done for one in self._slices.values())

    def _sooner(self, device: _Device, owner: _Device | None, waiting: Sequence[_Slice]) -> bool:
        """Whether ``device`` expects to end one more task before ``owner`` ends what it has yet to do of its share."""
        if owner is None or owner.late or self._full(owner):
            return True
        left = len(owner.given) + sum(one.share == owner.name for one in waiting)
        return (len(device.given) + 1) / self.power(device.name) < left / self.power(owner.name)
