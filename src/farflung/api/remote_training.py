"""Training on the workers of a ticket; this process keeps the data and feeds them."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from functools import partial

from farflung.api.argument_names import warn_if_stretched
from farflung.api.batches import Batches, EvaluationBatches
from farflung.api.callbacks import Callbacks
from farflung.api.result import Outcome
from farflung.checkpoint.safetensors import encode, spec_of
from farflung.client.batch_feeder import Feeder
from farflung.client.connection import Client
from farflung.client.control import ControlClient
from farflung.client.planned_run import PlannedRun
from farflung.engines.base import Array
from farflung.errors import ConnectionLost, FarflungError, InputError
from farflung.graph.ir import StateKind
from farflung.messages.submission import Bundle
from farflung.messages.watching import CheckpointWritten, Note, Planned, Planning, RecordLine, Result, Started
from farflung.security.ticket_argument import parse_ticket
from farflung.security.user_home import own_key
from farflung.telemetry.records import EvaluationRecord, RecoveryRecord, RunResult, StepRecord, read_record
from farflung.thread_group import ThreadGroup
from farflung.units import Seconds, counted
from farflung.worker.membership import join

__all__ = ["say_waiting", "train_there"]

#: A broker that was killed may be started again.
_PATIENCE = Seconds(120.0)
#: How long the caller's callbacks may take when the run is interrupted, in seconds.
_END_SECONDS = 10.0


def train_there(
    bundle: Bundle,
    states: Mapping[str, Array],
    batches: Batches,
    evaluation: EvaluationBatches | None,
    callbacks: Callbacks,
    ticket: str,
) -> Outcome:
    """Train ``bundle`` on the idle workers of the ticket's broker.

    Raises:
        SecurityError: the broker refuses the ticket.
        TrainingError: the run failed; the text is its cause.
        KeyboardInterrupt: the second Ctrl-C, which does not wait for the end of the step.
    """
    client = Client(join(parse_ticket(ticket), name=f"caller-{bundle.run}", role="client", key=own_key()))
    follower = _Follower(bundle, client, (batches, evaluation), callbacks)
    with ExitStack() as stack:
        stack.callback(follower.join)
        stack.callback(client.close)
        stack.push(lambda kind, error, trace: _describe(error, bundle.run, follower))
        given = _to_send(bundle, states)
        if given:
            client.send_weights(bundle.run, encode({n: spec_of(a) for n, a in given.items()}, given.__getitem__))
        _warn(bundle, client)
        say_waiting(client.submit(bundle), client, callbacks)
        client.patience = _PATIENCE
        follower.follow()
        steps = min(follower.steps, follower.checkpoint) if follower.cancelled else follower.steps  # later states are lost
        if isinstance(follower.error, KeyboardInterrupt) and not (follower.records.steps and steps):
            raise KeyboardInterrupt(f"{bundle.run} was cancelled")  # it has no plan, or no state
        assert follower.planned is not None  # a run can't finish without a plan
        names = [s.name for s in bundle.graph.states if s.kind is not StateKind.CONSTANT and s.persistent]
        return Outcome(
            plan=follower.planned.plan,
            records=tuple(one for one in follower.records.steps if one.step < steps),
            evaluations=tuple(one for one in follower.records.evaluations if one.step <= steps),
            states=client.states(bundle.run, names),
            steps=steps,
            error=follower.error,
            checkpoint=bundle.run,
            seconds=follower.seconds,
        )


def _describe(error: BaseException | None, run: str, follower: _Follower) -> None:
    """Add to ``error``, which ends the training (None: it has ended well), what the broker has of ``run``."""
    if isinstance(error, KeyboardInterrupt):
        follower.stop()  # also a run that was only just submitted
        if follower.planned is None and not error.args:
            error.args = (f"{run} was cancelled",)
    if error is not None and follower.checkpoint:
        error.add_note(
            f"the broker has a checkpoint of {run} after step {follower.checkpoint}; train(..., resume={run!r}) continues from it"
        )


def _to_send(bundle: Bundle, states: Mapping[str, Array]) -> dict[str, Array]:
    """The caller's weights; of a run that resumes only what checkpoints leave out."""
    resumes = bool(bundle.job.checkpoint.resume)
    return {name: array for name, array in states.items() if not (resumes and bundle.graph.state[name].persistent)}


def say_waiting(submitted: Mapping[str, str], client: ControlClient, callbacks: Callbacks) -> None:
    """Show that the run waits for machines, as the broker's answer to ``submit`` says, and which runs have the others."""
    if submitted["state"] == "waiting":
        members = client.status()["members"]
        assert isinstance(members, list)
        busy = [str(one["run"]) for one in members if one["run"] not in (None, submitted["run"])]
        callbacks.progress.waiting(submitted["run"], int(submitted["needs"]) - int(submitted["idle"]), busy)


def _warn(bundle: Bundle, client: Client) -> None:
    """Warn where the run continues an earlier one under other learning rates."""
    if bundle.job.checkpoint.resume and bundle.job.schedule.name != "constant":
        with suppress(FarflungError):  # there is nothing to continue from: then ``submit`` says why
            warn_if_stretched(bundle.job, int(str(client.resumable(bundle.job.checkpoint.resume)["steps"])))


class _Records:
    """The records of the run, and what the callbacks have seen of them. Only the watching thread calls ``take``."""

    def __init__(self, callbacks: Callbacks, run: str) -> None:
        self.callbacks, self._run = callbacks, run
        self.steps: list[StepRecord] = []
        self.evaluations: list[EvaluationRecord] = []
        #: The newest training step, and evaluation, that the callbacks have seen: after a loss the run repeats some.
        self._seen_step = self._seen_evaluation = -1

    def take(self, line: str) -> None:
        """Add a record, and call the callbacks if it is new."""
        record = read_record(line)
        if isinstance(record, RecoveryRecord):
            self.callbacks.recovered(self._run, record)
            self.steps = [one for one in self.steps if one.step < record.step]
            self.evaluations = [one for one in self.evaluations if one.step < record.step]
        elif isinstance(record, StepRecord):
            self.steps.append(record)
            if record.step > self._seen_step:
                self._seen_step = record.step
                self.callbacks(record)
        elif isinstance(record, EvaluationRecord):
            self.evaluations.append(record)
            if record.step > self._seen_evaluation:
                self._seen_evaluation = record.step
                self.callbacks(record)


class _Feeding:
    """Feeds the newest plan of the run. The watching thread calls ``begin``, the caller's thread ``end`` when it is over."""

    def __init__(self, bundle: Bundle, client: Client, sources: tuple[Batches, EvaluationBatches | None]) -> None:
        self.bundle, self._client, self._sources = bundle, client, sources
        self._feeder: Feeder | None = None
        #: The attempt that is fed.
        self._attempt = 0

    @property
    def error(self) -> BaseException | None:
        """What ended the feeding early."""
        return None if self._feeder is None else self._feeder.error

    def begin(self, planned: PlannedRun) -> None:
        """Feed ``planned`` from its first step on; after a loss there is a new plan, which may begin at an earlier step."""
        if planned.attempt <= self._attempt:
            return
        self.end()
        self._attempt = planned.attempt
        self._feeder = Feeder(self.bundle, planned, self._client, *self._sources)
        self._feeder.start()

    def end(self) -> None:
        """Feed no more."""
        if self._feeder is not None:
            self._feeder.end()


class _Follower:
    """Watches the run on a thread of its own and feeds it. The callbacks run on this thread, too."""

    def __init__(
        self, bundle: Bundle, client: Client, sources: tuple[Batches, EvaluationBatches | None], callbacks: Callbacks
    ) -> None:
        self._run, self._client = bundle.run, client
        self.records = _Records(callbacks, bundle.run)
        self._feeding = _Feeding(bundle, client, sources)
        self.planned: PlannedRun | None = None
        #: Steps of the newest checkpoint (0: none), and of the run when it ended.
        self.checkpoint = self.steps = 0
        self.seconds = 0.0
        self._interrupted = self._stopping = self._trains = False
        self._failed: BaseException | None = None
        self._watching = ThreadGroup()
        #: Whether a stop request has ended the run at once, because no step was under way.
        self.cancelled = False
        #: Set when the watching thread has nothing more to do.
        self._over = threading.Event()

    @property
    def error(self) -> BaseException | None:
        """What ended the run early although its states are whole."""
        if self.records.callbacks.error is not None:
            return self.records.callbacks.error
        return KeyboardInterrupt() if self._interrupted else None

    def follow(self) -> None:
        """Watch until the run is over. The first Ctrl-C asks the broker to end it after the current step.

        Raises:
            TrainingError: it failed, or somebody else stopped it.
            KeyboardInterrupt: the second Ctrl-C.
            BaseException: what the caller's own batch function raised.
        """
        # Ctrl-C reaches the main thread only. There it would break the stream, and the broker would consider this process lost.
        self._watching.spawn(f"watch-{self._run}", self._watch, on_error=self._fail)
        try:
            try:
                self._over.wait()
            except KeyboardInterrupt:
                self._interrupted = True
                self.stop()
                self.records.callbacks.progress.interrupted(self._end_text())
                self._over.wait()
        finally:
            self._feeding.end()
        self._watching.join()
        if self._failed is not None:
            raise self._failed

    def join(self) -> None:
        """Wait for the watching thread; the client must be closed."""
        self._watching.join(_END_SECONDS)

    def stop(self) -> None:
        """Ask the broker to end the run after the current step."""
        if not self._stopping:
            self._stopping = True
            with suppress(ConnectionLost, InputError):  # the run is over already, or the broker away: then ``watch`` says so
                self.cancelled = self._client.stop(self._run)

    def _end_text(self) -> str:
        """Return when the run ends after ``stop``."""
        if self.planned is None:
            return "the run is cancelled before its first step"
        if self.cancelled:
            return "no step is under way, so the run ends now"
        return f"training ends after {'the current step' if self._trains else 'the run has recovered'}"

    def _fail(self, error: BaseException) -> None:
        self._failed = error
        self._over.set()

    def _watch(self) -> None:
        """Take what the broker reports."""
        for message in self._client.watch(self._run):
            match message:
                case Planning():
                    self._trains = False
                    self.records.callbacks.progress.captured()
                case Planned():
                    self.planned = PlannedRun.of(message)
                    self.records.callbacks.planned(self._feeding.bundle.job, self.planned.plan)
                case Started() if self.planned is not None:
                    self._trains = True
                    self._feeding.begin(self.planned)
                case Note(text=text) if message.detail is not True:
                    self.records.callbacks.progress.note(self._run, text)
                case CheckpointWritten(step=step):
                    self._saved(step)
                case RecordLine(line=line):
                    self.records.take(line)
                    if self.records.callbacks.error is not None:
                        self.stop()
                case Result(result=result):
                    self._end(RunResult.from_json(result))
        self._over.set()

    def _saved(self, step: int) -> None:
        callbacks = self.records.callbacks
        self.checkpoint = max(self.checkpoint, step)
        callbacks.saved(step, self._feeding.bundle.graph, partial(self._client.states, self._run))
        if callbacks.error is not None:
            self.stop()

    def _end(self, result: RunResult) -> None:
        if self._feeding.error is not None and result.status != "failed":
            raise self._feeding.error  # which has stopped the run; of a run that failed the broker knows the cause
        self.steps, self.seconds = result.steps, result.seconds
        ours = result.status == "stopped" and self._stopping
        if result.status != "finished" and not ours:
            text = f"{self._run} {result.status} after {counted(result.steps, 'step')}: {result.cause or 'by request'}"
            raise self._client.failure(self._run, text)
