"""The slices of a step and the devices that compute them, as one task pool knows them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from farflung.errors import InputError
from farflung.protocol.pool.pool_events import Task, TaskKind

__all__ = ["Device", "PoolState", "Slice", "shares_of", "soonest_shares"]

#: The weight of the newest answer in a device's rate.
_NEW = 0.3
#: A backward that was not measured counts as so many forwards.
_BACKWARD = 2.0


@dataclass(slots=True)
class Device:
    """The server, a helper or a peer server.

    ``took``: seconds of a task of each kind, from one answer to the next, transfers included. ``given``: unanswered tasks, the
    oldest first; ``since``: when the first of them began, in seconds of the server's clock. ``peer``: it has slices of its own,
    and takes a task of this pool when it is ``free``.
    """

    name: str
    speed: float
    took: dict[TaskKind, float] = field(default_factory=dict)
    given: list[Task] = field(default_factory=list)
    since: float = 0.0
    late: bool = False
    peer: bool = False
    free: bool = False

    def answered(self, task: Task, seconds: float, now: float) -> float:
        """It has answered ``task``, for which it computed ``seconds``. Return the time since it could begin."""
        waited = now - self.since
        self.late = False
        self.given.remove(task)
        self.since = now
        newest = max(seconds, waited, 1e-9)
        before = self.took.get(task.kind, newest)
        self.took[task.kind] = (1 - _NEW) * before + _NEW * newest
        return waited

    @property
    def rate(self) -> float:
        """Slices per second (0: not measured)."""
        forward = self.took.get(TaskKind.FORWARD)
        return 0.0 if forward is None else 1.0 / (forward + self.took.get(TaskKind.BACKWARD, _BACKWARD * forward))


@dataclass(slots=True)
class Slice:
    """``share``: the device that should compute it. ``inputs``: the kinds of tasks whose input is there.

    ``done``: the accepted tasks. ``owner``: the device that computed the forward; ``retained``: it still has what the backward
    needs.
    """

    index: int
    share: str
    inputs: set[TaskKind] = field(default_factory=set)
    done: set[TaskKind] = field(default_factory=set)
    owner: str = ""
    retained: bool = False


def shares_of(power: Sequence[float], count: int) -> list[int]:
    """Divide ``count`` slices in proportion to ``power`` (largest remainders, the first of equal ones).

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


def soonest_shares(power: Sequence[float], count: int) -> list[int]:
    """Divide ``count`` slices so that the device that takes longest for its share ends as early as possible.

    Slice after slice goes to the device that would end it first (the first of equal ones). A device that is slower at one slice
    than the others are at all of them gets none.
    """
    found = [0] * len(power)
    for _ in range(count):
        found[min(range(len(power)), key=lambda k: ((found[k] + 1) / power[k], k))] += 1
    return found


class PoolState:
    """``room``, ``helper_room``: slices that the server and a helper have between forward and backward, at most."""

    def __init__(self, server: str, peers: Mapping[str, float], room: int, helper_room: int) -> None:
        self.server = server
        self.step = -1
        self.slices: dict[int, Slice] = {}
        #: The server first, then its peers, then helpers in the order in which they came.
        self.devices = {server: Device(server, 1.0)}
        self.devices |= {name: Device(name, speed, peer=True) for name, speed in peers.items()}
        #: What tasks took helpers that are gone.
        self._took: dict[str, dict[TaskKind, float]] = {}
        self._room, self._helper_room = max(room, 1), max(helper_room, 1)

    def begin(self, step: int, indices: Sequence[int]) -> None:
        """Begin ``step`` with the slices ``indices``; late helpers drop their old tasks and count again."""
        self.step = step
        self.slices = {index: Slice(index, self.server) for index in indices}
        for device in self.devices.values():
            device.given.clear()
            device.late = device.free = False
        self.share_out()

    def add(self, helper: str, speed: float) -> None:
        """Add ``helper``. One that was here before counts as fast as it was then."""
        self.forget(helper)
        self.devices[helper] = Device(helper, speed, took=dict(self._took.pop(helper, {})))

    def forget(self, helper: str) -> None:
        """Remove ``helper``. What it retained is lost, even if it comes back."""
        gone = self.devices.pop(helper, None)
        if gone is not None:
            self._took[helper] = gone.took
        for one in self.slices.values():
            one.retained = one.retained and one.owner != helper

    def helpers(self) -> Iterator[Device]:
        """Yield the helpers, in the order in which they came."""
        return (device for device in self.devices.values() if device.name != self.server and not device.peer)

    def others(self) -> list[Device]:
        """Return the helpers and peers that are not late."""
        return [device for device in self.devices.values() if device.name != self.server and not device.late]

    def power(self, name: str) -> float:
        """Return slices per second; for unmeasured devices in proportion to the speeds of the measured ones."""
        device = self.devices[name]
        if device.rate:
            return device.rate
        known = [one for one in self.devices.values() if one.rate]
        return device.speed * (sum(one.rate for one in known) / sum(one.speed for one in known) if known else 1.0)

    def share_out(self) -> None:
        """Divide the slices that nobody has begun into runs by index, so that all end early; late helpers get none."""
        able = [device for device in self.devices.values() if not device.late and not device.peer]
        waiting = [self.slices[i] for i in sorted(self.slices) if self._unbegun(self.slices[i])]
        at = 0
        for device, count in zip(able, soonest_shares([self.power(one.name) for one in able], len(waiting)), strict=True):
            for one in waiting[at : at + count]:
                one.share = device.name
            at += count

    def _unbegun(self, one: Slice) -> bool:
        return TaskKind.FORWARD not in one.done and not self._has_taker(self.task(one, TaskKind.FORWARD))

    def take(self, device: Device, task: Task, now: float) -> None:
        """``device`` works on ``task`` from now on."""
        if not device.given:
            device.since = now
        device.given.append(task)

    def task(self, one: Slice, kind: TaskKind) -> Task:
        """Return the task of ``kind`` of a slice in this step."""
        return Task(step=self.step, kind=kind, index=one.index)

    def is_open(self, one: Slice, kind: TaskKind) -> bool:
        """Return whether the task of ``kind`` of a slice can be done and nobody in time does it."""
        if kind not in one.inputs or kind in one.done or (kind is TaskKind.BACKWARD and not one.owner):
            return False
        return not self._has_taker(self.task(one, kind))

    def recomputes(self, device: Device, task: Task) -> bool:
        """Return whether ``device`` must repeat the forward for ``task``."""
        one = self.slices[task.index]
        return task.kind is TaskKind.BACKWARD and not (one.retained and one.owner == device.name)

    def retained(self, device: Device) -> int:
        """Return how many slices ``device`` has between forward and backward."""
        return sum(
            one.retained and one.owner == device.name and TaskKind.BACKWARD not in one.done for one in self.slices.values()
        )

    def space(self, device: Device) -> int:
        """Return how many more slices ``device`` may have between forward and backward, apart from tasks that it has begun."""
        return (self._room if device.name == self.server else self._helper_room) - self.retained(device)

    def full(self, device: Device) -> bool:
        """Return whether ``device`` may begin no further forward."""
        return self.space(device) <= sum(task.kind is TaskKind.FORWARD for task in device.given)

    def validate(self) -> None:
        """Check the invariants (a failure is a defect of the task pool)."""
        for one in self.slices.values():
            assert bool(one.owner) == (TaskKind.FORWARD in one.done), f"slice {one.index}: a forward has one owner"
            assert TaskKind.BACKWARD not in one.done or TaskKind.FORWARD in one.done, f"slice {one.index}: backward came first"
        for device in self.devices.values():
            assert len(set(device.given)) == len(device.given), f"{device.name} has a task twice"

    def takers(self, task: Task) -> int:
        """Return how many devices work on ``task``."""
        return sum(task in device.given for device in self.devices.values())

    def _has_taker(self, task: Task) -> bool:
        """Return whether a device that is not late works on ``task``."""
        return any(task in device.given for device in self.devices.values() if not device.late)
