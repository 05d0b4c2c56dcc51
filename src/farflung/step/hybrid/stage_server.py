"""A server's side of a hybrid plan: the stages' slices are computed here and by helpers, as the task pool says.

Helpers are given the stage's states in each step and whatever a task needs, and give back what it makes; they hold nothing that
is needed. Where a stage has several servers, each keeps its own slices; helpers help all of them, and they help each other
(``fellows``). Gradients are added by ascending slice, so the sum is that of a plain loop whoever made them and whenever they
came. All inputs stay here until the step is over, for a backward that is taken over.

Cost, beside the plan's figure: the inputs of the stage's slices of a step, one copy of its states while there are helpers, and a
gradient of the stage for each slice whose backward ended before that of an earlier one.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import Future
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from farflung.engines.base import Array
from farflung.errors import ConnectionLost, FarflungError
from farflung.graph.cut import SubGraph
from farflung.graph.ir import Use, ValueRef
from farflung.messages.fields import whole
from farflung.protocol.pool_events import (
    Accept,
    Answered,
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
from farflung.protocol.task_pool import InOrder, Patience, TaskPool
from farflung.schedules.base import Action, ActionKind
from farflung.step.hybrid.peer_servers import Fellows
from farflung.step.hybrid.slices import AHEAD, HELD, NOW, Answer, Order, SliceWork, StageSlices, compute
from farflung.step.run_setup import Phase
from farflung.step.step_meter import StepMeter
from farflung.telemetry.events import SpanKind
from farflung.telemetry.faults import fault_point
from farflung.transports.base import Endpoint, Urgency
from farflung.units import Seconds, counted
from farflung.wire.frames import Frame

if TYPE_CHECKING:
    from farflung.step.executor import Executor

__all__ = ["Serving"]

Gradients = Mapping[Use, Array]

#: Where duplicates are wanted: a task may take so many times as long as the middle one of the last.
_HEDGE = 1.5


class Serving:
    """The pools of one executor's stages. ``pipeline`` is for the compute thread, all else for any."""

    def __init__(self, executor: Executor, endpoint: Endpoint, patience: Patience | None = None) -> None:
        self._executor, self._endpoint = executor, endpoint
        setup = executor.setup
        count = len(setup.plan.stages)
        #: The other servers of the own stages.
        self.fellows = Fellows(executor)
        self._pools: dict[int, TaskPool] = {}
        patience = patience or Patience(hedge=_HEDGE if setup.job.plan.duplicates else 0.0)
        for stage in setup.own_stages:
            room = setup.job.micro_batches if setup.plan.schedule == "gpipe" else count - stage
            fellows = self.fellows.speeds[stage]
            helper_room = max(2, room // (1 + len(fellows)))  # a helper holds slices of all of them
            self._pools[stage] = TaskPool(setup.device, room=room, helper_room=helper_room, patience=patience, fellows=fellows)
        self._slices = {stage: StageSlices(setup, stage) for stage in setup.own_stages}
        self._lock = threading.Lock()
        #: helper -> its stage and the way to it
        self._lines: dict[str, tuple[int, _Line]] = {}
        #: With a delayed update, helper -> the step whose states it has been sent, or will be, ahead.
        self._ahead: dict[str, int] = {}
        #: Helpers that are sent states from here, not by another server of the stage.
        self._fed: frozenset[str] = frozenset()
        #: All who ever helped: what they sent may still come.
        self.known: set[str] = set()
        #: What other threads have to tell the compute thread: (stage, event, what came with an answer).
        self._inbox: deque[tuple[int, PoolEvent, Answer | None]] = deque()
        self._steps: dict[int, _StageStep] = {}
        self._losses: dict[int, float] = {}
        self._step = -1
        #: Tasks that were taken over and answers that were discarded, in all steps, with the seconds of computing these.
        self.taken_over = self.discarded = 0
        self.wasted = 0.0

    # -- from other threads -------------------------------------------------------------------------------------------

    @property
    def helpers(self) -> tuple[str, ...]:
        """Who helps now."""
        with self._lock:
            return tuple(self._lines)

    def came(self, name: str, stage: int, speed: float, *, fed: bool = True) -> None:
        """``name`` is ready to help ``stage``; ``speed``: its device's, in those of this; ``fed``: its states come from here."""
        if stage not in self._pools:
            return
        line = _Line(self._endpoint, name, lambda error: self.went(name, str(error), line))
        with self._lock:
            before = self._lines.pop(name, None)
            self._ahead.pop(name, None)
            self._lines[name] = (stage, line)
            self.known.add(name)
            self._fed = self._fed | {name} if fed else self._fed - {name}
        if before is not None:
            before[1].close()
        self._tell(stage, HelperCame(helper=name, speed=speed, now=time.monotonic()))

    def went(self, name: str, why: str, line: _Line | None = None) -> None:
        """``name`` helps no more (``line``: only if that is still the way to it)."""
        with self._lock:
            held = self._lines.get(name)
            if held is None or (line is not None and held[1] is not line):
                return
            del self._lines[name]
        held[1].close()
        self._executor.hooks.event("helper", text=f"{name} helps stage {held[0]} no more: {why}")
        self._tell(held[0], HelperWent(helper=name, now=time.monotonic()))

    def receive(self, peer: str, frame: Frame) -> None:
        """Something came from a fellow, or a helper's answer (transport thread).

        Raises:
            WireError: it is malformed, or does not belong here.
        """
        if peer in self._executor.setup.peers:
            self._hear_fellow(peer, frame)
            return
        with self._lock:
            held = self._lines.get(peer)
        if held is None or whole(frame.header, "step") != self._step:
            return  # it was given up, or the step is over
        task, answer = self._slices[held[0]].read_answer(frame)
        event = Answered(device=peer, task=task, seconds=answer.seconds, now=time.monotonic())
        self._tell(held[0], event, answer)

    def _hear_fellow(self, peer: str, frame: Frame) -> None:
        stage, step = self.fellows.stage_of(peer, frame), whole(frame.header, "step")
        slices = self._slices[stage]
        if frame.kind == "served":
            self.fellows.served(peer, stage, step)
        elif frame.kind == "free":
            self._tell(stage, FellowFree(fellow=peer, step=step, now=time.monotonic()))
        elif frame.kind == "task":
            self.fellows.lent.append((stage, peer, slices.read_task(frame)))
            self._executor.mailbox.poke()
        else:
            task, answer = slices.read_answer(frame)
            self._tell(stage, Answered(device=peer, task=task, seconds=answer.seconds, now=time.monotonic()), answer)

    @property
    def cost(self) -> str:
        """What was computed twice, or for nothing (empty: nothing was)."""
        if not (self.taken_over or self.discarded):
            return ""
        again, thrown = counted(self.taken_over, "forward"), counted(self.discarded, "answer")
        return f"helping cost {again} made again and {thrown} thrown away, {Seconds(self.wasted)} of computing"

    def close(self) -> None:
        """Stop the senders."""
        with self._lock:
            lines, self._lines = list(self._lines.values()), {}
        for _, line in lines:
            line.close()

    def _tell(self, stage: int, event: PoolEvent, answer: Answer | None = None) -> None:
        self._inbox.append((stage, event, answer))
        self._executor.mailbox.poke()

    # -- the compute thread -------------------------------------------------------------------------------------------

    def pipeline(self, step: int, meter: StepMeter) -> dict[int, float]:
        """All forwards and backwards of a step; the losses that are made here."""
        self._losses = {}
        self._step = step
        self.fellows.begin(step)
        places, device = self._executor.setup.places, self._executor.setup.device
        for stage, pool in self._pools.items():
            mine = tuple(index for index, place in enumerate(places[stage]) if place == device)
            self._steps[stage] = _StageStep(mine)
            for runner in self._executor.runners[stage].values():
                runner.discard()  # of a slice that others went on with
            self._handle(stage, StepBegan(step=step, slices=mine, now=time.monotonic()), pool)
        while not self._over():
            self._hear()
            self._look()
            if not self._do_one(meter) and not self._over():
                for stage, pool in self._pools.items():
                    self.fellows.ask(stage, pool.spare)
                begin = self._executor.trace.now()
                with meter.waiting():
                    self._executor.mailbox.wait_until(self._news, self._patience())
                self._executor.trace.note(SpanKind.WAIT, "for slices", begin, step=step)
                for stage, pool in self._pools.items():
                    self._handle(stage, TimePassed(now=time.monotonic()), pool)
        self._steps.clear()
        return dict(self._losses)

    def _over(self) -> bool:
        """Whether nothing is left to do here, nor for fellows."""
        for stage, pool in self._pools.items():
            if pool.done:
                self.fellows.tell(stage)
        return self._done and self.fellows.over()

    def _hear(self) -> None:
        """Take what other threads told."""
        while self._inbox:
            stage, event, answer = self._inbox.popleft()
            self._handle(stage, event, self._pools[stage], answer)

    def _news(self) -> bool:
        if self._inbox or self.fellows.lent or any(self._ready(stage, kind) for stage in self._pools for kind in TaskKind):
            return True
        return self._done and self.fellows.over()

    @property
    def _done(self) -> bool:
        return all(pool.done for pool in self._pools.values())

    def _patience(self) -> float | None:
        times = [at for pool in self._pools.values() if (at := pool.deadline()) is not None]
        return max(min(times) - time.monotonic(), 0.0) if times else None

    def _ready(self, stage: int, kind: TaskKind) -> list[int]:
        """The slices whose input (or gradient) is here and not yet announced."""
        at, executor = self._steps[stage], self._executor
        forward = kind is TaskKind.FORWARD
        waiting = at.inputs_to_come if forward else at.gradients_to_come
        found = []
        for index in waiting:
            if not forward and index not in at.forwarded:
                continue
            action = Action(stage, ActionKind.FORWARD if forward else ActionKind.BACKWARD, index)
            if executor.mailbox.holds(self._keys(action)):
                found.append(index)
        return found

    def _keys(self, action: Action) -> list[Hashable]:
        """Under which the values wait that come from other stages."""
        piece, courier, step, index = self._piece(action), self._executor.courier, self._step, action.micro_batch
        if action.kind is ActionKind.FORWARD:
            return [courier.key(Phase.TRAIN, step, index, edge, gradient=False) for edge in piece.takes]
        edges = sorted(piece.requires_gradients, key=lambda edge: -edge.target)
        return [courier.key(Phase.TRAIN, step, index, edge, gradient=True) for edge in edges]

    def _piece(self, action: Action) -> SubGraph:
        slices = self._slices[action.stage]
        return slices.pieces[slices.rows(action.micro_batch)]

    def _inputs(self, action: Action) -> tuple[Mapping[ValueRef, Array], Mapping[str, Array]]:
        """What a forward needs: values of other stages, and data."""
        piece, mailbox = self._piece(action), self._executor.mailbox
        values = {edge.value: mailbox.take(key) for edge, key in zip(piece.takes, self._keys(action), strict=True)}
        return values, self._executor.data(piece, Phase.TRAIN, self._step, action.micro_batch)

    def _returned(self, action: Action) -> Mapping[ValueRef, list[Array]]:
        """The gradients that came back for a backward, by descending reading stage."""
        edges = sorted(self._piece(action).requires_gradients, key=lambda edge: -edge.target)
        gradients: dict[ValueRef, list[Array]] = {}
        for edge, key in zip(edges, self._keys(action), strict=True):
            gradients.setdefault(edge.value, []).append(self._executor.mailbox.take(key))
        return gradients

    def _look(self) -> None:
        """Announce what has come."""
        for stage, pool in self._pools.items():
            at = self._steps[stage]
            inputs = tuple(self._ready(stage, TaskKind.FORWARD))
            for index in inputs:
                action = Action(stage, ActionKind.FORWARD, index)
                at.inputs[index] = self._inputs(action)
                at.inputs_to_come.remove(index)
            if inputs:
                self._handle(stage, InputCame(indices=inputs, now=time.monotonic()), pool)
            gradients = tuple(self._ready(stage, TaskKind.BACKWARD))
            for index in gradients:
                at.gradients[index] = self._returned(Action(stage, ActionKind.BACKWARD, index))
                at.gradients_to_come.remove(index)
            if gradients:
                self._handle(stage, GradientCame(indices=gradients, now=time.monotonic()), pool)

    def _do_one(self, meter: StepMeter) -> bool:
        """Compute one task here: of a fellow, which waits for it, or of the last stage that has one; whether there was any."""
        lent = self.fellows.next()
        if lent is not None:
            with meter.computing(lent[0]):
                self._do_lent(*lent)
            return True
        for stage in sorted(self._pools, reverse=True):
            for command in self._handle(stage, ServerFree(now=time.monotonic()), self._pools[stage]):
                with meter.computing(stage):
                    self._do(stage, command)
                return True
        return False

    def _do(self, stage: int, command: Do) -> None:
        task = command.task
        self.taken_over += command.recompute
        answer = self._compute(stage, task, self._work(stage, task, recompute=command.recompute))
        event = Answered(device=self._executor.setup.device, task=task, seconds=answer.seconds, now=time.monotonic())
        self._handle(stage, event, self._pools[stage], answer)

    def _do_lent(self, stage: int, fellow: str, order: Order) -> None:
        task, slices = order.task, self._slices[stage]
        answer = self._compute(stage, task, order.work)
        self.fellows.done(stage, task)
        self.fellows.post(fellow, lambda: slices.answer_frame(task, answer))

    def _compute(self, stage: int, task: Task, work: SliceWork) -> Answer:
        executor = self._executor
        if task.kind is TaskKind.FORWARD:
            fault_point("worker.before_forward", step=task.step, device=executor.setup.device)
        else:
            fault_point("worker.before_backward", step=task.step, device=executor.setup.device)
        runner = executor.runners[stage][self._slices[stage].rows(task.index)]
        begin, started = executor.trace.now(), time.monotonic()
        answer = compute(runner, task, work)
        executor.trace.note(SpanKind.COMPUTE, task.kind.value, begin, stage=stage, micro_batch=task.index, step=task.step)
        return replace(answer, seconds=time.monotonic() - started)

    def _handle(self, stage: int, event: PoolEvent, pool: TaskPool, answer: Answer | None = None) -> list[Do]:
        """Let the pool decide, and carry it out but for what is to be computed here."""
        mine: list[Do] = []
        for command in pool.handle(event):
            if isinstance(command, Do):
                mine.append(command)
            else:
                self._carry_out(stage, command, answer)
        return mine

    def _carry_out(self, stage: int, command: PoolCommand, answer: Answer | None) -> None:
        if isinstance(command, Accept):
            assert answer is not None
            self._accept(stage, command.task, answer)
        elif isinstance(command, Give):
            self.taken_over += command.recompute
            work, slices, task = self._work(stage, command.task, recompute=command.recompute), self._slices[stage], command.task
            if command.helper in self.fellows.speeds[stage]:
                self.fellows.post(command.helper, lambda: slices.task_frame(task, work))
            else:
                self._post(command.helper, lambda _: slices.task_frame(task, work))
        elif isinstance(command, SendStates):
            self._send_states(stage, command)
        else:
            self.discarded += 1
            self.wasted += answer.seconds if answer is not None else 0.0

    def _send_states(self, stage: int, command: SendStates) -> None:
        if command.helper not in self._fed:  # another server of the stage sends them; tasks of the last step are not needed
            with self._lock:
                held = self._lines.get(command.helper)
            if held is not None:
                held[1].forget()
            return
        if self._executor.delaying.on:
            self._send_delayed(stage, command)
            return
        slices, at = self._slices[stage], self._steps[stage]
        if at.states is None:  # one copy for all: the update writes where these are
            at.states = self._executor.base(stage).states(slices.names(every=True))
        states, step = at.states, command.step
        make: MakeFrame = lambda every: slices.states_frame(step, slices.names(every=every), states)  # noqa: E731
        self._post(command.helper, make, fresh=True)

    def _send_delayed(self, stage: int, command: SendStates) -> None:
        """This step's states are there already, or else go first; behind its tasks those of the next step."""
        slices, step, delaying = self._slices[stage], command.step, self._executor.delaying
        rest = [name for name in slices.names(every=True) if name not in delaying.used[stage]]
        used = {**self._executor.base(stage).states(rest), **delaying.used[stage]}
        newest, trained = delaying.newest[stage], slices.names(every=False)
        with self._lock:
            there = self._ahead.get(command.helper) == step
            self._ahead[command.helper] = step + 1

        def begin(every: bool) -> Frame:
            held = there and not every
            return slices.states_frame(step, () if held else slices.names(every=every), used, HELD if held else NOW)

        self._post(command.helper, begin, fresh=True)
        with self._lock:
            line = self._lines.get(command.helper)
        if line is not None:
            line[1].post_ahead(lambda _: slices.states_frame(step + 1, trained, newest, AHEAD))

    def _post(self, name: str, make: MakeFrame, *, fresh: bool = False) -> None:
        with self._lock:
            held = self._lines.get(name)
        if held is not None:  # else the pool will hear that it is gone
            held[1].post(make, fresh=fresh)

    def _work(self, stage: int, task: Task, *, recompute: bool) -> SliceWork:
        at, job = self._steps[stage], self._executor.setup.job
        values, data = at.inputs[task.index] if recompute or task.kind is TaskKind.FORWARD else (None, {})
        if task.kind is TaskKind.FORWARD:
            return SliceWork(values=values, data=data)
        weight = job.weight(task.index) / self._executor.setup.part
        return SliceWork(values=values, data=data, gradients=at.gradients[task.index], weight=weight)

    def _accept(self, stage: int, task: Task, answer: Answer) -> None:
        """An answer that counts: it goes on to other stages, or into the sum."""
        executor, at, index = self._executor, self._steps[stage], task.index
        piece = self._slices[stage].pieces[self._slices[stage].rows(index)]
        if task.kind is TaskKind.FORWARD:
            at.forwarded.add(index)
            for edge in piece.gives:
                executor.courier.send(Phase.TRAIN, task.step, index, edge, answer.values[edge.value], gradient=False)
            if answer.loss is not None:
                self._losses[index] = answer.loss
                executor.verdicts.tell(task.step, self._losses)
            return
        for edge in piece.sends_gradients:
            executor.courier.send(Phase.TRAIN, task.step, index, edge, answer.values[edge.value], gradient=True)
        for number, gradients in at.order.put(index, answer.gradients):
            self._add(stage, number, gradients)

    def _add(self, stage: int, index: int, gradients: Gradients) -> None:
        """Add the gradients of slice ``index``, which is the next one, as the exchange's order has it: inside a virtual replica,
        then these sums; those of a replica that is not the first are added up by the buckets' servers."""
        executor, at = self._executor, self._steps[stage]
        setup, runner = executor.setup, executor.base(stage)
        at.part = _sum(at.part, gradients)
        if index + 1 not in setup.job.virtual_ends:
            return
        first, last = setup.plan.replicas_of(stage)[0].device == setup.device, index == at.slices[-1]
        if not first:
            runner.put_gradients(at.part)
            executor.exchange.after_backward(self._step, stage, index, runner)
            at.part = {}
            return
        at.total, at.part = _sum(at.total, at.part), {}
        if last:
            runner.put_gradients(at.total)
            executor.exchange.after_backward(self._step, stage, index, runner)
            at.total = {}


class _StageStep:
    """What a step has so far at one stage: inputs (until its end), gradients that came back, sums."""

    def __init__(self, slices: tuple[int, ...]) -> None:
        self.slices = slices
        self.inputs_to_come, self.gradients_to_come = list(slices), list(slices)
        self.inputs: dict[int, tuple[Mapping[ValueRef, Array], Mapping[str, Array]]] = {}
        self.gradients: dict[int, Mapping[ValueRef, list[Array]]] = {}
        self.forwarded: set[int] = set()
        self.order: InOrder[Gradients] = InOrder(slices)
        self.part: Gradients = {}
        self.total: Gradients = {}
        self.states: Mapping[str, Array] | None = None


def _sum(before: Gradients, more: Gradients) -> Gradients:
    """In new memory, but for what only one of them has."""
    return {**before, **{use: np.add(before[use], array) if use in before else array for use, array in more.items()}}


#: Makes a frame when its turn comes; it is told whether the helper has had no states yet.
MakeFrame = Callable[[bool], Frame]


class _Line:
    """What goes to one helper, by a thread of its own: it may be frozen, and then this thread waits, not the server."""

    def __init__(self, endpoint: Endpoint, name: str, lost: Callable[[BaseException], None]) -> None:
        self._endpoint, self._name, self._lost = endpoint, name, lost
        self._changed = threading.Condition()
        self._waiting: deque[tuple[bool, MakeFrame]] = deque()
        #: The next step's states, which go behind all else.
        self._ahead: MakeFrame | None = None
        self._over = False
        self._blank = True
        threading.Thread(target=self._send_all, name=f"help-{name}", daemon=True).start()

    def post(self, make: MakeFrame, *, fresh: bool) -> None:
        """Queue a frame; ``fresh``: a step begins, and what waits of another one is not needed."""
        with self._changed:
            if fresh:
                self._waiting.clear()
                if self._ahead is not None:  # they are this step's by now
                    self._waiting.append((False, self._ahead))
                    self._ahead = None
            self._waiting.append((fresh, make))
            self._changed.notify_all()

    def post_ahead(self, make: MakeFrame) -> None:
        """Queue the next step's states."""
        with self._changed:
            self._ahead = make
            self._changed.notify_all()

    def forget(self) -> None:
        """What waits is of another step."""
        with self._changed:
            self._waiting.clear()

    def close(self) -> None:
        """Send nothing more."""
        with self._changed:
            self._over = True
            self._waiting.clear()
            self._changed.notify_all()

    def _send_all(self) -> None:
        try:
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: self._over or bool(self._waiting) or self._ahead is not None)
                    if self._over:
                        return
                    blank, urgency = self._blank, Urgency.VALUES
                    if self._waiting:
                        states, make = self._waiting.popleft()
                        self._blank = blank and not states
                    else:
                        assert self._ahead is not None
                        make, self._ahead, urgency = self._ahead, None, Urgency.BULK
                self._endpoint.post(self._name, make(blank), urgency).add_done_callback(self._sent)
        except FarflungError as error:
            self._lost(error)

    def _sent(self, done: Future[None]) -> None:
        error = done.exception()
        if error is not None:
            self._lost(ConnectionLost.of(error))
