"""Feeds a run from the process that submitted it, if the job's data are in that process."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from typing import Literal

from farflung.client.connection import Client
from farflung.client.planned_run import PlannedRun
from farflung.engines.base import Array
from farflung.errors import ConnectionLost, FarflungError, InputError, TrainingError
from farflung.messages.arrays import encode_array
from farflung.messages.data import Batch, BatchKey
from farflung.messages.submission import Bundle
from farflung.messages.wire_form import encode
from farflung.protocol.broker import RunState
from farflung.step.run_setup import Phase, RunSetup, attempt_name, data_key
from farflung.thread_group import ThreadGroup
from farflung.transports.tcp.endpoint import TcpEndpoint

__all__ = ["BatchSource", "EvaluationSource", "Feeder"]

#: (step, micro-batch) -> every placeholder's array, by name.
BatchSource = Callable[[int, int], Mapping[str, Array]]
#: Index of an evaluation batch -> every placeholder's array, by name.
EvaluationSource = Callable[[int], Mapping[str, Array]]

#: If the broker still runs the plan after ``_PATIENCE`` polls, ``_AGAIN`` seconds apart, only this process has lost a worker.
_PATIENCE, _AGAIN = 15, 1.0
#: How long the caller's batch function may take when the run ends, in seconds.
_END_SECONDS = 30.0


class _Unreached(Exception):
    """What was sent to ``device`` did not arrive, because of ``cause``."""

    def __init__(self, device: str, cause: FarflungError) -> None:
        super().__init__(device)
        self.device, self.cause = device, cause


class _Readers:
    """Which workers read which placeholders under a plan."""

    def __init__(self, setup: RunSetup) -> None:
        #: micro-batch -> device -> the placeholders that its stages read
        self.training: list[dict[str, list[str]]] = [{} for _ in range(setup.job.micro_batches)]
        for piece in setup.subgraphs:
            for readers, device in zip(self.training, setup.places[piece.stage], strict=True):
                readers.setdefault(device, []).extend(piece.placeholders)
        #: The same for each batch of an evaluation.
        self.evaluation: dict[str, list[str]] = {}
        for stage, piece in setup.side_cut(setup.eval_graph) if setup.eval_graph is not None else ():
            self.evaluation.setdefault(setup.primary(stage), []).extend(piece.placeholders)


class _Sender:
    """Sends arrays to the workers of a plan. The feeder's thread calls ``send`` and ``finish``, any thread ``close``."""

    def __init__(self, run: str, planned: PlannedRun, endpoint: TcpEndpoint) -> None:
        self._run, self._endpoint = run, endpoint
        #: What has been sent and has yet to arrive: worker, and when it arrives.
        self._pending: deque[tuple[str, Future[None]]] = deque()
        for device, address in planned.addresses.items():
            endpoint.connect(device, address)
            relays = planned.relays.get(device, ())
            for relay, place in relays:
                endpoint.connect(relay, place)
            endpoint.relay_through(device, [relay for relay, _ in relays])

    def send(
        self,
        use: Literal["data", "eval"],
        place: tuple[int, int],
        readers: Mapping[str, list[str]],
        arrays: Mapping[str, Array],
    ) -> None:
        """Send ``arrays`` of a micro-batch at ``place`` (step, micro-batch) to the workers that read them.

        Raises:
            _Unreached: a worker is lost.
        """
        step, micro_batch = place
        for device, names in readers.items():
            for name in dict.fromkeys(names):
                key = BatchKey(use=use, step=step, micro_batch=micro_batch, name=name)
                packed = encode_array(arrays[name], None)
                batch = Batch(run=self._run, key=key, step=step, array=packed.array, sections=packed.sections)
                try:
                    self._pending.append((device, self._endpoint.post(device, encode(batch))))
                except FarflungError as error:
                    raise _Unreached(device, error) from None
        while self._pending and self._pending[0][1].done():
            self._arrived(*self._pending.popleft())

    def finish(self) -> None:
        """Wait until everything has arrived.

        Raises:
            _Unreached: a worker is lost.
        """
        while self._pending:
            self._arrived(*self._pending.popleft())

    def close(self) -> None:
        """End all connections."""
        self._endpoint.close()

    @staticmethod
    def _arrived(device: str, future: Future[None]) -> None:
        try:
            future.result()
        except FarflungError as error:
            raise _Unreached(device, error) from None


class Feeder:
    """Sends, under one plan, each micro-batch's arrays to the workers whose stages read them, a step ahead of the training.

    The workers' back-pressure paces it: they take data of the next step only, and a few batches of an evaluation.

    ``error`` is what ended it early: the caller's function, or a worker that the broker reaches and this process does not.
    Either stops the run.
    """

    def __init__(
        self,
        bundle: Bundle,
        planned: PlannedRun,
        client: Client,
        batches: BatchSource,
        evaluation: EvaluationSource | None = None,
    ) -> None:
        """``evaluation``: where the job evaluates, its batches."""
        self._bundle, self._planned, self._client = bundle, planned, client
        self._batches, self._evaluation = batches, evaluation
        self._over = threading.Event()
        self._threads = ThreadGroup()
        self.error: BaseException | None = None
        self._setup = RunSetup(
            run=bundle.run,
            device="",  # the caller runs no stage
            job=bundle.job,
            plan=planned.plan,
            graphs=bundle.graphs,
            eval_graph=bundle.eval_graph,
        )
        self._readers = _Readers(self._setup)
        self._sender = _Sender(attempt_name(bundle.run, planned.attempt), planned, client.endpoint())

    def start(self) -> None:
        """Feed all steps, on a thread of its own."""
        self._threads.spawn("feeder", self._feed, on_error=self._failed)

    def end(self) -> None:
        """Send nothing more, and wait for the thread: a batch function of the caller may take its time."""
        self._over.set()
        self._sender.close()
        self._threads.join(_END_SECONDS)

    def _feed(self) -> None:
        first, job = self._planned.first_step, self._bundle.job
        if self._planned.recovered and self._setup.evaluates(first):
            self._feed_evaluation(first)  # the loss may have come before the evaluation was whole
        for step in range(first, job.steps):
            for micro_batch in range(job.micro_batches):
                if self._over.is_set():
                    return
                readers, arrays = self._readers.training[micro_batch], self._batches(step, micro_batch)
                self._sender.send(data_key(Phase.TRAIN), (step, micro_batch), readers, arrays)
            if self._setup.evaluates(step + 1) or (step + 1 == job.steps and job.evaluate.batches):
                self._feed_evaluation(step + 1)
        self._sender.finish()

    def _feed_evaluation(self, steps: int) -> None:
        """The batches of the evaluation after ``steps`` steps."""
        if self._evaluation is None:
            return
        for index in range(self._bundle.job.evaluate.batches):
            if self._over.is_set():
                return
            self._sender.send(data_key(Phase.EVAL), (steps, index), self._readers.evaluation, self._evaluation(index))

    def _failed(self, error: BaseException) -> None:
        """The thread has ended early (on that thread)."""
        if not isinstance(error, _Unreached):
            self._stop_run(error)  # the caller's own function failed: the error is raised where the caller waits
            return
        if self._is_local():
            where = f"{error.device} at {self._planned.addresses[error.device]}"
            text = f"this process cannot send its data to {where}, where the run still waits for it: {error.cause}"
            remedy = "open that address to this machine, or submit a job whose workers read the data themselves (data.kind)"
            self._stop_run(TrainingError(f"{text}; {remedy}"))

    def _is_local(self) -> bool:
        """Whether only this process has lost the worker: wait for the broker to say that the worker is lost, or the run over."""
        waited = 0
        while waited < _PATIENCE:
            if self._over.wait(_AGAIN):
                return False
            waited = waited + 1 if self._continues() else 0
        return not self._over.is_set()

    def _continues(self) -> bool:
        """Whether the broker still runs this plan (False while the broker is away)."""
        with suppress(ConnectionLost):
            runs = self._client.status()["runs"]
            assert isinstance(runs, list)
            mine = [one for one in runs if one["run"] == self._bundle.run]
            return any(one["state"] == RunState.RUNNING and one["recoveries"] + 1 == self._planned.attempt for one in mine)
        return False

    def _stop_run(self, error: BaseException) -> None:
        self.error = error
        with suppress(ConnectionLost, InputError):  # the run is over already, or who watches it notices the lost broker
            self._client.stop(self._bundle.run, now=True)
