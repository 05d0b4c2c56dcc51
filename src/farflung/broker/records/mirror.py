"""Copies of checkpoints in an object store, made while training continues: always the newest checkpoint of each run."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from farflung.checkpoint import CheckpointStore, ObjectCheckpoints
from farflung.errors import CheckpointError, FarflungError
from farflung.foreign_code import translated
from farflung.job.spec import CheckpointSpec
from farflung.thread_group import ThreadGroup
from farflung.units import Bytes

__all__ = ["Mirror"]

#: Seconds that ``close`` waits.
_END_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class _Due:
    store: CheckpointStore
    step: int
    wanted: CheckpointSpec


class Mirror:
    """Copies the checkpoints in ``put`` to ``<url>/<run>`` on a thread "mirror". It reports a copy that fails, and continues."""

    def __init__(self, url: str, say: Callable[[str], None]) -> None:
        """Raises:
        InputError: the URL can't be opened.
        """
        ObjectCheckpoints(url)
        self._url, self._say = url, say
        self._changed = threading.Condition()
        self._due: dict[str, _Due] = {}
        self._closed = False
        self._threads = ThreadGroup()
        self._threads.spawn("mirror", self._run)

    def put(self, run: str, store: CheckpointStore, step: int, wanted: CheckpointSpec) -> None:
        """The checkpoint of ``step`` is complete. It replaces an older one of the run that was not copied yet."""
        with self._changed:
            self._due[run] = _Due(store, step, wanted)
            self._changed.notify_all()

    def fetch(self, run: str, store: CheckpointStore) -> None:
        """Copy the newest checkpoint of ``run`` from the object store, unless ``store`` has it or a newer one.

        A checkpoint that cannot be copied is reported: the run continues without it, if its workers retain its state.
        """
        try:
            with translated(_failure):
                copies = ObjectCheckpoints(self._url, run)
                stored = copies.steps()
                if stored and stored[-1] > max(store.steps(), default=-1):
                    step = copies.pull(store).step
                    self._say(f"run {run}: the checkpoint after step {step} is from {copies.url}")
        except FarflungError as error:
            self._say(f"run {run}: warning: no checkpoint is copied from the object store: {error}")

    def close(self) -> None:
        """Copy what is due, for a minute at most, and join the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._threads.join(_END_SECONDS)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._due or self._closed)
                if not self._due:
                    return
                run = next(iter(self._due))
                due = self._due.pop(run)
            try:
                with translated(_failure):  # a store's library may raise anything
                    copies = ObjectCheckpoints(self._url, run)
                    sent = copies.push(due.store, due.step)
                    copies.prune(due.wanted.keep, due.wanted.every, due.wanted.keep_every)
                self._say(f"run {run}: the checkpoint after step {due.step} is at {copies.url} ({Bytes(sent)} sent)")
            except FarflungError as error:
                self._say(f"run {run}: warning: the checkpoint after step {due.step} is not copied: {error}")


def _failure(error: Exception) -> Exception:
    return error if isinstance(error, FarflungError) else CheckpointError(f"{type(error).__name__}: {error}")
