"""A helper's side of a hybrid plan: it computes slices of one stage for its servers, and keeps nothing that is needed.

It is told the job and the plan as others are, opens its stage, and says that it is ready; its first server then sends states, and
all servers of the stage tasks.
Whatever ends it, the run goes on without it.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING

from farflung.engines.base import StageRunner
from farflung.errors import ConnectionLost, FarflungError, WireError
from farflung.messages.fields import table, text, texts, whole
from farflung.messages.step_reports import StepReport
from farflung.messages.submission import Bundle, unsqueeze
from farflung.plan.document import plan_from_json
from farflung.protocol.pool_events import TaskKind
from farflung.step.hybrid.slices import AHEAD, HELD, Order, StageSlices, compute
from farflung.step.run_setup import RunSetup, attempt_name
from farflung.step.stages.stage_runners import open_stage
from farflung.telemetry.faults import fault_point
from farflung.telemetry.log_line import Detail
from farflung.transports.base import Arrival, Urgency
from farflung.wire.frames import Frame

if TYPE_CHECKING:
    from farflung.engines.base import Array
    from farflung.worker.training_run import Host

__all__ = ["Helping"]


#: How many steps' states a helper keeps ahead.
_AHEAD = 2


class Helping:
    """What a worker does as a helper, in the place of a ``Work``."""

    def __init__(self, host: Host, frame: Frame) -> None:
        self._host, self._frame = host, frame
        self.run = text(frame.header, "run", limit=200)
        self.attempt = whole(frame.header, "attempt", low=1)
        self.name = attempt_name(self.run, self.attempt)
        self._server = text(frame.header, "server", limit=100)
        #: Whom it helps: that one, which sends states, and others of the stage.
        self._servers = {self._server, *table(frame.header, "addresses")}
        self._stage = whole(frame.header, "stage")
        self._device = text(frame.header, "device", limit=100)
        self._slices: StageSlices | None = None
        self._changed = threading.Condition()
        self._states: tuple[int, dict[str, Array]] | None = None
        #: step -> states that came ahead of it (those for the step after may overtake the word that it begins); and the step that
        #: has begun and waits for them (-1: none does).
        self._ahead: dict[int, dict[str, Array]] = {}
        self._awaited = -1
        #: Whose they are, and what is to be done.
        self._tasks: deque[tuple[str, Order]] = deque()
        self._step = -1
        self._error: BaseException | None = None
        self._asked, self._helped = time.monotonic(), False
        self._told = False
        self._thread = threading.Thread(target=self._main, name=f"help-{self.run}", daemon=True)

    # -- from other threads -------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to get ready."""
        self._thread.start()

    def begin(self) -> None:
        """The server says when."""

    def stop(self) -> None:
        """The broker ends it with the run."""

    def hand_over(self) -> None:
        """There is nothing to hand over."""

    def on_helper(self, frame: Frame) -> None:
        """Helpers have none."""

    def on_arrival(self, arrival: Arrival) -> None:
        """Nobody asks."""

    def told(self) -> list[StepReport]:
        """Helpers report no steps."""
        return []

    def join(self, timeout: float | None = 30.0) -> None:
        """Wait for the thread."""
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout)

    def abort(self, error: BaseException, *, told: bool = False, keep: bool = True) -> None:
        """End with ``error``."""
        del keep
        with self._changed:
            self._told = self._told or told
            self._error = self._error or error
            self._changed.notify_all()

    def on_lost(self, peer: str, error: FarflungError) -> None:
        """``peer`` broke off."""
        if peer == self._server:
            self.abort(error)
            return
        with self._changed:
            self._servers.discard(peer)
            self._tasks = deque(item for item in self._tasks if item[0] != peer)

    def on_frame(self, peer: str, frame: Frame) -> None:
        """States or a task came from the server (transport thread).

        Raises:
            WireError: it does not belong here, or is malformed.
        """
        slices = self._slices
        if slices is None:
            return
        if peer not in self._servers or (frame.kind == "states" and peer != self._server):
            raise WireError(f"{peer} takes no part in stage {self._stage} here; its {frame.kind!r:.40} is refused")
        if frame.kind == "states":
            states, when = slices.read_states(frame), frame.header.get("when")
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
        elif frame.kind == "task":
            order = slices.read_task(frame)
            with self._changed:
                self._tasks.append((peer, order))
                self._changed.notify_all()
        else:
            raise WireError(f"a helper is sent states and tasks, not {frame.kind!r:.40}")

    def _begin(self, states: tuple[int, dict[str, Array]]) -> None:
        """A step begins with ``states`` (under the lock)."""
        step, arrays = states
        before = self._states[1] if self._states is not None else {}
        self._states, self._awaited = (step, before | arrays), -1
        self._tasks = deque(item for item in self._tasks if item[1].task.step >= step)

    # -- the compute thread -------------------------------------------------------------------------------------------

    def _main(self) -> None:
        try:
            runners = self._open()
            self._host.say(f"run {self.run}: ready to help {self._server} with stage {self._stage}")
            self._host.report("helping", run=self.run, attempt=self.attempt)
            self._serve(runners)
        except Exception as error:  # noqa: BLE001 - whatever ends it, the broker must hear of it
            self._failed(error)
        finally:
            self._slices = None
            self._host.over(self)

    def _open(self) -> dict[int, StageRunner]:
        """The stage's runners by samples in the slice, without states."""
        setup, host = self._setup(), self._host
        slices = StageSlices(setup, self._stage)
        runners = open_stage(host.engine, host.device, setup, self._stage, slices.pieces)
        self._slices = slices
        return runners

    def _setup(self) -> RunSetup:
        frame, header = self._frame, self._frame.header
        names = texts(header, "documents")
        if names[-1:] != ["plan"] or len(frame.sections) != len(names):
            raise WireError("the broker sent no plan with the run; install the same farflung on both machines")
        plan = plan_from_json(unsqueeze(frame.sections[-1]))
        bundle = Bundle.from_frame(Frame(frame.kind, {**header, "documents": names[:-1]}, frame.sections[:-1]))
        self._frame = Frame(frame.kind)
        holders = plan.stages[self._stage].devices if self._stage < len(plan.stages) else ()
        strange = sorted(self._servers.difference(holders))
        if strange:
            raise WireError(f"the plan has no stage {self._stage} on {strange[0]!r:.100}")
        self._host.engine.set_threads(bundle.job.threads)
        self._host.meet({peer: str(address) for peer, address in table(header, "addresses").items()}, {})
        for server in sorted(self._servers):
            self._host.endpoint.post(server, Frame("hello"), Urgency.CONTROL)  # who can dial, does
        return RunSetup(run=self.name, device=self._server, job=bundle.job, plan=plan, graphs=bundle.graphs)

    def _serve(self, runners: dict[int, StageRunner]) -> None:
        base = next(iter(runners.values()))
        assert self._slices is not None
        slices = self._slices
        while True:
            with self._changed:
                self._changed.wait_for(self._has_something)
                if self._error is not None:
                    raise self._error
                states, self._states = self._states, None
                given = self._tasks.popleft() if states is None and self._tasks else None
            if states is not None:
                self._step = states[0]
                for runner in runners.values():
                    runner.discard()
                base.load(states[1])
            elif given is not None and given[1].task.step == self._step:
                self._do(slices, runners[slices.rows(given[1].task.index)], *given)

    def _has_something(self) -> bool:
        """Tasks of a step whose states have yet to come, wait: they may be another server's."""
        ready = bool(self._tasks) and self._awaited < 0 and self._tasks[0][1].task.step <= self._step
        return self._error is not None or self._states is not None or ready

    def _do(self, slices: StageSlices, runner: StageRunner, server: str, order: Order) -> None:
        task = order.task
        if task.kind is TaskKind.FORWARD:
            fault_point("helper.before_forward", step=task.step, device=self._device)
        else:
            fault_point("helper.before_backward", step=task.step, device=self._device)
        begin = time.monotonic()
        answer = compute(runner, task, order.work)
        answer = replace(answer, seconds=time.monotonic() - begin)
        if not self._helped:
            self._helped = True
            took = f"{time.monotonic() - self._asked:.2f} s after it was asked to help"
            self._host.say(Detail(f"run {self.run}: computed its first slice, {took}"))
        fault_point("helper.before_answer", step=task.step, device=self._device)
        self._host.endpoint.post(server, slices.answer_frame(task, answer), Urgency.VALUES).add_done_callback(
            lambda done: None if (error := done.exception()) is None else self.on_lost(server, ConnectionLost.of(error))
        )

    def _failed(self, error: Exception) -> None:
        if self._told:
            return
        cause = str(error) if isinstance(error, FarflungError) else f"{type(error).__name__}: {error}"
        self._host.say(f"run {self.run}: helps no more: {cause}")
        try:
            self._host.report(
                "failed",
                run=self.run,
                attempt=self.attempt,
                cause=cause[:3000],
                kind=type(error).__name__ if isinstance(error, FarflungError) else "TrainingError",
            )
        except ConnectionLost:
            return  # the broker is gone too
