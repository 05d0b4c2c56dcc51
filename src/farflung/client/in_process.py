"""Workers as threads of this process: the same executors, schedules and frames, with the in-memory transport."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from farflung.engines.base import Array, Engine
from farflung.errors import TrainingError
from farflung.messages.schema import Channel
from farflung.messages.wire_form import decode
from farflung.step.executor import Executor
from farflung.step.run_setup import Committed, Phase, RunHooks, RunSetup
from farflung.telemetry.trace import Span
from farflung.thread_group import ThreadGroup
from farflung.transports.base import Endpoint
from farflung.wire.frames import Frame

__all__ = ["LocalHooks", "LocalRun"]

_END_SECONDS = 10.0

#: Makes a device's endpoint; the handler it is given takes each frame that arrives.
MakeEndpoint = Callable[[str, Callable[[str, Frame], None]], Endpoint]


class LocalRun:
    """All workers of a run inside this process.

    ``setups``, ``hooks``: by device name. ``run`` returns when every worker has finished; the first failure ends all.
    """

    def __init__(
        self,
        setups: Mapping[str, RunSetup],
        hooks: Mapping[str, RunHooks],
        engine: Engine,
        make_endpoint: MakeEndpoint,
        threads: int,
        *,
        keep_gradients: bool = False,
    ) -> None:
        """``keep_gradients``: executors store the gradients of the last step (``Executor.gradients``)."""
        self._threads = threads
        self._engine = engine
        self._endpoints: list[Endpoint] = []
        self.executors: dict[str, Executor] = {}
        self._failed: BaseException | None = None
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._working = len(setups)
        #: All executors begin to train when the last one is prepared.
        self._prepared = threading.Barrier(len(setups))
        self._computing = ThreadGroup()
        for device, setup in setups.items():
            endpoint = make_endpoint(device, self._receiver(device))
            self._endpoints.append(endpoint)
            self.executors[device] = Executor(setup, endpoint, hooks[device], engine, keep_gradients=keep_gradients)
        for endpoint in self._endpoints:
            for device, other in zip(setups, self._endpoints, strict=True):
                endpoint.connect(device, other.address)

    def run(self, on_interrupt: Callable[[], None] | None = None) -> None:
        """Prepare and run all workers.

        ``on_interrupt`` is called at the first Ctrl-C and must make the run end soon; a second Ctrl-C ends it at once. Without it
        the first one does.

        Raises:
            FarflungError: the first error of any worker.
            KeyboardInterrupt: the run was ended at once.
        """
        try:
            for device, executor in self.executors.items():
                self._computing.spawn(f"compute-{device}", self._work, executor, on_error=self._fail)
            self._wait(on_interrupt)
        except KeyboardInterrupt:
            self._fail(TrainingError("interrupted"))
            self._over.wait(_END_SECONDS)
            raise
        finally:
            self._close()
            self._computing.join(_END_SECONDS)
        if self._failed is not None:
            raise self._failed

    def _wait(self, on_interrupt: Callable[[], None] | None) -> None:
        try:
            self._over.wait()  # not Thread.join: up to Python 3.12 an interrupted join takes a running thread for a stopped one
        except KeyboardInterrupt:
            if on_interrupt is None:
                raise
            on_interrupt()
            self._over.wait()

    def wake(self) -> None:
        """Make executors that wait ask again what they wait for."""
        for executor in self.executors.values():
            executor.inbox.poke()

    def states(self) -> dict[str, Array]:
        """Parameters and persistent buffers of the whole model, by name."""
        merged: dict[str, Array] = {}
        for executor in self.executors.values():
            for runner in executor.stages.bases.values():
                for name, value in runner.states().items():
                    merged.setdefault(name, value)
        return merged

    def _receiver(self, device: str) -> Callable[[str, Frame], None]:
        def receive(peer: str, frame: Frame) -> None:
            self.executors[device].receive(peer, decode(frame, Channel.DATA))  # looked up late: endpoints exist before executors

        return receive

    def _work(self, executor: Executor) -> None:
        """One worker's part (compute thread)."""
        try:
            self._engine.set_threads(self._threads)
            executor.prepare()
            with suppress(threading.BrokenBarrierError):  # another worker has failed
                self._prepared.wait()
                executor.run()
        finally:
            with self._lock:
                self._working -= 1
                if not self._working:
                    self._over.set()

    def _fail(self, error: BaseException) -> None:
        """The first failure of any worker ends all of them."""
        self._prepared.abort()
        with self._lock:
            self._failed = self._failed or error
        for executor in self.executors.values():
            executor.abort(self._failed)

    def _close(self) -> None:
        for executor in self.executors.values():
            executor.close()
        for endpoint in self._endpoints:
            endpoint.close()


class LocalHooks:
    """Hooks for workers of this process: they start from initial states, nothing stops them, and they write nothing, because
    states are read from the executors."""

    def first_optimizer(self, parameters: Sequence[str]) -> Mapping[str, Array]:
        """None."""
        return {}

    def stop_requested(self) -> bool:
        """Never."""
        return False

    def ends_after(self, phase: Phase, step: int) -> bool | None:
        """Never."""
        return False

    def leave_requested(self) -> bool:
        """Never."""
        return False

    def save_requested(self) -> bool:
        """Never: no worker of this process can be lost alone."""
        return False

    def on_checkpoint(self, step: int, committed: Committed, states: Mapping[str, Array], optimizer: Mapping[str, Array]) -> None:
        """Store nothing."""

    def on_copy(self, step: int, device: str, states: Mapping[str, Array], optimizer: Mapping[str, Array]) -> None:
        """Compare nothing."""

    def on_copied(self, step: int, hashes: Mapping[str, str]) -> None:
        """Compare nothing."""

    def on_text(self, tokens: Sequence[int]) -> None:
        """Drop the text."""

    def on_trace(self, spans: Sequence[Span], lost: int) -> None:
        """Drop the spans."""

    def on_note(self, text: str, *, detail: bool = False) -> None:
        """Drop the line."""

    def on_helper_gone(self, text: str) -> None:
        """There are no helpers."""
