"""Feeding a run from the process that submitted it, where that process is the home of the data."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress

from farflung.client.connection import Client
from farflung.client.planned_run import PlannedRun
from farflung.engines.base import Array
from farflung.errors import ConnectionLost, FarflungError, InputError, TrainingError
from farflung.messages.arrays import encode_array
from farflung.messages.submission import Bundle
from farflung.protocol.broker import RunState
from farflung.step.run_setup import Phase, RunSetup, attempt_name, data_key
from farflung.wire.frames import Frame

__all__ = ["BatchSource", "EvaluationSource", "Feeder"]

#: (step, micro-batch) -> every placeholder's array, by name.
BatchSource = Callable[[int, int], Mapping[str, Array]]
#: Index of an evaluation batch -> every placeholder's array, by name.
EvaluationSource = Callable[[int], Mapping[str, Array]]

#: So many seconds the broker may take to notice that a worker is gone: if it still counts on it then, only this process lost it.
_PATIENCE, _AGAIN = 15, 1.0


class _Unreached(Exception):
    """What was sent to ``device`` did not arrive, because of ``cause``."""

    def __init__(self, device: str, cause: FarflungError) -> None:
        super().__init__(device)
        self.device, self.cause = device, cause


class Feeder:
    """Sends, under one plan, each micro-batch's arrays to the workers whose stages read them, a step ahead of the training.

    The workers' back-pressure paces it: they take data of the next step only, and a few batches of an evaluation.

    ``error`` holds what ended it early: the caller's function, or a worker that the broker reaches and this process does not.
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
        self._bundle, self._planned, self._client, self._batches = bundle, planned, client, batches
        self._evaluation = evaluation
        self._run = attempt_name(bundle.run, planned.attempt)
        self._over = threading.Event()
        self._owed: deque[tuple[str, Future[None]]] = deque()
        self._thread: threading.Thread | None = None
        self.error: BaseException | None = None
        setup = self._setup = RunSetup(
            run=bundle.run, device="", job=bundle.job, plan=planned.plan, graphs=bundle.graphs
        )  # device "": the caller runs no stage
        #: micro-batch -> device -> the placeholders that its stages read
        self._readers: list[dict[str, list[str]]] = [{} for _ in range(bundle.job.micro_batches)]
        for piece in setup.subgraphs:
            for readers, device in zip(self._readers, setup.places[piece.stage], strict=True):
                readers.setdefault(device, []).extend(piece.placeholders)
        #: The same for each batch of an evaluation.
        self._evaluators: dict[str, list[str]] = {}
        for stage, piece in setup.side_cut(bundle.eval_graph) if bundle.eval_graph is not None else ():
            self._evaluators.setdefault(setup.primary(stage), []).extend(piece.placeholders)
        self._endpoint = client.endpoint()
        for device, address in planned.addresses.items():
            self._endpoint.connect(device, address)
            relays = planned.relays.get(device, ())
            for relay, place in relays:
                self._endpoint.connect(relay, place)
            self._endpoint.relay_through(device, [relay for relay, _ in relays])

    def start(self) -> None:
        """Feed all steps, on a thread of its own."""
        self._thread = threading.Thread(target=self._feed, name="feeder", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Send nothing more."""
        self._over.set()
        self._endpoint.close()
        if self._thread is not None:
            self._thread.join(timeout=30)

    def _feed(self) -> None:
        try:
            self._send_all()
        except _Unreached as error:
            self._unreached(error)
        except Exception as error:  # noqa: BLE001 - the caller's own function failed: it is raised where the caller waits
            self._fail(error)

    def _send_all(self) -> None:
        first, job = self._planned.first_step, self._bundle.job
        if self._planned.recovered and self._setup.evaluates(first):
            self._send_evaluation(first)  # the loss may have come before the evaluation was whole
        for step in range(first, job.steps):
            for micro_batch in range(job.micro_batches):
                if self._over.is_set():
                    return
                self._send(
                    data_key(Phase.TRAIN), (step, micro_batch), self._readers[micro_batch], self._batches(step, micro_batch)
                )
            if self._setup.evaluates(step + 1) or (step + 1 == job.steps and job.evaluate.batches):
                self._send_evaluation(step + 1)
        while self._owed:
            self._arrived(*self._owed.popleft())

    def _send_evaluation(self, steps: int) -> None:
        """The batches of the evaluation after ``steps`` steps."""
        if self._evaluation is None:
            return
        for index in range(self._bundle.job.evaluate.batches):
            if self._over.is_set():
                return
            self._send(data_key(Phase.EVAL), (steps, index), self._evaluators, self._evaluation(index))

    def _send(self, kind: str, place: tuple[int, int], readers: Mapping[str, list[str]], arrays: Mapping[str, Array]) -> None:
        """Send ``arrays`` under the key (``kind``, step, micro-batch, name) to the workers that read them."""
        for device, names in readers.items():
            for name in dict.fromkeys(names):
                header, sections = encode_array(arrays[name], None)
                frame = Frame("data", {"run": self._run, "key": [kind, *place, name], "step": place[0]} | header, sections)
                try:
                    self._owed.append((device, self._endpoint.post(device, frame)))
                except FarflungError as error:
                    raise _Unreached(device, error) from None
        while self._owed and self._owed[0][1].done():
            self._arrived(*self._owed.popleft())

    @staticmethod
    def _arrived(device: str, future: Future[None]) -> None:
        try:
            future.result()
        except FarflungError as error:
            raise _Unreached(device, error) from None

    def _unreached(self, lost: _Unreached) -> None:
        """Wait for what the broker says: the worker is gone, or the run over. If nothing, the fault is between here and there."""
        waited = 0 if isinstance(lost.cause, ConnectionLost) else _PATIENCE
        while waited < _PATIENCE:
            if self._over.wait(_AGAIN):
                return
            waited = waited + 1 if self._goes_on() else 0
        if not self._over.is_set():
            where = f"{lost.device} at {self._planned.addresses[lost.device]}"
            text = f"this process cannot send its data to {where}, where the run still waits for it: {lost.cause}"
            remedy = "open that address to this machine, or submit a job whose workers read the data themselves (data.kind)"
            self._fail(TrainingError(f"{text}; {remedy}"))

    def _goes_on(self) -> bool:
        """Whether the broker still counts on this plan (not while it is away)."""
        with suppress(ConnectionLost):
            runs = self._client.status()["runs"]
            assert isinstance(runs, list)
            mine = [one for one in runs if one["run"] == self._bundle.run]
            return any(one["state"] == RunState.RUNNING and one["recoveries"] + 1 == self._planned.attempt for one in mine)
        return False

    def _fail(self, error: BaseException) -> None:
        self.error = error
        with suppress(ConnectionLost, InputError):  # then whoever watches the run hears it, too; or it is over already
            self._client.stop(self._bundle.run, now=True)
