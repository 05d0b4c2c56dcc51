"""A helper's side of a hybrid plan: it computes slices of one stage for the stage's servers.

The broker sends it the job and the plan. It opens its stage and reports that it is ready. Then its first server sends states, and
all servers of the stage send tasks. A helper retains nothing: whatever ends it, the run continues without it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Container
from dataclasses import dataclass, replace

from farflung.clock import monotonic
from farflung.engines.base import Array, Engine, StageRunner
from farflung.errors import ConnectionLost, FarflungError, WireError
from farflung.messages.commands import Help
from farflung.messages.data import PeerHello, RunMessage
from farflung.messages.hybrid import HelperStates, SliceTask, When
from farflung.messages.reports import Helping
from farflung.messages.router import PeerRouter
from farflung.messages.schema import UNSET, Flag, kind_of
from farflung.messages.submission import Bundle, plan_of
from farflung.messages.wire_form import encode
from farflung.protocol.pool.pool_events import TaskKind
from farflung.step.hybrid.slices import AHEAD, HELD, Order, StageSlices, compute
from farflung.step.run_setup import RunSetup
from farflung.step.stages.stage_runners import open_stage
from farflung.telemetry.faults import fault_point
from farflung.telemetry.log_line import Detail
from farflung.transports.base import Urgency
from farflung.worker.run_part import RunPart, RunServices, Sender

__all__ = ["Helper"]

#: How many steps' states a helper stores ahead.
_AHEAD = 2

#: A step's number, and the states that changed since the step before.
StepStates = tuple[int, dict[str, Array]]


@dataclass(frozen=True, slots=True)
class _Begin:
    """Load the states of ``step``."""

    step: int
    states: dict[str, Array]


@dataclass(frozen=True, slots=True)
class _Compute:
    """Compute the task of ``server``."""

    server: str
    order: Order


class _Inbox:
    """Tasks and states that servers have sent. Transport threads put, the helper's thread takes; one lock guards all fields."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        #: The states of the step that begins, until ``take`` returns them.
        self._states: StepStates | None = None
        #: step -> states that came before the step began
        self._ahead: dict[int, dict[str, Array]] = {}
        #: The step that has begun and whose states have yet to come (-1: none). They may overtake the message that it begins.
        self._awaited = -1
        #: The newest step whose states ``take`` has returned.
        self._step = -1
        self._tasks: deque[_Compute] = deque()
        self._error: BaseException | None = None

    def put_states(self, states: StepStates, when: When) -> None:
        """States have come: of the step that begins now, or of the next one (``AHEAD``); ``HELD``: the step of these begins."""
        with self._changed:
            if when == AHEAD:
                self._ahead = dict(sorted([*self._ahead.items(), states], key=lambda item: item[0])[-_AHEAD:])
            elif when == HELD:
                self._awaited = states[0]
            else:
                self._begin(states)
            if self._awaited in self._ahead:
                self._begin((self._awaited, self._ahead.pop(self._awaited)))
            self._changed.notify_all()

    def _begin(self, states: StepStates) -> None:
        """A step begins with ``states``; the lock is held."""
        step, arrays = states
        before = self._states[1] if self._states is not None else {}
        self._states, self._awaited = (step, before | arrays), -1
        self._tasks = deque(item for item in self._tasks if item.order.task.step >= step)

    def put_task(self, server: str, order: Order) -> None:
        """A task of ``server`` has come."""
        with self._changed:
            self._tasks.append(_Compute(server, order))
            self._changed.notify_all()

    def drop_tasks(self, server: str) -> None:
        """``server`` is lost: nobody waits for the results of its tasks."""
        with self._changed:
            self._tasks = deque(item for item in self._tasks if item.server != server)

    def end(self, error: BaseException) -> None:
        """Let ``take`` raise ``error``."""
        with self._changed:
            self._error = self._error or error
            self._changed.notify_all()

    def take(self) -> _Begin | _Compute:
        """Wait for states or a task of the step whose states were returned last; states come first."""
        with self._changed:
            self._changed.wait_for(self._ready)
            if self._error is not None:
                raise self._error
            states, self._states = self._states, None
            if states is None:
                return self._tasks.popleft()
            self._step = states[0]
            return _Begin(*states)

    def _ready(self) -> bool:
        """Tasks of a step whose states have yet to come wait: they may be another server's."""
        ready = bool(self._tasks) and self._awaited < 0 and self._tasks[0].order.task.step <= self._step
        return self._error is not None or self._states is not None or ready


class Helper(RunPart):
    """A worker's part in a run as a helper."""

    def __init__(self, command: Help, services: RunServices, on_end: Callable[[RunPart], None]) -> None:
        """Take the broker's ``command``; ``start`` begins to prepare."""
        super().__init__(command, services, on_end)
        self._command: Help | None = command
        #: The server that sends states; it and the others of the stage send tasks.
        self._server = command.server
        self._servers = frozenset({command.server, *command.addresses})
        self._stage, self._device = command.stage, command.device
        #: While there is none, messages are dropped: the helper is not ready yet, or over.
        self._open: PeerRouter | None = None
        self._engine: Engine | None = None
        self._inbox = _Inbox()
        #: When the broker asked for help, until the first slice is computed.
        self._asked_at: float | None = monotonic()

    # -- from other threads -------------------------------------------------------------------------------------------

    def start(self) -> None:
        """See ``RunPart``."""
        self._threads.spawn(f"help-{self.run}", self._main)

    def abort(self, error: BaseException, *, broker_knows: bool = False, keep: bool = True) -> None:
        """See ``RunPart``."""
        self._requests.end(error, broker_knows=broker_knows, keep=keep)
        self._inbox.end(error)

    def on_lost(self, peer: str, error: FarflungError) -> None:
        """See ``RunPart``."""
        if peer == self._server:
            self.abort(error)
        else:
            self._servers -= {peer}
            self._inbox.drop_tasks(peer)

    def on_message(self, sender: Sender, message: RunMessage) -> None:
        """See ``RunPart``."""
        open_help = self._open
        if open_help is not None:
            self._check(message, sender.peer, self._servers)
            open_help.dispatch(sender.peer, message)

    def _check(self, message: RunMessage, peer: str, servers: Container[str]) -> None:
        if peer not in servers:
            raise WireError(f"{peer} takes no part in stage {self._stage} here; its {kind_of(message)!r} is refused")

    def _router(self, slices: StageSlices) -> PeerRouter:
        """The handlers of what servers send."""

        def take_states(server: str, message: HelperStates) -> None:
            self._check(message, server, (self._server,))
            self._inbox.put_states((message.step, slices.read_states(message)), message.when)

        router = PeerRouter()
        router.register(HelperStates, take_states)
        router.register(SliceTask, lambda server, message: self._inbox.put_task(server, slices.read_task(message)))
        return router

    # -- the helper's thread ------------------------------------------------------------------------------------------

    def _work(self) -> None:
        services, setup = self._services, self._setup()
        slices = StageSlices(setup, self._stage)
        engine = self._engine = services.engine.attempt(services.device, services.memory)
        engine.set_threads(setup.job.threads)
        runners = open_stage(engine, services.device, setup, self._stage, slices.pieces)
        self._open = self._router(slices)
        services.log(f"run {self.run}: ready to help {self._server} with stage {self._stage}")
        services.report(Helping(run=self.run, attempt=self.attempt))
        self._serve(slices, runners)

    def _setup(self) -> RunSetup:
        command, services = self._command, self._services
        assert command is not None
        bundle, plan = Bundle.of(command), plan_of(command)
        self._command = None  # the documents are read: release their bytes
        holders = plan.stages[self._stage].devices if self._stage < len(plan.stages) else ()
        strange = sorted(self._servers.difference(holders))
        if strange:
            raise WireError(f"the plan has no stage {self._stage} on {strange[0]!r:.100}")
        services.links.connect(command.addresses, {})
        for server in sorted(self._servers):
            services.links.endpoint.post(server, encode(PeerHello()), Urgency.CONTROL)  # one of the two can dial
        budget = self._services.budget
        return RunSetup(run=self.name, device=self._server, job=bundle.job, plan=plan, graphs=bundle.graphs, budget=budget)

    def _serve(self, slices: StageSlices, runners: dict[int, StageRunner]) -> None:
        """Compute tasks until an error ends the help."""
        base, step = next(iter(runners.values())), -1
        while True:
            match self._inbox.take():
                case _Begin(step, states):
                    for runner in runners.values():
                        runner.discard()
                    base.load(states)
                case _Compute(server, order) if order.task.step == step:  # else the task is of an older step
                    self._compute(slices, runners[slices.rows(order.task.index)], server, order)

    def _compute(self, slices: StageSlices, runner: StageRunner, server: str, order: Order) -> None:
        task = order.task
        if task.kind is TaskKind.FORWARD:
            fault_point("helper.before_forward", step=task.step, device=self._device)
        else:
            fault_point("helper.before_backward", step=task.step, device=self._device)
        begin = monotonic()
        answer = compute(runner, task, order.work)
        answer = replace(answer, seconds=monotonic() - begin)
        if self._asked_at is not None:
            seconds, self._asked_at = monotonic() - self._asked_at, None
            text = f"computed its first slice, {seconds:.2f} s after it was asked to help"
            self._services.log(Detail(f"run {self.run}: {text}"))
        fault_point("helper.before_answer", step=task.step, device=self._device)
        post = self._services.links.endpoint.post
        post(server, encode(slices.answer_message(task, answer)), Urgency.VALUES).add_done_callback(
            lambda done: None if (error := done.exception()) is None else self.on_lost(server, ConnectionLost.of(error))
        )

    def _describe(self, error: Exception, cause: str) -> tuple[str, Flag]:
        return f"run {self.run}: helps no more: {cause}", UNSET

    def _close(self) -> None:
        self._open = None
        if self._engine is not None:
            self._engine.end()
