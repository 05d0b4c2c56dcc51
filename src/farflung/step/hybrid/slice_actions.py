"""The slices of one step as actions for the ready loop: what the task pools of the own stages give to this server.

Gradients are added by ascending slice (``slice_sums``), so the sum is that of a plain loop whoever computed them. All inputs stay
here until the step is over, for a backward that is taken over from a helper.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace

from farflung.clock import monotonic
from farflung.engines.base import Array, StageRunner
from farflung.graph.ir import ValueRef
from farflung.messages.hybrid import HelperStates
from farflung.protocol.pool.pool_events import (
    Accept,
    Answered,
    Do,
    Give,
    GradientCame,
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
from farflung.protocol.pool.task_pool import TaskPool
from farflung.schedules.base import Action, ActionKind
from farflung.step.actions import ActionInputs, ActionResult
from farflung.step.context import StepContext
from farflung.step.hybrid.helper_links import HelperLinks, MakeForHelper
from farflung.step.hybrid.peer_servers import PeerServers
from farflung.step.hybrid.slice_sums import SliceSums
from farflung.step.hybrid.slices import AHEAD, HELD, NOW, Order, StageSlices
from farflung.step.ready_loop import input_keys, send_results, take_gradients, take_values
from farflung.step.reduction.gradient_exchange import GradientExchange
from farflung.step.run_setup import Phase
from farflung.step.stages.local_stages import LocalStages
from farflung.step.step_vote import StepVote
from farflung.step.transfer.value_transfer import StepRoutes
from farflung.units import Seconds, counted

__all__ = ["SliceActions", "SliceParts", "Waste"]


@dataclass(slots=True)
class Waste:
    """Forwards that were computed again, answers that were discarded, and seconds of computing these."""

    taken_over: int = 0
    discarded: int = 0
    seconds: float = 0.0

    @property
    def text(self) -> str:
        """A line for people (empty: nothing was wasted)."""
        if not (self.taken_over or self.discarded):
            return ""
        again, thrown = counted(self.taken_over, "forward"), counted(self.discarded, "answer")
        return f"helping cost {again} made again and {thrown} thrown away, {Seconds(self.seconds)} of computing"


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceParts:
    """What a server's steps share. ``pools`` and ``slices``: by own stage. ``events``: from other threads."""

    context: StepContext
    stages: LocalStages
    vote: StepVote
    sums: GradientExchange
    pools: Mapping[int, TaskPool]
    slices: Mapping[int, StageSlices]
    peers: PeerServers
    helpers: HelperLinks
    events: deque[tuple[int, PoolEvent, ActionResult | None]]
    waste: Waste


class _StageStep:
    """What one stage has so far in a step: inputs (until its end), gradients that came back, sums."""

    def __init__(self, slices: tuple[int, ...], sums: SliceSums) -> None:
        self.sums = sums
        self.inputs_to_come, self.gradients_to_come = list(slices), list(slices)
        self.inputs: dict[int, tuple[Mapping[ValueRef, Array], Mapping[str, Array]]] = {}
        self.gradients: dict[int, Mapping[ValueRef, list[Array]]] = {}
        self.forwarded: set[int] = set()
        #: The states for helpers: one copy, because the update writes in place.
        self.states: Mapping[str, Array] | None = None


class SliceActions:
    """An ``ActionSource``: this server's tasks of one step, and those that peer servers give it."""

    training = True

    def __init__(self, parts: SliceParts, step: int) -> None:
        self._parts, self.step = parts, step
        self._routes = StepRoutes(parts.context.transfer, Phase.TRAIN, step)
        #: micro-batch -> loss
        self.losses: dict[int, float] = {}
        #: What helpers did, by stage and helper: samples, seconds.
        self.helped: dict[tuple[int, str], tuple[int, float]] = {}
        self._steps: dict[int, _StageStep] = {}
        #: Nothing could be computed when ``next`` was last asked.
        self._idle = False
        #: What is being computed: a pool's command, or a peer server's name and order; and since when.
        self._current: Do | tuple[str, Order] | None = None
        self._began = 0.0
        setup = parts.context.setup
        parts.peers.begin(step)
        parts.stages.discard()  # activations of slices that others went on with
        for stage, pool in parts.pools.items():
            mine = tuple(index for index, place in enumerate(setup.places[stage]) if place == setup.device)
            sums = SliceSums(setup, (step, stage), mine, parts.stages.base(stage), parts.sums)
            self._steps[stage] = _StageStep(mine, sums)
            self._handle(stage, StepBegan(step=step, slices=mine, now=monotonic()), pool)

    # -- ActionSource -------------------------------------------------------------------------------------------------

    @property
    def done(self) -> bool:
        """Whether nothing is left to do here, nor for peer servers."""
        return all(pool.done for pool in self._parts.pools.values()) and self._parts.peers.over()

    def has_news(self) -> bool:
        """See ``ActionSource``."""
        if not self._idle or self._parts.events or self._parts.peers.lent:
            return True
        return any(self._ready(stage, kind) for stage in self._parts.pools for kind in ActionKind) or self.done

    def patience(self) -> float | None:
        """See ``ActionSource``: pools take tasks back from helpers that are late."""
        times = [at for pool in self._parts.pools.values() if (at := pool.deadline()) is not None]
        return max(min(times) - monotonic(), 0.0) if times else None

    def next(self) -> Action | None:
        """See ``ActionSource``."""
        pools, peers = self._parts.pools, self._parts.peers
        if self._idle:
            for stage, pool in pools.items():
                self._handle(stage, TimePassed(now=monotonic()), pool)
        events = self._parts.events
        while events:
            stage, event, result = events.popleft()
            self._handle(stage, event, pools[stage], result)
        self._announce_inputs()
        self._report_done()
        action = self._choose()
        self._idle = action is None
        if action is None and not self.done:
            for stage, pool in pools.items():
                peers.ask(stage, pool.spare)
        return action

    def runner(self, action: Action) -> StageRunner:
        """See ``ActionSource``."""
        return self._parts.stages.runner(action.stage, action.micro_batch)

    def inputs(self, action: Action) -> ActionInputs:
        """See ``ActionSource``."""
        current = self._current
        if isinstance(current, Do):
            self._parts.waste.taken_over += current.recompute
            found = self._work(action.stage, current.task, recompute=current.recompute)
        else:
            assert current is not None
            found = current[1].work
        self._began = monotonic()
        return found

    def finish(self, action: Action, result: ActionResult) -> None:
        """See ``ActionSource``."""
        parts, stage, current = self._parts, action.stage, self._current
        gradients = self.runner(action).take_gradients() if action.kind is ActionKind.BACKWARD else {}
        result = replace(result, gradients=gradients, seconds=monotonic() - self._began)
        if isinstance(current, Do):
            device = parts.context.setup.device
            event = Answered(device=device, task=current.task, seconds=result.seconds, now=monotonic())
            self._handle(stage, event, parts.pools[stage], result)
        else:
            assert current is not None
            name, task, slices = current[0], current[1].task, parts.slices[stage]
            parts.peers.done(stage, task)
            parts.peers.post(name, lambda: slices.answer_message(task, result))
        self._current = None
        self._report_done()

    # -- what comes in ------------------------------------------------------------------------------------------------

    def _report_done(self) -> None:
        """Tell the peer servers of the stages whose slices are done."""
        for stage, pool in self._parts.pools.items():
            if pool.done:
                self._parts.peers.report_done(stage)

    def _ready(self, stage: int, kind: ActionKind) -> list[Action]:
        """Return the forwards (or backwards) whose inputs are here and not yet announced to the pool."""
        at, forward = self._steps[stage], kind is ActionKind.FORWARD
        if kind is ActionKind.WEIGHT:
            return []
        waiting = at.inputs_to_come if forward else [index for index in at.gradients_to_come if index in at.forwarded]
        actions = [Action(stage, kind, index) for index in waiting]
        return [action for action in actions if self._parts.context.inbox.holds(self._keys(action))]

    def _keys(self, action: Action) -> list[Hashable]:
        return input_keys(self._routes, self.runner(action).subgraph, action)

    def _announce_inputs(self) -> None:
        """Take the inputs that have come, and announce them to the pools."""
        context, stages = self._parts.context, self._parts.stages
        for stage, pool in self._parts.pools.items():
            at = self._steps[stage]
            inputs = tuple(action.micro_batch for action in self._ready(stage, ActionKind.FORWARD))
            for index in inputs:
                piece = stages.runner(stage, index).subgraph
                values = take_values(context.inbox, self._routes, piece, index)
                at.inputs[index] = values, context.data(piece, Phase.TRAIN, self.step, index)
                at.inputs_to_come.remove(index)
            if inputs:
                self._handle(stage, InputCame(indices=inputs, now=monotonic()), pool)
            gradients = tuple(action.micro_batch for action in self._ready(stage, ActionKind.BACKWARD))
            for index in gradients:
                at.gradients[index] = take_gradients(context.inbox, self._routes, stages.runner(stage, index).subgraph, index)
                at.gradients_to_come.remove(index)
            if gradients:
                self._handle(stage, GradientCame(indices=gradients, now=monotonic()), pool)

    def _choose(self) -> Action | None:
        """Return a task of a peer server, which waits for it, or of the last stage that has one."""
        lent = self._parts.peers.next()
        if lent is not None:
            stage, name, order = lent
            self._current = name, order
            return _action(stage, order.task)
        for stage in sorted(self._parts.pools, reverse=True):
            for command in self._handle(stage, ServerFree(now=monotonic()), self._parts.pools[stage]):
                self._current = command
                return _action(stage, command.task)
        return None

    # -- what the pools decide ----------------------------------------------------------------------------------------

    def _handle(self, stage: int, event: PoolEvent, pool: TaskPool, result: ActionResult | None = None) -> list[Do]:
        """Let the pool decide, and carry that out; return what is to be computed here."""
        mine: list[Do] = []
        for command in pool.handle(event):
            if isinstance(command, Do):
                mine.append(command)
            else:
                self._carry_out(stage, command, result)
        return mine

    def _carry_out(self, stage: int, command: PoolCommand, result: ActionResult | None) -> None:
        parts = self._parts
        if isinstance(command, Accept):
            assert result is not None
            self._accept(stage, command.task, result)
            self._credit(stage, command, result)
        elif isinstance(command, Give):
            parts.waste.taken_over += command.recompute
            work, slices, task = self._work(stage, command.task, recompute=command.recompute), parts.slices[stage], command.task
            if command.helper in parts.peers.speeds[stage]:
                parts.peers.post(command.helper, lambda: slices.task_message(task, work))
            else:
                parts.helpers.post(command.helper, lambda _: slices.task_message(task, work))
        elif isinstance(command, SendStates):
            self._send_states(stage, command)
        else:
            parts.waste.discarded += 1
            parts.waste.seconds += result.seconds if result is not None else 0.0

    def _send_states(self, stage: int, command: SendStates) -> None:
        parts, helper, step = self._parts, command.helper, command.step
        if not parts.helpers.is_fed(helper):  # another server of the stage sends them
            parts.helpers.forget(helper)
            return
        if parts.stages.delayed.on:
            self._send_delayed(stage, helper, step)
            return
        slices, at = parts.slices[stage], self._steps[stage]
        if at.states is None:
            at.states = parts.stages.base(stage).states(slices.names(every=True))
        states = at.states
        make: MakeForHelper = lambda every: slices.states_message(step, slices.names(every=every), states)  # noqa: E731
        parts.helpers.begin_step(helper, make)

    def _send_delayed(self, stage: int, helper: str, step: int) -> None:
        """This step's states are there already, or else go first; behind its tasks those of the next step."""
        parts, delayed = self._parts, self._parts.stages.delayed
        slices = parts.slices[stage]
        rest = [name for name in slices.names(every=True) if name not in delayed.used[stage]]
        used = {**parts.stages.base(stage).states(rest), **delayed.used[stage]}
        newest, trained = delayed.newest[stage], slices.names(every=False)
        there = parts.helpers.has_ahead(helper, step)

        def begin(every: bool) -> HelperStates:
            held = there and not every
            return slices.states_message(step, () if held else slices.names(every=every), used, HELD if held else NOW)

        parts.helpers.begin_step(helper, begin)
        parts.helpers.post_ahead(helper, step + 1, lambda: slices.states_message(step + 1, trained, newest, AHEAD))

    def _work(self, stage: int, task: Task, *, recompute: bool) -> ActionInputs:
        at, setup = self._steps[stage], self._parts.context.setup
        values, data = at.inputs[task.index] if recompute or task.kind is TaskKind.FORWARD else (None, {})
        if task.kind is TaskKind.FORWARD:
            return ActionInputs(values=values, data=data)
        weight = setup.job.weight(task.index) / setup.part * self._parts.stages.loss_scale.factor
        return ActionInputs(values=values, data=data, gradients=at.gradients[task.index], weight=weight)

    def _accept(self, stage: int, task: Task, result: ActionResult) -> None:
        """A result counts: send it to other stages, and add it to the sum."""
        at, index = self._steps[stage], task.index
        send_results(self._routes, self._parts.stages.runner(stage, index).subgraph, _action(stage, task), result.values)
        if task.kind is TaskKind.BACKWARD:
            at.sums.put(index, result.gradients)
            return
        at.forwarded.add(index)
        if result.loss is not None:
            self.losses[index] = result.loss
            self._parts.vote.report(task.step, self.losses)

    def _credit(self, stage: int, command: Accept, result: ActionResult) -> None:
        """Count what a helper did: the seconds that it reports, and the samples of its backwards."""
        setup, task = self._parts.context.setup, command.task
        if command.device == setup.device or command.device in self._parts.peers.speeds[stage]:
            return
        samples, seconds = self.helped.get((stage, command.device), (0, 0.0))
        done = setup.job.micro_batch_sizes[task.index] if task.kind is TaskKind.BACKWARD else 0
        self.helped[stage, command.device] = samples + done, seconds + result.seconds


def _action(stage: int, task: Task) -> Action:
    return Action(stage, ActionKind(task.kind.value), task.index)
