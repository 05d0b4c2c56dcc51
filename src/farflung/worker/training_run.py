"""A worker's part in training a run: a thread with an executor, and the messages of peers for it."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial

from farflung.data.timed_reads import TimedReads
from farflung.engines.base import Array, Engine
from farflung.errors import CodecError, ConnectionLost, FarflungError, MemoryExceeded, VersionError, WireError
from farflung.messages.calls import ShardUpload
from farflung.messages.commands import Helper, HelperGone, Prepare, Recheck
from farflung.messages.conversions.step_reports import StepReport
from farflung.messages.data import Batch, LentEnd, LentPiece, PeerHello, RunMessage
from farflung.messages.hybrid import SliceAnswer
from farflung.messages.reports import Ended, Hashed, Noted, Prepared
from farflung.messages.router import Router
from farflung.messages.schema import Channel, Flag, UnsetType, kind_of
from farflung.messages.serving import ServedBatch
from farflung.messages.submission import Bundle, plan_of
from farflung.messages.wire_form import encode
from farflung.plan.link_memory import check_samples
from farflung.plan.model import Plan
from farflung.plan.verification import Unit
from farflung.step.executor import Executor
from farflung.step.plugin_check import check_plugins
from farflung.step.run_setup import RunSetup
from farflung.telemetry.faults import fault_point
from farflung.telemetry.log_line import Detail
from farflung.transports.base import Arrival, Endpoint, LinkStatistics, Urgency
from farflung.units import Bytes, BytesPerSecond, Seconds, counted
from farflung.worker.data_feed import CallerFeed, DataKey, FileFeed, TimedFeed
from farflung.worker.first_states import FileStates, FirstStates, StateFetch
from farflung.worker.links.link_shaping import shape_links
from farflung.worker.links.peer_links import PeerLinks
from farflung.worker.retained_states import Continuation
from farflung.worker.run_hooks import CheckpointUpload, WorkerHooks
from farflung.worker.run_part import RunPart, RunServices, Sender

__all__ = ["TrainingRun"]

#: What reading a malformed message can raise besides the errors of this program.
_MALFORMED = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


class TrainingRun(RunPart):
    """A run that the broker asked this worker to prepare."""

    def __init__(self, command: Prepare, services: RunServices, on_end: Callable[[RunPart], None]) -> None:
        """Take the broker's ``command``; ``start`` begins to prepare."""
        super().__init__(command, services, on_end)
        self._command: Prepare | None = command
        self._submitter = command.submitter
        #: Who may call this worker while the part lasts.
        self._peers: Sequence[str] = ()
        self._continuation = None if isinstance(command.live, UnsetType) else Continuation(command.live)
        #: Set when the broker reports that all workers are prepared (False: the part is over).
        self._go: queue.SimpleQueue[bool] = queue.SimpleQueue()
        #: While there are none, messages are dropped: the part has no executor yet, or is over.
        self._open: _PeerMessages | None = None
        self._upload: CheckpointUpload | None = None
        #: The endpoint of this run: the worker's own, or one with emulated links.
        self._endpoint: Endpoint = services.links.endpoint
        self._reports: Sequence[StepReport] = ()
        self._reads = TimedReads(self.run, f"the data folder {services.place.base}", self.fetch)
        self._limits = command.limits
        #: From the preparation until the end of the part.
        self._engine: Engine | None = None

    @property
    def executor(self) -> Executor | None:
        """The executor, from when the stages are prepared until the part ends."""
        return None if self._open is None else self._open.executor

    # -- from other threads -------------------------------------------------------------------------------------------

    def start(self) -> None:
        """See ``RunPart``. Peers are admitted at once: they may call before the process that computes has started."""
        command = self._command
        assert command is not None
        self._services.links.connect({command.submitter: ""} | dict(command.addresses), command.relays)
        self._peers = [*command.addresses, command.submitter]
        self._threads.spawn(f"compute-{self.run}", self._main)

    def begin(self) -> None:
        """All workers are prepared: train."""
        self._services.log(f"run {self.run}: training begins")
        self._services.retained.training_begins(self.run)
        if self._upload is not None:
            self._upload.begin()
        self._go.put(True)

    def abort(self, error: BaseException, *, broker_knows: bool = False, keep: bool = True) -> None:
        """See ``RunPart``."""
        self._requests.end(error, broker_knows=broker_knows, keep=keep)  # first: threads that wake up below raise this error
        self._go.put(False)
        self._reads.end(error)
        executor = self.executor
        if executor is not None:
            executor.abort(error)
        if not keep:
            engine = self._engine
            if engine is not None:
                engine.end()  # no state is needed any more: nobody waits for what it computes
            self._services.storage.break_off()  # else other workers may continue from the checkpoint that it is part of

    def awaited(self) -> tuple[tuple[str, ...], float]:
        """See ``RunPart``."""
        executor = self.executor
        return ((), 0.0) if executor is None else executor.awaited()

    def reports(self) -> Sequence[StepReport]:
        """See ``RunPart``."""
        return self._reports

    def on_message(self, sender: Sender, message: RunMessage) -> None:
        """See ``RunPart`` and ``_PeerMessages``."""
        open_run = self._open
        if open_run is not None:  # else no thread waits for it
            open_run.receive(sender, message)

    def on_malformed(self, peer: str, error: WireError) -> None:
        """See ``RunPart`` and ``_PeerMessages``."""
        open_run = self._open
        if open_run is not None:
            open_run.malformed(peer, error)

    def on_command(self, command: Helper | HelperGone | Recheck) -> None:
        """See ``RunPart``."""
        open_run = self._open
        if open_run is not None:
            open_run.commands.dispatch(self._services.links, command)

    def on_arrival(self, arrival: Arrival) -> None:
        """Once the frame is decoded, its span is added to the trace."""
        executor = self.executor
        if executor is not None and arrival.peer in executor.setup.peers:
            executor.on_arrival(arrival)

    def on_lost(self, peer: str, error: FarflungError) -> None:
        """See ``RunPart``."""
        open_run = self._open
        if open_run is not None:
            open_run.lost(peer, error)

    # -- the compute thread -------------------------------------------------------------------------------------------

    def _work(self) -> None:
        executor = self._prepare()
        if not self._go.get():
            self._requests.raise_if_ended()
            return
        (executor.serving or executor).run()
        services = self._services
        _log_links(executor.setup.peers, services.links.endpoint.statistics(), services.log)
        whole = executor.step >= executor.setup.job.steps
        services.log(f"run {self.run}: {'finished' if whole else f'ended after step {executor.step}'} on this worker")
        services.report(Ended(run=self.run, attempt=self.attempt, whole=whole))

    def _prepare(self) -> Executor:
        """Open the stages with their first states, and report that this worker is ready."""
        services, command = self._services, self._command
        assert command is not None
        bundle, plan = Bundle.of(command), plan_of(command)
        self._command = None  # the documents are read: release their bytes
        engine = self._engine = services.engine.attempt(services.device, services.memory, self._limits.compute)
        self._requests.raise_if_ended()  # an earlier ``abort`` did not reach the engine
        engine.set_threads(bundle.job.threads)
        setup = _read_setup(self.name, command, bundle, plan, services)
        _greet(services.links, command.addresses)
        if bundle.emulate:
            self._endpoint = shape_links(services.links.endpoint, bundle, setup)
        feed, fingerprints = self._reads.read("the check of the data", partial(self._feed, bundle, setup))
        states = self._first_states(command, bundle)
        executor = Executor(setup, self._endpoint, self._hooks(bundle, feed, states), engine, services.device)
        self._open = _PeerMessages(self.run, executor, states, self._submitter, self.abort)
        self._requests.raise_if_ended()  # an earlier ``abort`` did not reach the executor
        if states.fetch is not None:
            states.fetch.fetch(setup, self._endpoint, executor.inbox)
        fault_point("worker.begins", step=setup.first_step, device=setup.device)
        executor.prepare()
        states.begun()
        stages = ", ".join(str(stage) for stage in setup.own_stages)
        services.log(f"run {self.run}: ready with stage {stages} of {len(setup.plan.stages)}")
        services.report(Prepared(run=self.run, attempt=self.attempt, fingerprints=fingerprints))
        return executor

    def _hooks(self, bundle: Bundle, feed: FileFeed | CallerFeed, states: FirstStates) -> WorkerHooks:
        services = self._services

        def store(head: ShardUpload, tensors: Mapping[str, Array]) -> None:
            hashed = partial(Hashed, run=self.run, attempt=self.attempt, step=head.step)
            services.storage.upload(head, tensors, lambda digest: services.report(hashed(sha256=digest)))

        upload = self._upload = CheckpointUpload(bundle.job, store, self._requests, self._note)
        return WorkerHooks(
            run=self.run,
            attempt=self.attempt,
            report=services.report,
            log=services.log,
            note=self._note,
            requests=self._requests,
            feed=feed if isinstance(feed, CallerFeed) else TimedFeed(feed, self._reads, self._limits.data),
            states=states,
            upload=upload,
            links=services.links.endpoint.statistics,
            offset=services.storage.clock_offset(),
            observer=services.observer,
        )

    def _feed(self, bundle: Bundle, setup: RunSetup) -> tuple[FileFeed | CallerFeed, dict[str, str]]:
        """Where micro-batches come from, and the content hashes of the files.

        Raises:
            DataError: data are missing on this machine.
        """
        if bundle.job.data.kind == "caller":

            def take(key: DataKey) -> Array:
                """Wait for an array that the submitter sends."""
                assert self._open is not None
                taken: Array = self._open.executor.inbox.take(key)
                return taken

            return CallerFeed(setup, take), {}
        feed = FileFeed(bundle, setup, self._services.place.base, confined=self._services.place.confined)
        feed.check()
        if feed.samples is not None:
            check_samples(setup.job, setup.routes, feed.samples)
        return feed, feed.fingerprint()

    def _first_states(self, command: Prepare, bundle: Bundle) -> FirstStates:
        services, fetch = self._services, None
        if self._continuation is not None:
            fetch = StateFetch(self._continuation, self.run, self.attempt, services.retained)

        files = FileStates(bundle, services.place)

        def stored(source: str, names: Sequence[str]) -> Mapping[str, Array]:
            if source == "file":
                return self._reads.read("the weights file", partial(files.read, names))
            return services.storage.states(self.run, source, names)

        return FirstStates(command.states, stored, fetch)

    def _note(self, text: str, *, detail: bool = False) -> None:
        """Show a line to people here and to all who watch the run."""
        line = f"run {self.run}: {text}"
        self._services.log(Detail(line) if detail else line)
        self._services.report(Noted(run=self.run, attempt=self.attempt, text=text, detail=detail))

    def _describe(self, error: Exception, cause: str) -> tuple[str, Flag]:
        return f"run {self.run} failed: {cause}", isinstance(error, ConnectionLost)

    def _close(self) -> None:
        services, executor = self._services, self.executor
        self._open = None
        with ExitStack() as closing:  # called in reverse order, and each one whatever another one raises
            closing.callback(services.links.release, self._peers)
            if self._endpoint is not services.links.endpoint:
                closing.callback(self._endpoint.close)
            closing.callback(self._reads.close)
            closing.callback(setattr, self, "_engine", None)
            ending = closing.enter_context(ExitStack())
            if self._engine is not None:
                ending.callback(self._engine.end)
            if executor is not None:
                executor.abort(ConnectionLost(f"run {self.run} is over here"))  # wakes transport threads that wait in it
                executor.close()
                self._reports = executor.reports
                retained = executor.retained() if self._requests.keep else []
                if retained:
                    services.retained.store(self.run, *retained)
                    ending.pop_all()  # the engine holds the retained states, which end it


def _read_setup(run: str, command: Prepare, bundle: Bundle, plan: Plan, services: RunServices) -> RunSetup:
    """This worker's part in the plan.

    Raises:
        WireError: the plan does not name this worker.
    """
    device = command.device
    if device not in plan.devices:
        raise WireError(f"the plan has {', '.join(plan.devices)}, not {device!r}: this worker has no part in it")
    check_plugins(bundle.job, f"worker {device}", plans=False)
    return RunSetup(
        run=run,
        device=device,
        job=bundle.job,
        plan=plan,
        graphs=bundle.graphs,
        eval_graph=bundle.eval_graph,
        generate_graph=bundle.generate_graph,
        first_step=command.first_step,
        committed=command.committed,
        recovered=command.recovered,
        survives=True,
        rounds=command.rounds,
        checkpoint_step=command.checkpoint_step,
        checkpoint_committed=command.checkpoint_committed,
        secrets={} if isinstance(command.secrets, UnsetType) else command.secrets,
        submitter=command.submitter,
        budget=services.budget,
        disk=services.disk,
    )


def _greet(links: PeerLinks, peers: Iterable[str]) -> None:
    """Dial the peers of the plan."""
    for peer in peers:
        with suppress(ConnectionLost):  # the first frame on the link reports the loss
            links.endpoint.post(peer, encode(PeerHello()), Urgency.CONTROL)  # a peer that can't dial this machine is dialled


class _PeerMessages:
    """What peers and the submitter send to a run that has an executor. Transport threads and the session's thread call."""

    def __init__(
        self, run: str, executor: Executor, states: FirstStates, submitter: str, abort: Callable[[BaseException], None]
    ) -> None:
        """``abort`` ends the run."""
        self.executor = executor
        self._run, self._states, self._submitter, self._abort = run, states, submitter, abort
        #: Each handler checks whether the sender may send its messages.
        self._messages = Router[Sender, None](Channel.DATA, self._of_peer)
        self._messages.register(Batch, self._of_submitter)
        self._messages.register(ServedBatch, self._of_submitter)
        self._messages.register(SliceAnswer, self._answer)
        self._messages.register(LentPiece, self._lent)
        self._messages.register(LentEnd, self._lent_end)
        #: The handlers of the broker's commands about helpers and verification.
        self.commands = Router[PeerLinks, None](Channel.COMMANDS)
        self.commands.register(Helper, self._helper_came)
        self.commands.register(HelperGone, self._helper_went)
        self.commands.register(Recheck, self._recheck)

    def receive(self, sender: Sender, message: RunMessage) -> None:
        """Take a message. A bad one of a participant ends the run. A bad one of anybody else is only refused.

        Raises:
            WireError: the message does not belong here.
            FarflungError: its arrays can't be decoded, or the run is over.
        """
        peer = sender.peer
        try:
            self._messages.dispatch(sender, message)
        except Exception as error:
            if not self._participates(peer):
                raise
            if isinstance(error, (WireError, CodecError, VersionError)):
                self._abort(type(error)(f"a bad {kind_of(message)!r} came from {peer}: {error}").blaming(peer))
                raise
            if isinstance(error, MemoryExceeded):
                self._abort(error)  # nobody is to blame
            if not isinstance(error, _MALFORMED):
                raise
            wrong = WireError(f"a bad {kind_of(message)!r} came from {peer}: {type(error).__name__}: {error}")
            self._abort(wrong.blaming(peer))
            raise wrong from error

    def _of_peer(self, sender: Sender, message: RunMessage) -> None:
        self._take(sender, message, allowed=sender.peer in self.executor.setup.peers)

    def _of_submitter(self, sender: Sender, message: Batch | ServedBatch) -> None:
        self._take(sender, message, allowed=sender.peer == self._submitter)

    def _answer(self, sender: Sender, message: SliceAnswer) -> None:
        """Take a helper's or a peer server's answer."""
        server = self.executor.server
        helps = server is not None and server.knows(sender.peer)
        self._take(sender, message, allowed=helps or sender.peer in self.executor.setup.peers)

    def _take(self, sender: Sender, message: RunMessage, *, allowed: bool) -> None:
        self._check(sender, message, allowed=allowed)
        self.executor.receive(sender.peer, message, sender.nbytes)

    def _lent(self, sender: Sender, message: LentPiece) -> None:
        self._check(sender, message, allowed=self._needs(sender.peer))
        fetch = self._states.fetch
        if fetch is not None:  # else the first states are complete: this is a rest
            fetch.receive(sender.peer, message)

    def _lent_end(self, sender: Sender, message: LentEnd) -> None:
        self._check(sender, message, allowed=self._needs(sender.peer))
        fetch = self._states.fetch
        if fetch is not None:
            fetch.complete(sender.peer, self.executor.inbox)

    def _check(self, sender: Sender, message: RunMessage, *, allowed: bool) -> None:
        if not allowed:
            raise WireError(f"{sender.peer} takes no part in run {self._run}; its {kind_of(message)!r} is refused")

    def malformed(self, peer: str, error: WireError) -> None:
        """``peer`` sent a frame that is not a message."""
        server = self.executor.server
        if self._participates(peer):
            self._abort(WireError(f"{peer} sent a frame that cannot be read: {error}").blaming(peer))
        elif server is not None and server.knows(peer):
            server.refuse(peer, error)

    def _needs(self, peer: str) -> bool:
        """Whether the run can't continue without ``peer``."""
        fetch = self._states.fetch
        return peer in self.executor.setup.peers or (fetch is not None and peer in fetch.sources)

    def _participates(self, peer: str) -> bool:
        return peer == self._submitter or self._needs(peer)

    def _helper_came(self, links: PeerLinks, command: Helper) -> None:
        server = self.executor.server
        if server is not None:
            links.connect({command.name: command.address}, {})
            server.came(command.name, command.stage, command.speed, fed=command.fed)

    def _helper_went(self, _: PeerLinks, command: HelperGone) -> None:
        server = self.executor.server
        if server is not None:
            server.went(command.name, command.cause)

    def _recheck(self, _: PeerLinks, command: Recheck) -> None:
        with suppress(FarflungError):  # the part is over
            self.executor.verification.recheck(Unit(command.step, command.stage, command.micro_batch), command.verifier)

    def lost(self, peer: str, error: FarflungError) -> None:
        """The connection with ``peer`` is lost."""
        server = self.executor.server
        if server is not None:
            server.went(peer, str(error))  # if it helps
        feeds = peer == self._submitter and self.executor.serving is not None  # a batch may be lost: all must come again
        if feeds or self._needs(peer):
            self._abort(error)


def _log_links(peers: Sequence[str], seen: Mapping[str, LinkStatistics], log: Callable[[str], None]) -> None:
    """Log the bytes and seconds of each link so far, and what the network made of it."""
    for peer in peers:
        link = seen.get(peer)
        if link is not None and link.frames_sent:
            log(Detail(_describe_link(peer, link)))


def _describe_link(peer: str, link: LinkStatistics) -> str:
    rate = f", {BytesPerSecond(link.rate)} while busy" if link.rate else ""
    kind = f", {counted(link.connections, 'connection')} under {link.congestion}" if link.congestion else ""
    broken = f", resumed {counted(link.resumed, 'time')}" if link.resumed else ""
    sent = f"{Bytes(link.bytes_sent)} sent in {Seconds(link.busy_seconds)}, {Bytes(link.bytes_received)} received"
    sent += " since this worker began"
    through = f" through {link.relay}" if link.relay else ""
    return f"link to {peer}{through}: {sent}{rate}{kind}{broken}"
