"""Clients submit runs, and resume runs that ended."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass

from farflung.broker.live_run import LiveRun, new_run
from farflung.broker.quotas import TicketQuotas
from farflung.broker.records.bundle_file import store_bundle, stored_bytes
from farflung.broker.records.checkpoint_room import checkpoint_room
from farflung.broker.records.run_folders import RunFolders
from farflung.broker.requests.continuations import Continuations
from farflung.broker.requests.document_check import check_documents
from farflung.broker.requests.permission import client_of
from farflung.broker.run_table import RunTable
from farflung.errors import FarflungError, InputError
from farflung.job import JobSpec
from farflung.messages.calls import Checking, Resumable, ResumableAnswer, Resume, Submit, Submitted
from farflung.messages.remote_calls import serve, serve_all
from farflung.messages.schema import Message
from farflung.messages.submission import Bundle
from farflung.messages.watching import Note
from farflung.security import Caller
from farflung.transports.rpc.calls import Call
from farflung.transports.rpc.server import RpcServer

__all__ = ["JobCheck", "Submissions"]

#: Raises ``InputError`` where a job may not be submitted by a caller.
JobCheck = Callable[[JobSpec, Caller], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Submissions:
    """``begin`` adds a run: it takes the run and a function that writes its files, and returns the run's state.

    ``check`` is called with each job before the run exists.
    """

    runs: RunTable
    folders: RunFolders
    begin: Callable[[LiveRun, Callable[[], None]], str]
    quotas: TicketQuotas
    check: JobCheck

    def register(self, server: RpcServer) -> None:
        """Serve the calls. They are streams where a large checkpoint is checked before the answer."""
        serve_all(server, Submit, self.submit)
        serve(server, Resumable, self.resumable)
        serve_all(server, Resume, self.resume)

    def submit(self, call: Call, request: Submit) -> Iterator[Message]:
        """Add a run."""
        caller = client_of(call, "submit jobs")
        self._check_quotas(caller)
        check_documents(request, self.folders.ticket_of(caller.name))
        yield from self._add(caller, Bundle.of(request))

    def resume(self, call: Call, request: Resume) -> Iterator[Message]:
        """Add a run that continues an earlier one; the answers are those of ``submit``."""
        caller, steps = client_of(call, "resume runs"), request.steps or None
        self._check_quotas(caller)
        yield from self._add(caller, self._continuations.bundle(request.source, caller, request.run, steps))

    def resumable(self, call: Call, request: Resumable) -> ResumableAnswer:
        """Return where a run that continues an earlier one would begin."""
        return self._continuations.describe(request.source, client_of(call, "resume runs"))

    def _check_quotas(self, caller: Caller) -> None:
        """See that ``caller`` may submit one more run.

        Raises:
            InputError: the members of its ticket have too many runs in the queue, or submit too often.
        """
        ticket = self.folders.ticket_of(caller.name)
        with self.runs.changed:
            waiting = [run.run for run in self.runs.machine.waiting()]
        self.quotas.submit(ticket, sum(self.folders.ticket(run) == ticket for run in waiting))

    @property
    def _continuations(self) -> Continuations:
        return Continuations(self.runs, self.folders)

    def _add(self, caller: Caller, bundle: Bundle) -> Iterator[Message]:
        self.check(bundle.job, caller)
        root = self.folders.path(bundle.run)
        if (root / "job.json").exists():
            raise InputError(f"run {bundle.run!r} exists already; submit again for a new name")
        self.folders.claim(bundle.run, caller)
        live = new_run(bundle, root, caller.name)

        def write() -> None:
            packed = bundle.to_bytes()
            size = stored_bytes(bundle, packed)
            try:
                self.folders.check_documents(bundle.run, size)
                warning = self.folders.check_checkpoints(bundle.run, size, checkpoint_room(bundle))
            except InputError:
                self.folders.discard(bundle.run)
                raise
            if warning:
                live.records.log.mark(Note(text=warning))
            self._adopt_checkpoint(live, bundle, caller)
            live.store.write_bundle(bundle)
            store_bundle(root, packed)

        if self._exists(live.job.checkpoint.resume, caller):  # else ``write`` raises the error
            yield Checking(source=live.job.checkpoint.resume)
        state = self.begin(live, write)
        with self.runs.changed:
            machine = self.runs.machine
            run = machine.runs[bundle.run]
            free = [run.plans_for(one) for one in machine.members.values() if one.run is None and machine.may_take(run.run, one)]
        idle = sum(free)
        yield Submitted(
            run=bundle.run, state=state, folder=str(root), needs=bundle.job.workers or 1, idle=idle, helpers=len(free) - idle
        )

    def _exists(self, source: str, caller: Caller) -> bool:
        """Return whether there is a run or folder called ``source`` that ``caller`` may resume."""
        with suppress(FarflungError):
            return bool(source) and self.folders.source(source, caller).is_dir()
        return False

    def _adopt_checkpoint(self, live: LiveRun, bundle: Bundle, caller: Caller) -> None:
        """Copy the checkpoint that the job resumes: of a run, or from a folder on this machine."""
        source = live.job.checkpoint.resume
        if not source:
            return
        try:
            manifest = live.store.adopt(self.folders.source(source, caller), bundle)
        except FarflungError as error:
            raise type(error)(f"checkpoint.resume = {source!r}: {error}") from None
        live.begin_at(manifest.step)
