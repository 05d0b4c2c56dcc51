"""A served model as a run at the broker: batches go to its workers, tokens come back. A lost worker costs no request."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from contextlib import suppress

from farflung.client.connection import Client
from farflung.client.planned_run import PlannedRun
from farflung.clock import monotonic
from farflung.errors import ConnectionLost, FarflungError, InputError, Stopped, TrainingError, WireError
from farflung.messages.data import PeerHello
from farflung.messages.schema import Channel
from farflung.messages.serving import DrawItem, ServedBatch, ServedTokens, TokenItem
from farflung.messages.submission import Bundle
from farflung.messages.watching import Note, Planned, Result, Started
from farflung.messages.wire_form import decode, encode
from farflung.serving.generation import Generation, Piece
from farflung.serving.scheduler import Batch, Scheduler, Settings, TokenSequence
from farflung.step.run_setup import attempt_name
from farflung.telemetry.records import RunResult
from farflung.thread_group import ThreadGroup
from farflung.transports.tcp.endpoint import TcpEndpoint
from farflung.wire.frames import Frame

__all__ = ["Service"]

#: Requests that may wait for a slot.
_MOST_WAITING = 1000
#: How long batches under way may take when the server ends, in seconds.
_END_SECONDS = 10.0


class _Attempt:
    """The links to the workers of one attempt."""

    def __init__(self, name: str, planned: PlannedRun, endpoint: TcpEndpoint) -> None:
        self.name, self.devices, self.endpoint = name, planned.plan.devices, endpoint
        #: Who draws tokens.
        self.last = frozenset(planned.plan.stages[-1].devices)
        for device, address in planned.addresses.items():
            endpoint.connect(device, address)
            relays = planned.relays.get(device, ())
            for relay, place in relays:
                endpoint.connect(relay, place)
            endpoint.relay_through(device, [relay for relay, _ in relays])

    def send(self, batch: Batch) -> None:
        """Send ``batch`` to all workers. A lost worker is the broker's business: a new attempt follows."""
        draws = tuple(
            DrawItem(
                place=place,
                temperature=one.draws.temperature,
                top_k=one.draws.top_k,
                top_p=one.draws.top_p,
                seed=one.draws.seed,
                index=one.drawn,
                logprobs=one.draws.logprobs,
            )
            for place, one in batch.draws
        )
        message = ServedBatch(
            run=self.name,
            number=batch.number,
            rows=batch.rows,
            tokens=batch.tokens,
            positions=batch.positions,
            slots=batch.slots,
            draws=draws,
        )
        frame = encode(message)
        for device in self.devices:
            with suppress(FarflungError):
                self.endpoint.post(device, frame)

    def greet(self) -> None:
        """Dial all workers."""
        for device in self.devices:
            with suppress(FarflungError):
                self.endpoint.post(device, encode(PeerHello()))


class Service:
    """Serves one model. ``start`` submits the run, and ``close`` ends it. Any thread may call ``add`` and ``remove``."""

    def __init__(self, client: Client, bundle: Bundle, settings: Settings, log: Callable[[str], None]) -> None:
        self._client, self._bundle, self._log = client, bundle, log
        #: Guards everything below. The dispatching thread waits for news.
        self._changed = threading.Condition()
        #: Held while tokens of workers are taken and become text; taken before ``_changed``.
        self._taking = threading.Lock()
        self._scheduler = Scheduler(settings)
        self._generations: dict[TokenSequence, Generation] = {}
        self._planned: PlannedRun | None = None
        #: The present attempt (``None``: there are not enough workers).
        self._attempt: _Attempt | None = None
        self._closing = False
        #: The next batch, which the dispatching thread has yet to send.
        self._made: Batch | None = None
        #: Why the run has ended (``None``: it has not).
        self.ended: FarflungError | None = None
        self._ready = threading.Event()
        self._threads = ThreadGroup()
        self.on_end: Callable[[], None] = lambda: None

    @property
    def ready(self) -> bool:
        """Whether the workers of an attempt serve now."""
        return self._attempt is not None

    @property
    def devices(self) -> tuple[str, ...]:
        """The workers that serve now."""
        attempt = self._attempt
        return () if attempt is None else tuple(attempt.devices)

    @property
    def vocabulary(self) -> int:
        """How many tokens the model knows."""
        graph = self._bundle.graph
        return graph.spec(graph.result).shape[-1]

    def start(self) -> None:
        """Submit the run, and follow it on threads of this service."""
        self._client.submit(self._bundle)
        self._threads.spawn(f"watch-{self._bundle.run}", self._watch, on_error=self._end)
        self._threads.spawn("serve-batches", self._dispatch, on_error=self._end)

    def wait_until_ready(self) -> None:
        """Wait until the model serves.

        Raises:
            FarflungError: the run has ended instead.
        """
        self._ready.wait()
        if self.ended is not None:
            raise self.ended

    def add(self, generations: Iterable[Generation]) -> None:
        """Continue prompts.

        Raises:
            ConnectionLost: the run has ended.
            InputError: too many requests wait.
        """
        given = list(generations)
        with self._changed:
            if self.ended is not None or self._closing:
                raise ConnectionLost("the server is ending: send the request to another server")
            if self._scheduler.waiting + len(given) > _MOST_WAITING:
                raise InputError(f"{self._scheduler.waiting} requests wait already, at most {_MOST_WAITING} may: try again later")
            for generation in given:
                self._generations[generation.sequence] = generation
                self._scheduler.add(generation.sequence)
            self._changed.notify_all()

    def remove(self, generation: Generation) -> None:
        """Nobody wants ``generation`` any more."""
        with self._changed:
            if self._generations.pop(generation.sequence, None) is not None:
                self._scheduler.remove(generation.sequence)
                self._changed.notify_all()

    def close(self) -> None:
        """Stop the run, and wait for the threads."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
            # a worker that waits for a value of another one would wait for ever if that one had stopped before
            self._changed.wait_for(lambda: self._scheduler.idle or self._attempt is None or self.ended is not None, _END_SECONDS)
        with suppress(FarflungError):
            self._client.stop(self._bundle.run, now=self._attempt is None)
        self._threads.join(_END_SECONDS)
        self._client.close()
        self._threads.join(_END_SECONDS)
        self._leave()

    # -- the watching thread ------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        for message in self._client.watch(self._bundle.run):
            match message:
                case Planned():
                    self._leave()
                    self._planned = PlannedRun.of(message)
                case Started() if self._planned is not None:
                    self._begin(self._planned)
                case Note() if message.detail is not True:
                    self._log(message.text)
                case Result(result=result):
                    found = RunResult.from_json(result)
                    text = f"the model is not served any more: {found.cause or found.status}"
                    by_request = found.status == "stopped"
                    self._end(Stopped(text) if by_request else self._client.failure(self._bundle.run, text))

    def _begin(self, planned: PlannedRun) -> None:
        """All workers are prepared: send the prefixes of all requests."""
        name = attempt_name(self._bundle.run, planned.attempt)
        attempt = _Attempt(name, planned, self._client.endpoint(self._receive))
        attempt.greet()
        stages = len(planned.plan.stages)
        with self._changed:
            self._scheduler.restart(stages + 1)  # while each stage computes one, another travels back
            self._attempt, self._made = attempt, None
            self._changed.notify_all()
        self._ready.set()

    def _leave(self) -> None:
        """The present attempt is over."""
        with self._changed:
            attempt, self._attempt = self._attempt, None
            self._changed.notify_all()
        if attempt is not None:
            attempt.endpoint.close()

    def _end(self, error: BaseException) -> None:
        """The run is over, or a thread has failed: so are all requests."""
        with self._changed:
            first = self.ended is None
            self.ended = self.ended or (
                error if isinstance(error, FarflungError) else TrainingError(f"the server failed: {error}")
            )
            waiting, self._generations = list(self._generations.values()), {}
            self._changed.notify_all()
        for generation in waiting:
            generation.listen(Piece(error=str(self.ended)))
        self._ready.set()
        if first and not self._closing:
            self.on_end()

    # -- batches ------------------------------------------------------------------------------------------------------

    def _dispatch(self) -> None:
        """Send batches of new requests, on a thread of its own: a link whose window is full makes it wait."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self.ended is not None or self._closing or self._has_batch())
                if self.ended is not None or self._closing:
                    return
            self._send_batches()

    def _has_batch(self) -> bool:
        """Make the next batch (under the lock); none while the service is closed."""
        if self._attempt is not None and self._made is None and not self._closing:
            self._made = self._scheduler.next_batch()
        return self._attempt is not None and self._made is not None

    def _send_batches(self) -> None:
        """Send all batches that may be under way, one that was made before the service is closed, too."""
        while True:
            with self._changed:
                if not self._has_batch():
                    return
                attempt, batch, self._made = self._attempt, self._made, None
            if attempt is not None and batch is not None:
                attempt.send(batch)

    def _receive(self, peer: str, frame: Frame) -> None:
        """Take a frame of a worker (transport thread). The next batch leaves before the text of the tokens is made.

        Raises:
            WireError: see ``_take``. The worker gets the error, and the run ends.
        """
        message = decode(frame, Channel.DATA)
        if isinstance(message, ServedTokens):
            with self._taking:
                taken = self._take(peer, message)
                self._send_batches()
                self._forget([generation.sequence for generation, drawn in taken if generation.take(drawn)])

    def _take(self, peer: str, message: ServedTokens) -> list[tuple[Generation, TokenItem]]:
        """Return the requests that ``message`` has tokens of. One whose last token this is takes no part in the next batch.

        Raises:
            WireError: ``peer`` does not draw, the model has no such token, or the batch has other draws or was answered before.
        """
        with self._changed:
            attempt = self._attempt
            if attempt is None or message.run != attempt.name or peer not in attempt.devices:
                return []  # of an earlier attempt, or from somebody who has no part in this one
            if peer not in attempt.last:
                raise WireError(f"{peer} sent tokens, and it does not compute the last stage")
            tokens = [item.token for item in message.drawn]
            strange = max((*tokens, *(token for item in message.drawn for token, _ in item.likely)), default=0)
            if strange >= self.vocabulary:
                raise WireError(f"{peer} drew token {strange}: the model knows those from 0 to {self.vocabulary - 1}")
            try:
                taken = self._scheduler.take(message.number, tokens, monotonic())
            except ValueError as error:
                raise WireError(f"{peer} sent {error}") from None
            found = [(self._generations.get(sequence), sequence, message.drawn[index]) for sequence, index in taken]
            self._forget([sequence for generation, sequence, drawn in found if generation is None or generation.is_last(drawn)])
            if self._closing:  # ``close`` waits until no batch is under way
                self._changed.notify_all()
            return [(generation, drawn) for generation, _, drawn in found if generation is not None]

    def _forget(self, ended: Iterable[TokenSequence]) -> None:
        """The requests ``ended`` need no more tokens."""
        with self._changed:  # its lock is reentrant
            for sequence in ended:
                self._generations.pop(sequence, None)
                self._scheduler.remove(sequence)
