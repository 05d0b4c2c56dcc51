"""One run on a worker: a thread with an executor, and what the executor asks of its surroundings."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from farflung.checkpoint import pack
from farflung.data.base import Place
from farflung.data.files import default_cache, inside, resolve
from farflung.engines.base import Array, Engine
from farflung.errors import CodecError, ConnectionLost, DiskFull, FarflungError, VersionError, WireError
from farflung.messages.copy_rounds import Rounds, read_rounds
from farflung.messages.fields import number, table, text, texts, whole
from farflung.messages.link_reports import write_links
from farflung.messages.relays import read_relays
from farflung.messages.step_reports import StepReport, write_report
from farflung.messages.submission import Bundle, unsqueeze
from farflung.plan.document import plan_from_json
from farflung.plan.link_memory import check_samples
from farflung.step.executor import Executor
from farflung.step.plugin_check import check_brought
from farflung.step.run_setup import Committed, Phase, RunSetup, attempt_name, data_key
from farflung.telemetry.faults import fault_point
from farflung.telemetry.log_line import Detail
from farflung.telemetry.trace import ClockOffset, Span, pack_spans
from farflung.transports.base import Arrival, Endpoint, Urgency
from farflung.units import Bytes, BytesPerSecond, Seconds, counted
from farflung.wire.frames import Frame
from farflung.worker.data_feed import FileFeed
from farflung.worker.helper import Helping
from farflung.worker.link_shaping import shape_links
from farflung.worker.retained_states import Live, Shelf
from farflung.worker.state_fetch import Borrowing
from farflung.worker.weights_file import file_states

__all__ = ["Host", "Work"]

_PATIENCE = 30.0
#: For how long the last checkpoint waits for a full disk, and how often it is tried.
_FULL_SECONDS, _FULL_AGAIN = 600.0, 2.0
#: Checkpoints to recover from take at most one of so many seconds.
_SHARE = 33.0


class Host(Protocol):
    """The worker, as a run on it sees it."""

    @property
    def device(self) -> str:
        """The device that computes (``cpu``, ``cuda:0``)."""

    @property
    def data(self) -> Path:
        """The folder that relative data paths start from."""

    @property
    def any_path(self) -> bool:
        """Whether jobs may read outside of ``data``."""

    @property
    def engine(self) -> Engine:
        """The engine."""

    @property
    def endpoint(self) -> Endpoint:
        """The data plane."""

    @property
    def shelf(self) -> Shelf:
        """What this worker holds of a run whose attempt has ended."""

    def meet(self, addresses: Mapping[str, str], relays: Mapping[str, Sequence[tuple[str, str]]]) -> None:
        """Be told where peers are (empty: they dial), and through which relays (name and address) some are reached."""

    def part(self, peers: Sequence[str]) -> None:
        """A run with ``peers`` is over: relays are not kept busy."""

    def report(self, what: str, /, **fields: Any) -> None:
        """Tell the broker."""

    def states(self, run: str, source: str, names: Sequence[str]) -> dict[str, Array]:
        """Tensors that the broker keeps."""

    def upload(self, run: str, place: Mapping[str, int], tensors: Mapping[str, Array]) -> None:
        """Send this worker's share of a checkpoint (``place``: its ``step``, and how many steps are ``committed``)."""

    def break_off(self) -> None:
        """End the upload that is under way, if there is one: it raises ``ConnectionLost``."""

    def clock_offset(self) -> ClockOffset:
        """How far the broker's clock is from this machine's."""

    def say(self, text: str) -> None:
        """Tell the person at this machine."""

    def over(self, work: Work | Helping) -> None:
        """``work`` has ended, and holds nothing any more."""


class Work:
    """A run that the broker asked this worker to prepare. Also the executor's hooks."""

    def __init__(self, host: Host, frame: Frame) -> None:
        self._host = host
        self._frame = frame
        self.run = text(frame.header, "run", limit=200)
        self.attempt = whole(frame.header, "attempt", low=1)
        #: What its peers call it.
        self.name = attempt_name(self.run, self.attempt)
        self._saved = _Saved()
        self._reports: Sequence[StepReport] = ()
        self.executor: Executor | None = None
        self._go: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._stopping = threading.Event()
        #: The run is stopped, or ended.
        self._woken = threading.Event()
        self._handing = threading.Event()
        self._feed: FileFeed | None = None
        #: The key of ``data`` -> what the submitter sent, and how many stages here have yet to read it
        self._held: dict[tuple[str, int, int, str], tuple[Array, int]] = {}
        self._bundle: Bundle | None = None
        self._ended_by: BaseException | None = None
        self._told = False
        self._shaped: Endpoint | None = None
        self._states_from = text(frame.header, "states")
        self._submitter = text(frame.header, "submitter")
        #: Until the stages have begun, where a plan goes on from what workers hold.
        self._borrowing: Borrowing | None = None
        if "live" in frame.header:
            self._borrowing = Borrowing(Live(table(frame.header, "live")), self.run, self.attempt, host.shelf)
        self._keep = True
        self._offset: ClockOffset | None = None
        self._thread = threading.Thread(target=self._main, name=f"compute-{self.run}", daemon=True)

    # -- from other threads -------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to prepare."""
        self._thread.start()

    def begin(self) -> None:
        """All workers are prepared: train."""
        self._host.say(f"run {self.run}: training begins")
        self._host.shelf.begins(self.run)
        self._saved = _Saved()
        self._go.put(True)

    def stop(self) -> None:
        """End after the current step."""
        self._stopping.set()
        self._woken.set()

    def hand_over(self) -> None:
        """End after the current step with a checkpoint; others go on."""
        self._handing.set()

    def join(self, timeout: float | None = _PATIENCE) -> None:
        """Wait for the compute thread (None: however long it takes)."""
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout)

    def abort(self, error: BaseException, *, told: bool = False, keep: bool = True) -> None:
        """End the run with ``error``; ``told``: the broker knows already; ``keep``: what it holds may be gone on from."""
        self._keep = self._keep and keep
        self._told = self._told or told
        self._ended_by = self._ended_by or error
        self._go.put(False)
        self._woken.set()
        executor = self.executor
        if executor is not None:
            executor.abort(error)
        if not keep:
            self._host.break_off()  # else the others may go on from the checkpoint that it is part of

    def on_frame(self, peer: str, frame: Frame) -> None:
        """A frame of this run came from ``peer`` (transport thread).

        A bad one of who takes part ends the run, one of anybody else is only refused; the sender is told.

        Raises:
            WireError: it does not belong here, or its header is malformed.
            FarflungError: it can't be decoded, or the run is over.
        """
        executor = self.executor
        if executor is None:
            return  # not ready, or over: nobody waits for it
        if frame.kind == "answer" and peer not in executor.setup.peers:
            self._on_answer(executor, peer, frame)
            return
        borrowing, peers = self._borrowing, executor.setup.peers
        if not (peer == self._submitter or peer in peers or (borrowing is not None and peer in borrowing.live.moves)):
            raise self._strange(peer, frame)
        try:
            if frame.kind == "lent":
                if borrowing is not None:
                    borrowing.receive(peer, frame, executor.inbox)
                return
            may = peer == self._submitter if frame.kind == "data" else peer in peers
            if not may:
                raise self._strange(peer, frame)
            executor.on_frame(peer, frame)
        except (WireError, CodecError, VersionError) as error:
            self.abort(type(error)(f"a bad {frame.kind!r:.40} came from {peer}: {error}"))
            raise
        except FarflungError:
            raise
        except Exception as error:  # a defect, or a message that nobody foresaw: it must not kill the transport's thread
            wrong = WireError(f"a bad {frame.kind!r:.40} came from {peer}: {type(error).__name__}: {error}")
            self.abort(wrong)
            raise wrong from error

    def _on_answer(self, executor: Executor, peer: str, frame: Frame) -> None:
        """A helper's answer; a bad one ends its help, not the run.

        Raises:
            WireError: it does not belong here, or is malformed.
        """
        if executor.server is None or not executor.server.receive_answer(peer, frame):
            raise WireError(f"{peer} does not help in run {self.run}; its answer is refused")

    def on_helper(self, frame: Frame) -> None:
        """A helper comes, or goes, as the broker says (session's thread)."""
        executor = self.executor
        if executor is None or executor.server is None:
            return
        name = text(frame.header, "name", limit=100)
        if frame.kind == "helper_gone":
            executor.server.went(name, text(frame.header, "cause"))
            return
        self._host.meet({name: text(frame.header, "address", limit=300)}, {})
        stage, speed = whole(frame.header, "stage"), number(frame.header, "speed", low=1e-12)
        executor.server.came(name, stage, speed, fed=frame.header.get("fed") is True)

    def _strange(self, peer: str, frame: Frame) -> WireError:
        return WireError(f"{peer} takes no part in run {self.run}; its {frame.kind!r:.40} is refused")

    def on_arrival(self, arrival: Arrival) -> None:
        """A frame came in (transport thread); once it is decoded, its span is added to the trace."""
        executor = self.executor
        if executor is not None and arrival.peer in executor.setup.peers:
            executor.on_arrival(arrival)

    def on_lost(self, peer: str, error: ConnectionLost) -> None:
        """``peer`` broke off."""
        executor = self.executor
        borrowing = self._borrowing
        if executor is not None and executor.server is not None:
            executor.server.went(peer, str(error))  # if it helps
        if executor is not None and (peer in executor.setup.peers or (borrowing is not None and peer in borrowing.live.moves)):
            self.abort(error)

    def told(self) -> list[StepReport]:
        """Reports of the last steps, with all losses."""
        return list(self._reports)

    # -- the compute thread -------------------------------------------------------------------------------------------

    def _main(self) -> None:
        try:
            executor = self._prepare()
            if not self._go.get():
                if self._ended_by is not None:
                    raise self._ended_by
                return
            executor.run()
            self._tell_links(executor.setup.peers)
            self._host.say(f"run {self.run}: finished on this worker")
            self._report("ended", whole=executor.step >= executor.setup.job.steps)
        except Exception as error:  # noqa: BLE001 - whatever ends this worker's part, the broker must hear of it
            self._failed(error)
        finally:
            self._close()

    def _tell_links(self, peers: Sequence[str]) -> None:
        """Bytes and seconds of each link so far, and what the network made of it."""
        seen = self._host.endpoint.statistics()
        for peer in peers:
            link = seen.get(peer)
            if link is not None and link.frames_sent:
                rate = f", {BytesPerSecond(link.rate)} while busy" if link.rate else ""
                kind = f", {counted(link.connections, 'connection')} under {link.congestion}" if link.congestion else ""
                broken = f", resumed {counted(link.resumed, 'time')}" if link.resumed else ""
                sent = f"{Bytes(link.bytes_sent)} sent in {Seconds(link.busy_seconds)}, {Bytes(link.bytes_received)} received"
                sent += " since this worker began"
                through = f" through {link.relay}" if link.relay else ""
                self._host.say(Detail(f"link to {peer}{through}: {sent}{rate}{kind}{broken}"))

    def _failed(self, error: Exception) -> None:
        if self._told:
            return
        ours = isinstance(error, FarflungError)
        cause = str(error) if ours else f"{type(error).__name__}: {error}"
        kind = type(error).__name__ if ours else "TrainingError"
        self._host.say(f"run {self.run} failed: {cause}")
        try:
            self._report("failed", cause=cause[:3000], kind=kind, lost_peer=isinstance(error, ConnectionLost))
        except ConnectionLost:
            return  # the broker is gone too: there is nobody to tell

    def _prepare(self) -> Executor:
        host, setup = self._host, self._setup()
        assert self._bundle is not None
        endpoint = self._shaped = shape_links(host.endpoint, self._bundle, setup) if self._bundle.emulate else host.endpoint
        fingerprints: dict[str, str] = {}
        if self._bundle.job.data.kind != "caller":
            self._feed = FileFeed(self._bundle, setup, host.data, confined=not host.any_path)
            self._feed.check()
            if self._feed.samples is not None:
                check_samples(setup.job, setup.ways, self._feed.samples)
            fingerprints = self._feed.fingerprint()
        executor = Executor(setup, endpoint, self, host.engine, host.device)
        self.executor = executor  # from here on abort reaches it
        if self._ended_by is not None:
            raise self._ended_by
        if self._borrowing is not None:
            self._borrowing.fetch(setup, endpoint, executor.inbox)
        fault_point("worker.begins", step=setup.first_step, device=setup.device)
        executor.prepare()
        self._borrowing = None
        self._offset = host.clock_offset()
        stages = ", ".join(str(stage) for stage in setup.own_stages)
        host.say(f"run {self.run}: ready with stage {stages} of {len(setup.plan.stages)}")
        self._report("prepared", fingerprints=fingerprints)
        return executor

    def _setup(self) -> RunSetup:
        frame, header, host = self._frame, self._frame.header, self._host
        names = texts(header, "documents")
        if names[-1:] != ["plan"] or len(frame.sections) != len(names):
            raise WireError("the broker sent no plan with the run; install the same farflung on both machines")
        plan = plan_from_json(unsqueeze(frame.sections[-1]))
        bundle = Bundle.from_frame(Frame(frame.kind, {**header, "documents": names[:-1]}, frame.sections[:-1]))
        self._frame = Frame(frame.kind)  # the documents are read: their bytes may go
        self._bundle = bundle
        host.engine.set_threads(bundle.job.threads)
        device = text(header, "device", limit=100)
        if device not in plan.devices:
            raise WireError(f"the plan has {', '.join(plan.devices)}, not {device!r}: this worker has no part in it")
        check_brought(bundle.job, f"worker {device}", plans=False)
        addresses = {peer: str(address) for peer, address in table(header, "addresses").items()}
        host.meet(addresses, read_relays(header))
        for peer in addresses:
            with suppress(ConnectionLost):  # who needs the link hears of it
                host.endpoint.post(peer, Frame("hello"), Urgency.CONTROL)  # a peer that can't dial this machine is dialled
        return RunSetup(
            run=self.name,
            device=device,
            job=bundle.job,
            plan=plan,
            graphs=bundle.graphs,
            eval_graph=bundle.eval_graph,
            generate_graph=bundle.generate_graph,
            first_step=whole(header, "first_step", high=bundle.job.steps),
            committed=whole(header, "committed", high=bundle.job.steps),
            recovered=header.get("recovered") is True,
            survives=True,
            rounds=read_rounds(table(header, "rounds")) if "rounds" in header else Rounds(),
            kept_step=whole(header, "kept_step", high=bundle.job.steps),
            kept_committed=whole(header, "kept_committed", high=bundle.job.steps),
        )

    def _close(self) -> None:
        executor, self.executor = self.executor, None
        if executor is not None:
            executor.abort(ConnectionLost(f"run {self.run} is over here"))  # wakes transport threads that wait in it
            executor.close()
            self._reports = executor.reports
            retained = executor.retained() if self._keep else []
            if retained:
                self._host.shelf.put(self.run, *retained)
        if self._shaped is not None and self._shaped is not self._host.endpoint:
            self._shaped.close()
        if executor is not None:
            self._host.part([*executor.setup.peers, self._submitter])
        self._feed = self._bundle = None
        self._held.clear()
        self._host.over(self)

    # -- hooks --------------------------------------------------------------------------------------------------------

    def provide(self, phase: Phase, step: int, micro_batch: int, names: Sequence[str]) -> Mapping[str, Array]:
        """Data from this machine's files, or from the submitting process."""
        if self._feed is not None:
            return self._feed.provide(phase, step, micro_batch, names)
        return {name: self._sent(phase, step, micro_batch, name) for name in names}

    def _sent(self, phase: Phase, step: int, micro_batch: int, name: str) -> Array:
        """What the submitter sent, once for this machine: it stays until all stages here that read it have asked."""
        assert self.executor is not None
        key = (data_key(phase), step, micro_batch, name)
        if key not in self._held:
            readers = sum(name in piece.placeholders for piece in self.executor.local_pieces(phase, micro_batch))
            self._held[key] = (self.executor.inbox.take(key), readers)
        array, left = self._held.pop(key)
        if left > 1:
            self._held[key] = (array, left - 1)
        return array

    def first_states(self, names: Sequence[str]) -> Mapping[str, Array] | None:
        """From a checkpoint, from weights that the submitter sent, or from a file on this machine; None: initializers."""
        assert self._bundle is not None
        if self._borrowing is not None:
            return self._borrowing.states(names)
        if self._states_from in ("checkpoint", "weights"):
            return self._host.states(self.run, self._states_from, names)
        if self._states_from == "file":
            place = Place(base=self._host.data, cache=default_cache(), confined=not self._host.any_path)
            return dict(file_states(self._bundle, names, _weights(self._bundle.job.weights.path, place)))
        return None

    def first_optimizer(self, parameters: Sequence[str]) -> Mapping[str, Array]:
        """From a checkpoint, if the run goes on from one."""
        if self._borrowing is not None:
            return self._borrowing.optimizer(parameters)
        if self._states_from != "checkpoint":
            return {}
        return self._host.states(self.run, "optimizer", parameters)

    def stop_requested(self) -> bool:
        """Whether somebody asked for the end."""
        return self._stopping.is_set()

    def ends_after(self, phase: Phase, step: int) -> bool | None:
        """Never by itself: ``stop_requested`` says it."""
        return False

    def leave_requested(self) -> bool:
        """Whether the run is handed over."""
        return self._handing.is_set()

    def save_requested(self) -> bool:
        """Whether the time for a checkpoint to recover from has come."""
        assert self._bundle is not None
        return self._saved.due(self._bundle.job.recover_seconds)

    def on_step(self, report: StepReport) -> None:
        """Tell the broker."""
        self._report("step", **write_report(report))

    def on_checkpoint(self, step: int, committed: Committed, states: Mapping[str, Array], optimizer: Mapping[str, Array]) -> None:
        """Send this worker's share to the broker."""
        begin = time.monotonic()
        counts = {"committed": committed.steps, "rested": committed.rested}
        if self._upload({"step": step, **counts, "attempt": self.attempt}, pack(states, optimizer)):
            self._states_from = "checkpoint"
        self._saved.now(begin)

    def _upload(self, place: Mapping[str, int], tensors: Mapping[str, Array]) -> bool:
        """Whether it is kept. If the broker's disk is full, training goes on without this one; the last one is tried again,
        until somebody stops the run.

        Raises:
            DiskFull: it was full for too long, or the job goes back to checkpoints by itself.
            FarflungError: it is refused.
        """
        assert self._bundle is not None
        job, until = self._bundle.job, 0.0
        while True:
            try:
                self._host.upload(self.run, place, tensors)
            except DiskFull as error:
                now = time.monotonic()
                if job.on_nan == "rollback" or (until and now >= until) or self._ended_by is not None:
                    raise
                last = place["step"] >= job.steps
                if not until:
                    then = "the worker tries again until there is space" if last else "training continues without it"
                    text = f"warning: the checkpoint after step {place['step']} cannot be written: {error}; {then}"
                    self.event("note", text=text)
                if not last:
                    return False
                until = until or now + _FULL_SECONDS
                if self._stopping.is_set():
                    return False
                self._woken.wait(_FULL_AGAIN)
            except ConnectionLost:
                if self._ended_by is not None:
                    raise self._ended_by from None
                raise
            else:
                return True

    def on_evaluation(self, step: int, outputs: Mapping[str, float]) -> None:
        """Tell the broker."""
        self._report("evaluation", step=step, outputs=dict(outputs))

    def on_text(self, tokens: Sequence[int]) -> None:
        """Tell the broker the text."""
        written = self._feed.decode(tokens) if self._feed is not None else " ".join(map(str, tokens))
        self._report("text", text=written)

    def event(self, kind: str, **fields: Any) -> None:
        """Spans of the trace go to the broker, which keeps them in the run's folder; notes to people here and all who watch."""
        if kind == "trace":
            self._tell_trace(fields["spans"], fields["lost"])
        elif kind == "note":
            detail = bool(fields.get("detail"))
            line = f"run {self.run}: {fields['text']}"
            self._host.say(Detail(line) if detail else line)
            self._report("note", text=fields["text"], detail=detail)
        elif kind == "helper":
            self._host.say(Detail(f"run {self.run}: {fields['text']}"))

    def _tell_trace(self, spans: Sequence[Span], lost: int) -> None:
        names, packed = pack_spans(spans)
        offset, self._offset = self._offset, None  # told once
        clock = None if offset is None else [offset.seconds, offset.error]
        links = write_links(self._host.endpoint.statistics())
        self._report("trace", names=names, spans=packed, lost=lost, clock=clock, links=links)

    def _report(self, what: str, /, **fields: Any) -> None:
        self._host.report(what, run=self.run, attempt=self.attempt, **fields)


class _Saved:
    """When the last checkpoint was written, or training began, and how long it took."""

    def __init__(self) -> None:
        self._at = time.monotonic()
        self._took = 0.0

    def now(self, begin: float) -> None:
        """One that was begun at ``begin`` is written."""
        self._at = time.monotonic()
        self._took = self._at - begin

    def due(self, seconds: float) -> bool:
        """Whether it is time for another: after ``seconds``, or longer if the last one took more than a 33rd of that."""
        return seconds > 0 and time.monotonic() - self._at >= max(seconds, _SHARE * self._took)


def _weights(path: str, place: Place) -> Path:
    """The file (or folder of files) of weights on this machine.

    Raises:
        DataError: it, or a file in it, leads out of the data folder, and this machine keeps jobs inside.
    """
    found = resolve(path, place)
    if place.confined and found.is_dir():
        inside(sorted(found.iterdir()), path, place)
    return found
