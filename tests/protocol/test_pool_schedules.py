"""Task pools in simulated time: random schedules in which helpers die, stop, come back, and answer late or twice.

A little world trains a chain of stages in floating-point numbers, whose sums depend on their order. Its weights must be bit-equal
to those of a plain loop, whatever happened; and it must end as long as its servers live.
"""

from __future__ import annotations

import math
import random
from collections import deque
from dataclasses import dataclass, field

import pytest

from farflung.protocol.pool_events import (
    Accept,
    Answered,
    Do,
    Give,
    GradientCame,
    HelperCame,
    HelperWent,
    InputCame,
    PoolCommand,
    SendStates,
    ServerFree,
    StepBegan,
    Task,
    TaskKind,
    TimePassed,
)
from farflung.protocol.task_pool import InOrder, Patience, TaskPool

#: What a device makes of a task: the forward's value, or (the input's gradient, the parameter's gradient).
Result = tuple[float, ...]


def forward_of(state: float, value: float) -> float:
    return math.sin(state * value) + 0.3 * value


def backward_of(state: float, value: float, gradient: float) -> tuple[float, float]:
    slope = math.cos(state * value)
    return gradient * (slope * state + 0.3), gradient * slope * value


def sample(step: int, index: int) -> float:
    return math.sin(12.9 * step + 78.2 * index) * 3.0


def plain(stages: int, slices: int, steps: int) -> list[float]:
    """The undisturbed loop."""
    states = [0.01 * (stage + 1) for stage in range(stages)]
    for step in range(steps):
        sums = [0.0] * stages
        for index in range(slices):
            values = [sample(step, index)]
            for state in states:
                values.append(forward_of(state, values[-1]))
            gradient = values[-1]
            for stage in reversed(range(stages)):
                gradient, own = backward_of(states[stage], values[stage], gradient)
                sums[stage] += own
        states = [state - total for state, total in zip(states, sums, strict=True)]
    return states


@dataclass
class Helper:
    """An unreliable device: it does what it is sent in order, and keeps what its forwards need later."""

    stage: int
    life: int = 0
    alive: bool = False
    stopped: bool = False
    state: float = math.nan
    kept: dict[int, float] = field(default_factory=dict)
    queue: deque[tuple[object, ...]] = field(default_factory=deque)


@dataclass
class Stage:
    """A reliable server with its pool."""

    pool: TaskPool
    state: float
    name: str
    inputs: dict[int, float] = field(default_factory=dict)
    gradients: dict[int, float] = field(default_factory=dict)
    kept: dict[int, float] = field(default_factory=dict)
    total: float = 0.0
    sums: InOrder[float] = field(default_factory=lambda: InOrder(()))
    counted: list[int] = field(default_factory=list)
    doing: Do | None = None
    inbox: deque[tuple[str, Task, Result]] = field(default_factory=deque)


class World:
    """A chain of stages, their helpers, and chance."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.now = 0.0
        self.slices, self.steps = self.chance.randint(1, 7), self.chance.randint(1, 3)
        self.step = -1
        room, helper_room = self.chance.randint(1, 3), self.chance.randint(1, 3)
        patience = Patience(least=1.0, factor=self.chance.choice([1.0, 3.0]), first=4.0, hedge=self.chance.choice([0.0, 0.8]))
        self.stages = []
        for stage in range(self.chance.randint(1, 3)):
            name = f"s{stage}"
            pool = TaskPool(name, self.chance.uniform(0.5, 2.0), room=room, helper_room=helper_room, patience=patience)
            self.stages.append(Stage(pool, 0.01 * (stage + 1), name))
        self.helpers = {f"c{i}": Helper(self.chance.randrange(len(self.stages))) for i in range(self.chance.randint(0, 5))}
        self.discarded = self.taken_over = 0

    # -- what the pools decide ----------------------------------------------------------------------------------------

    def carry_out(self, stage: Stage, commands: list[PoolCommand]) -> None:
        for command in commands:
            if isinstance(command, SendStates):
                self.helpers[command.helper].queue.append(("states", stage.state))
            elif isinstance(command, Give):
                self.taken_over += command.recompute
                task = command.task
                value = stage.inputs[task.index] if task.kind is TaskKind.FORWARD or command.recompute else None
                gradient = stage.gradients[task.index] if task.kind is TaskKind.BACKWARD else None
                self.helpers[command.helper].queue.append(("task", task, value, gradient))
            elif isinstance(command, Do):
                assert stage.doing is None
                stage.doing = command
            elif not isinstance(command, Accept):
                self.discarded += 1

    def accept(self, number: int, device: str, task: Task, result: Result, seconds: float) -> None:
        stage = self.stages[number]
        commands = stage.pool.handle(Answered(device=device, task=task, seconds=seconds, now=self.now))
        counts = Accept(device=device, task=task) in commands
        self.carry_out(stage, commands)
        if not counts:
            return
        if task.kind is TaskKind.FORWARD:
            self.pass_on(number, task.index, result[0])
            return
        for index, own in stage.sums.put(task.index, result[1]):
            stage.counted.append(index)
            stage.total += own
        if number > 0:
            self.bring_gradient(number - 1, task.index, result[0])

    def pass_on(self, number: int, index: int, value: float) -> None:
        if number + 1 < len(self.stages):
            self.bring_input(number + 1, index, value)
        else:
            self.bring_gradient(number, index, value)

    def bring_input(self, number: int, index: int, value: float) -> None:
        self.stages[number].inputs[index] = value
        self.carry_out(self.stages[number], self.stages[number].pool.handle(InputCame(indices=(index,), now=self.now)))

    def bring_gradient(self, number: int, index: int, value: float) -> None:
        self.stages[number].gradients[index] = value
        self.carry_out(self.stages[number], self.stages[number].pool.handle(GradientCame(indices=(index,), now=self.now)))

    # -- what happens -------------------------------------------------------------------------------------------------

    def serve(self, number: int) -> None:
        """The server begins a task, or ends the one that it does."""
        stage = self.stages[number]
        if stage.doing is None:
            self.carry_out(stage, stage.pool.handle(ServerFree(now=self.now)))
            return
        doing, stage.doing = stage.doing, None
        index = doing.task.index
        if doing.task.kind is TaskKind.FORWARD or doing.recompute:
            stage.kept[index] = stage.inputs[index]
        if doing.task.kind is TaskKind.FORWARD:
            result: Result = (forward_of(stage.state, stage.kept[index]),)
        else:
            result = backward_of(stage.state, stage.kept.pop(index), stage.gradients[index])
        self.accept(number, stage.name, doing.task, result, self.chance.uniform(0.1, 1.0))

    def work(self, name: str) -> None:
        """A helper takes the next thing that it was sent."""
        helper = self.helpers[name]
        if helper.stopped or not helper.queue:
            return
        kind, *content = helper.queue.popleft()
        if kind == "states":
            helper.state, helper.kept = content[0], {}  # type: ignore[assignment]
            return
        task, value, gradient = content
        assert isinstance(task, Task)
        if value is not None:
            helper.kept[task.index] = value  # type: ignore[assignment]
        if task.kind is TaskKind.FORWARD:
            result: Result = (forward_of(helper.state, helper.kept[task.index]),)
        else:
            result = backward_of(helper.state, helper.kept.pop(task.index), gradient)  # type: ignore[arg-type]
        inbox = self.stages[helper.stage].inbox
        inbox.append((name, task, result))
        if self.chance.random() < 0.05:
            inbox.append((name, task, result))  # a repeat after a reconnection

    def hear(self, number: int) -> None:
        stage = self.stages[number]
        if stage.inbox:
            device, task, result = stage.inbox.popleft()
            self.accept(number, device, task, result, self.chance.uniform(0.1, 5.0))

    def join(self, name: str) -> None:
        helper = self.helpers[name]
        helper.alive, helper.stopped, helper.state = True, False, math.nan
        helper.kept.clear()
        helper.queue.clear()
        stage = self.stages[helper.stage]
        self.carry_out(stage, stage.pool.handle(HelperCame(helper=name, speed=self.chance.uniform(0.2, 3.0), now=self.now)))

    def leave(self, name: str) -> None:
        helper = self.helpers[name]
        helper.alive = False
        stage = self.stages[helper.stage]
        if self.chance.random() < 0.5:  # what it had sent may arrive, and may not
            stage.inbox = deque(one for one in stage.inbox if one[0] != name)
        self.carry_out(stage, stage.pool.handle(HelperWent(helper=name, now=self.now)))

    def disturb(self) -> None:
        if not self.helpers:
            return
        name = self.chance.choice(sorted(self.helpers))
        helper = self.helpers[name]
        if not helper.alive:
            self.join(name)
        elif helper.stopped or self.chance.random() < 0.5:
            helper.stopped = not helper.stopped
        else:
            self.leave(name)

    def advance(self) -> None:
        """Time passes; a step that is done is committed, and the next one begins."""
        self.now += self.chance.uniform(0.1, 3.0)
        for stage in self.stages:
            self.carry_out(stage, stage.pool.handle(TimePassed(now=self.now)))
        busy = any(stage.doing is not None or not stage.pool.done for stage in self.stages)
        if self.over or (self.step >= 0 and busy):
            return
        for stage in self.stages:
            assert stage.counted == (list(range(self.slices)) if self.step >= 0 else [])
            stage.state -= stage.total
            stage.total, stage.counted, stage.sums = 0.0, [], InOrder(range(self.slices))
            for kept in (stage.inputs, stage.gradients, stage.kept):
                kept.clear()
        self.step += 1
        if self.over:
            return
        for stage in self.stages:
            began = StepBegan(step=self.step, slices=tuple(range(self.slices)), now=self.now)
            self.carry_out(stage, stage.pool.handle(began))
        at_once = self.chance.random() < 0.5
        first = self.stages[0]
        for index in range(self.slices):
            first.inputs[index] = sample(self.step, index)
        for indices in [tuple(range(self.slices))] if at_once else [(index,) for index in range(self.slices)]:
            self.carry_out(first, first.pool.handle(InputCame(indices=indices, now=self.now)))

    @property
    def over(self) -> bool:
        return self.step >= self.steps

    def tick(self, faults: float) -> None:
        if self.chance.random() < faults:
            self.disturb()
        kind = self.chance.randrange(4)
        number = self.chance.randrange(len(self.stages))
        if kind == 0:
            self.serve(number)
        elif kind == 1:
            self.hear(number)
        elif kind == 2 and self.helpers:
            name = self.chance.choice(sorted(self.helpers))
            if self.helpers[name].alive:
                self.work(name)
        else:
            self.advance()


def play(seed: int) -> World:
    world = World(seed)
    faults = world.chance.choice([0.0, 0.05, 0.3])
    for _ in range(world.chance.randint(0, 150)):
        world.tick(faults)
    for name in sorted(world.helpers):  # from now on some are silent for ever, nobody tells, and the servers go on
        world.helpers[name].stopped |= world.chance.random() < 0.5
    for _ in range(20_000):
        if world.over:
            break
        world.tick(0.0)
    assert world.over, "it does not go on although all servers live"
    states = plain(len(world.stages), world.slices, world.steps)
    assert [stage.state.hex() for stage in world.stages] == [state.hex() for state in states]
    return world


@pytest.mark.parametrize("part", range(8))
def test_weights_are_those_of_the_plain_loop(part: int):
    worlds = [play(seed) for seed in range(250 * part, 250 * (part + 1))]
    assert sum(world.discarded for world in worlds) > 50, "answers came late or twice"
    assert sum(world.taken_over for world in worlds) > 50, "backwards were taken over"


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("part", range(1, 50))
def test_many_more_schedules(part: int):
    for seed in range(2000 * part, 2000 * (part + 1)):
        play(seed)


def test_the_order_of_addition_matters_here():
    """Else the test above could not fail: sums in another order give other weights."""
    differ = 0
    for slices in range(4, 20):
        values = [sample(0, index) for index in range(slices)]
        differ += sum(values[1:], values[0]) != sum(values[-2::-1], values[-1])
    assert differ >= 8
