"""Checkpoints are copied to an object store while training goes on: a thread of its own, always the newest one of each run."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from farflung.checkpoint import CheckpointStore, ObjectCheckpoints
from farflung.errors import FarflungError
from farflung.job.spec import CheckpointSpec
from farflung.units import Bytes

__all__ = ["Mirror"]

_END_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class _Due:
    store: CheckpointStore
    step: int
    wanted: CheckpointSpec


class Mirror:
    """Copies what ``put`` is told to ``<url>/<run>``. A store that does not answer is told of, and the next one is tried."""

    def __init__(self, url: str, say: Callable[[str], None]) -> None:
        """Raises:
        InputError: the URL can't be opened.
        """
        ObjectCheckpoints(url)
        self._url, self._say = url, say
        self._changed = threading.Condition()
        self._due: dict[str, _Due] = {}
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="mirror", daemon=True)
        self._thread.start()

    def put(self, run: str, store: CheckpointStore, step: int, wanted: CheckpointSpec) -> None:
        """The checkpoint of ``step`` is whole; an older one of the run that is not copied yet need not be."""
        with self._changed:
            self._due[run] = _Due(store, step, wanted)
            self._changed.notify_all()

    def close(self) -> None:
        """Copy what is due, for a minute at most."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join(_END_SECONDS)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._due or self._closed)
                if not self._due:
                    return
                run = next(iter(self._due))
                due = self._due.pop(run)
            try:
                there = ObjectCheckpoints(self._url, run)
                sent = there.push(due.store, due.step)
                there.prune(due.wanted.keep, due.wanted.every, due.wanted.keep_every)
                self._say(f"run {run}: the checkpoint after step {due.step} is at {there.url} ({Bytes(sent)} sent)")
            except FarflungError as error:
                self._say(f"run {run}: warning: the checkpoint after step {due.step} is not copied: {error}")
            except Exception as error:  # noqa: BLE001 - a defect in a store's library must not end the copies of other runs
                self._say(
                    f"run {run}: warning: the checkpoint after step {due.step} is not copied: {type(error).__name__}: {error}"
                )
