"""A pipeline of stage servers and their helpers in virtual time: the decisions are those of the runtime's task pools.

Source: Hybrid-PS, sections 3.2 and 3.4, as ``protocol.pool`` has them. A server computes one task at a time and gives others to
its helpers. A device with several stages has a server for each, and asks the pool of the last stage first, as the runtime does.
Each helper has one wire in each direction, on which states and values go in order. Differences from the runtime: a helper serves
one server, servers of one stage do not help each other, and sums of replicas take no time.
Cost: that of the task pools, O(devices x slices) for each event.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from math import isfinite

from farflung.errors import PlanError
from farflung.protocol.pool.pool_events import (
    Accept,
    Answered,
    Do,
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
from farflung.protocol.pool.task_pool import Patience, TaskPool
from farflung.simulator.hybrid.parts import HelpedServer, Helper, Hop, Loss, Wire

__all__ = ["HelpedPipeline"]

#: Seconds beyond a deadline at which a pool is asked again, so that rounding cannot hide that the deadline has passed.
_LATER = 1e-9


class _Line:
    """A wire with what is on it."""

    def __init__(self, wire: Wire) -> None:
        self._wire, self.free = wire, 0.0

    def send(self, now: float, nbytes: float) -> float:
        """Return when ``nbytes`` that leave at ``now`` or later have arrived."""
        self.free = max(self.free, now) + nbytes * self._wire.per_byte
        return self.free + self._wire.latency


class _HelperState:
    """A helper: what it has to do, and which of its lives this is."""

    def __init__(self, helper: Helper) -> None:
        self.helper = helper
        self.down, self.up = _Line(helper.down), _Line(helper.up)
        self.life, self.alive, self.busy = 0, True, False
        self.queue: deque[tuple[Task, float]] = deque()


class _ServerState:
    """A server with its pool."""

    def __init__(self, server: HelpedServer, patience: Patience) -> None:
        self.server = server
        self.device = server.device or server.name
        self.pool = TaskPool(server.name, room=server.room, helper_room=server.helper_room, patience=patience)
        #: When the pool is asked again (infinite: no time is set).
        self.wake = float("inf")


class HelpedPipeline:
    """Servers in the order of stages, their helpers, and the wires between servers of neighboring stages."""

    def __init__(
        self,
        servers: Sequence[HelpedServer],
        helpers: Sequence[Helper] = (),
        hops: Sequence[Hop] = (),
        patience: Patience | None = None,
    ) -> None:
        """``hops``: of pairs of devices; a pair without one is connected by a wire that takes no time.

        Raises:
            PlanError: two servers have one name, a helper names no server, or the stages do not have the same slices.
        """
        self._servers = {server.name: _ServerState(server, patience or Patience()) for server in servers}
        if len(self._servers) < len(servers):
            raise PlanError("two servers of a helped pipeline have one name: give each a name, and a device if they share it")
        #: The servers of each device, the last stage first, and the devices that compute.
        self._of: dict[str, list[_ServerState]] = {}
        for one in sorted(self._servers.values(), key=lambda one: -one.server.stage):
            self._of.setdefault(one.device, []).append(one)
        self._busy: set[str] = set()
        self._helpers = {helper.name: _HelperState(helper) for helper in helpers}
        self._lines = {
            pair: _Line(wire)
            for hop in hops
            for pair, wire in (((hop.source, hop.target), hop.forward), ((hop.target, hop.source), hop.back))
        }
        stages = sorted({server.stage for server in servers})
        self._owners: list[dict[int, str]] = [
            {index: server.name for server in servers if server.stage == stage for index in server.slices} for stage in stages
        ]
        if not self._owners or any(owners.keys() != self._owners[0].keys() for owners in self._owners):
            raise PlanError("the stages of a helped pipeline have different slices: give every stage all slices of a step")
        unknown = [helper.name for helper in helpers if helper.server not in self._servers]
        if unknown:
            raise PlanError(f"the helper {unknown[0]} helps no server of the pipeline: name one of {', '.join(self._servers)}")
        self._place = {stage: place for place, stage in enumerate(stages)}
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = 0
        self._step = -1
        self.now = 0.0
        for state in self._helpers.values():
            self._came(state)

    def run(self, losses: Sequence[Sequence[Loss]]) -> list[float]:
        """Take one step for each item of ``losses``, which has the helpers that are lost in it. Return the steps' seconds."""
        return [self._take(found) for found in losses]

    # -- a step -------------------------------------------------------------------------------------------------------

    def _take(self, losses: Sequence[Loss]) -> float:
        begin, self._step = self.now, self._step + 1
        for state in self._helpers.values():
            if not state.alive:
                self._back(state)
        for loss in losses:
            state = self._helpers[loss.helper]
            self._at(begin + loss.after, lambda state=state, loss=loss: self._lose(state, loss))  # type: ignore[misc]
        for server in self._servers.values():
            slices = server.server.slices
            self._handle(server, StepBegan(step=self._step, slices=slices, now=self.now))
            if self._place[server.server.stage] == 0:
                self._handle(server, InputCame(indices=slices, now=self.now))
        while not all(server.pool.done for server in self._servers.values()):
            if not self._events:
                raise PlanError("the simulated task pools wait for each other")
            when, _, act = heappop(self._events)
            self.now = max(self.now, when)
            act()
        self.now += max(sum(one.server.update for one in servers) for servers in self._of.values())
        return self.now - begin

    def _at(self, when: float, act: Callable[[], None]) -> None:
        self._numbers += 1
        heappush(self._events, (when, self._numbers, act))

    # -- what the pools decide ----------------------------------------------------------------------------------------

    def _handle(self, server: _ServerState, event: PoolEvent) -> None:
        for command in server.pool.handle(event):
            self._carry_out(server, command)
        for one in self._of[server.device]:
            if server.device not in self._busy and not one.pool.done:
                for command in one.pool.handle(ServerFree(now=self.now)):
                    self._carry_out(one, command)
            self._set_alarm(one)

    def _set_alarm(self, server: _ServerState) -> None:
        """Wake the pool at its deadline, unless it is woken before."""
        deadline = server.pool.deadline()
        if deadline is not None and not server.wake <= deadline:
            server.wake = deadline
            self._at(max(deadline, self.now) + _LATER, lambda: self._wake(server))

    def _wake(self, server: _ServerState) -> None:
        server.wake = float("inf")
        if not server.pool.done:
            self._handle(server, TimePassed(now=self.now))

    def _carry_out(self, server: _ServerState, command: PoolCommand) -> None:
        match command:
            case SendStates():
                self._helpers[command.helper].down.send(self.now, server.server.states)
            case Give():
                self._give(server, command)
            case Do():
                self._do(server, command)
            case Accept():
                self._accept(server, command.task)

    def _do(self, server: _ServerState, command: Do) -> None:
        own, seconds = server.server, _seconds(server.server, command.task, recompute=command.recompute)
        self._busy.add(server.device)

        def done() -> None:
            self._busy.remove(server.device)
            self._handle(server, Answered(device=own.name, task=command.task, seconds=seconds, now=self.now))

        self._at(self.now + seconds, done)

    def _give(self, server: _ServerState, command: Give) -> None:
        state, own = self._helpers[command.helper], server.server
        forward = command.task.kind is TaskKind.FORWARD
        nbytes = own.input if forward else own.output + (own.input if command.recompute else 0.0)
        seconds = _seconds(own, command.task, recompute=command.recompute) / state.helper.speed
        life = state.life

        def arrived() -> None:
            if state.life == life:
                state.queue.append((command.task, seconds))
                self._compute(server, state)

        self._at(state.down.send(self.now, nbytes), arrived)

    def _compute(self, server: _ServerState, state: _HelperState) -> None:
        if state.busy or not state.queue:
            return
        task, seconds = state.queue.popleft()
        state.busy, life = True, state.life

        def done() -> None:
            if state.life != life:
                return
            state.busy = False
            own = server.server
            nbytes = own.output if task.kind is TaskKind.FORWARD else own.input + own.states
            self._at(state.up.send(self.now, nbytes), answered)
            self._compute(server, state)

        def answered() -> None:
            if state.life == life:
                self._handle(server, Answered(device=state.helper.name, task=task, seconds=seconds, now=self.now))

        self._at(self.now + seconds, done)

    def _accept(self, server: _ServerState, task: Task) -> None:
        """Send what was computed to the next server, or the stage before."""
        own, place = server.server, self._place[server.server.stage]
        forward = task.kind is TaskKind.FORWARD
        if forward and place + 1 == len(self._owners):
            self._at(self.now, lambda: self._arrive(server, task, forward=False))
            return
        if not forward and place == 0:
            return
        target = self._servers[self._owners[place + (1 if forward else -1)][task.index]]
        line = self._lines.get((server.device, target.device))
        when = self.now if line is None else line.send(self.now, own.output if forward else own.input)
        self._at(when, lambda: self._arrive(target, task, forward=forward))

    def _arrive(self, server: _ServerState, task: Task, *, forward: bool) -> None:
        event = InputCame if forward else GradientCame
        self._handle(server, event(indices=(task.index,), now=self.now))

    # -- helpers that are lost ----------------------------------------------------------------------------------------

    def _lose(self, state: _HelperState, loss: Loss) -> None:
        if not state.alive:
            return
        state.alive, state.busy = False, False
        state.life += 1
        state.queue.clear()
        self._handle(self._servers[state.helper.server], HelperWent(helper=state.helper.name, now=self.now))
        if isfinite(loss.away):
            self._at(self.now + loss.away, lambda: self._back(state))

    def _back(self, state: _HelperState) -> None:
        if not state.alive:
            state.alive = True
            state.down, state.up = _Line(state.helper.down), _Line(state.helper.up)
            self._came(state)

    def _came(self, state: _HelperState) -> None:
        helper = state.helper
        self._handle(self._servers[helper.server], HelperCame(helper=helper.name, speed=helper.speed, now=self.now))


def _seconds(server: HelpedServer, task: Task, *, recompute: bool) -> float:
    """Return the seconds of ``task`` on the server itself."""
    if task.kind is TaskKind.FORWARD:
        return server.forward
    return server.backward + (server.forward if recompute else 0.0)
