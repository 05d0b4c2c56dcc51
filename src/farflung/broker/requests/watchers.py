"""Watchers of runs: everything that happens in a run, as a stream of messages."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

from farflung.broker.live_run import LiveRun
from farflung.broker.records.run_folders import RunFolders
from farflung.broker.records.run_log import LogPosition
from farflung.broker.requests.permission import caller_of
from farflung.broker.run_table import RunTable
from farflung.messages.calls import Watch
from farflung.messages.remote_calls import serve_all
from farflung.messages.schema import Message
from farflung.messages.watching import JobInfo
from farflung.protocol.events import Event, RunFailed
from farflung.security import Caller
from farflung.thread_group import ThreadGroup
from farflung.transports.rpc.calls import Call
from farflung.transports.rpc.server import RpcServer

__all__ = ["Watchers"]


class Watchers:
    """``handle`` receives the event that the process which feeds a run has left."""

    def __init__(self, runs: RunTable, folders: RunFolders, handle: Callable[[Event], None]) -> None:
        self._runs, self._folders, self._handle = runs, folders, handle
        #: The threads "orphan-RUN", each for a watcher that left before the end of its run.
        self._threads = ThreadGroup()
        self._closed = False

    def register(self, server: RpcServer) -> None:
        """Serve the call."""
        serve_all(server, Watch, self.watch)

    def close(self) -> None:
        """End all streams, and join the threads."""
        with self._runs.changed:
            self._closed = True
            self._runs.wake()
        self._threads.join()

    def watch(self, call: Call, request: Watch) -> Iterator[Message]:
        """Yield everything that has happened in a run, then what happens, until it is over."""
        caller = caller_of(call)
        live = self._runs.live(request.run)
        self._folders.check(live.run, caller, "watch it")
        left = threading.Event()
        call.on_end(lambda: self._left(caller, live, left))
        yield JobInfo(name=live.job.name, steps=live.job.steps, workers=live.job.workers or 0)
        log = live.records.log
        position = LogPosition(records=min(request.records, log.records))
        live.submission.watched_by(caller.name)
        while not left.is_set():
            with self._runs.changed:
                while not (log.has_more(position) or live.result is not None or left.is_set() or self._closed):
                    self._runs.changed.wait()
                over = (live.result is not None or self._closed) and not log.has_more(position)
            if over:
                return
            fresh, position = log.read(position)
            yield from fresh

    def _left(self, caller: Caller, live: LiveRun, left: threading.Event) -> None:
        """On the thread of gRPC, which serves all calls and must not wait."""
        left.set()
        if live.result is None and not self._closed:  # else the stream is awake
            self._threads.spawn(f"orphan-{live.run}", self._part, caller, live)

    def _part(self, caller: Caller, live: LiveRun) -> None:
        """End the stream of a watcher that has left, and its run if the watcher feeds it."""
        with self._runs.changed:
            self._runs.wake()
            feeds = live.job.data.kind == "caller" and caller.name == live.submission.submitter
            orphan = feeds and live.result is None and not self._closed
        if orphan:
            cause = f"{live.submission.submitter}, the process that submitted it and has the data, is gone"
            self._handle(RunFailed(run=live.run, cause=cause, kind="ConnectionLost"))
