"""Weights and checkpoint shards that are uploaded, and states that workers and owners download."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from farflung.broker.live_run import LiveRun
from farflung.broker.notices import Notices
from farflung.broker.quotas import TicketQuotas
from farflung.broker.records.checkpoint_room import checkpoint_room
from farflung.broker.records.mirror import Mirror
from farflung.broker.records.run_folders import RunFolders
from farflung.broker.records.run_store import RunStore
from farflung.broker.requests.permission import caller_of, client_of
from farflung.broker.run_table import RunTable
from farflung.checkpoint import ModelFiles
from farflung.errors import CheckpointError, DiskFull, InputError, SecurityError, WireError
from farflung.messages.array_stream import tensor_pieces
from farflung.messages.calls import Export, Exported, ShardUpload, StatesRequest, Uploaded, UploadEnd, UploadPiece, WeightsUpload
from farflung.messages.exports import exported
from farflung.messages.remote_calls import serve, serve_all
from farflung.messages.schema import Channel, Message
from farflung.messages.watching import CheckpointWritten
from farflung.messages.wire_form import decode, encode
from farflung.plan.model import Plan
from farflung.protocol.events import Event, MemberLied, RunStalled
from farflung.step.run_setup import Committed
from farflung.step.sync.replica_slots import wanted_by
from farflung.transports.rpc.calls import Call
from farflung.transports.rpc.server import RpcServer
from farflung.wire.frames import Frame

__all__ = ["Transfers"]

#: How long a share waits for its hash, in seconds: the session may wait for the reports of others.
_HASH_SECONDS = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfers:
    """``mirror`` copies checkpoints to an object store (None: nobody wants that). ``handle`` receives events for the machine."""

    runs: RunTable
    folders: RunFolders
    quotas: TicketQuotas
    notices: Notices
    mirror: Mirror | None
    handle: Callable[[Event], None]

    def register(self, server: RpcServer) -> None:
        """Serve the calls."""
        server.session("upload", self.upload)
        serve_all(server, StatesRequest, self.states)
        serve(server, Export, self.export)

    def export(self, call: Call, request: Export) -> Exported:
        """Return what belongs to the weights of a run that is over.

        Raises:
            InputError: the run still trains, or has written no checkpoint.
        """
        live = self.runs.live(request.run)
        self.folders.check(live.run, client_of(call, "export a run"), "fetch its weights")
        manifest = live.store.checkpoints.latest()
        if live.result is None or manifest is None:
            cause = (
                "still trains: wait until it is over"
                if live.result is None
                else "has no checkpoint: it ended before the first one"
            )
            raise InputError(f"run {live.run!r} {cause}")
        return exported(manifest, ModelFiles(live.store.root).read())

    def upload(self, call: Call, frames: Iterator[Frame]) -> Iterator[Frame]:
        """Store a checkpoint's shard from a worker, or first weights from a submitter."""
        messages = (decode(frame, Channel.UPLOADS) for frame in frames)
        match next(messages, None):
            case WeightsUpload(run=run):
                self._weights(call, run, messages)
            case ShardUpload() as head:
                self._shard(call, head, messages)
            case _:
                raise WireError("an upload must begin with weights or shard")
        yield encode(Uploaded())

    def _weights(self, call: Call, run: str, messages: Iterator[Message]) -> None:
        caller = client_of(call, "send weights")
        if (self.folders.path(run) / "job.json").exists():
            raise InputError(f"run {run!r} exists already; its weights can't be sent again")
        self.quotas.send(self.folders.ticket_of(caller.name))  # each name gets a folder
        RunStore(self.folders.claim(run, caller)).write_weights(self.folders.counted(run, _pieces(messages)))

    def _shard(self, call: Call, head: ShardUpload, messages: Iterator[Message]) -> None:
        name, run = caller_of(call).name, head.run
        if not self.runs.serves(name, run):
            raise CheckpointError(f"{name!r} does not work on run {run!r} (any more); its share of a checkpoint is not kept")
        live = self.runs.live(run)
        step, attempt, first, last = head.step, head.attempt, live.attempt.first_step, live.job.steps
        if not (first <= step <= last and head.committed <= step):
            raise WireError(
                f"a checkpoint of run {run!r} is of a step from {first} to {last}, "
                f"got step {step} with {head.committed} committed"
            )
        bundle, planned = live.submission.bundle, live.planned
        if bundle is None or planned is None:
            raise CheckpointError(f"run {run!r} is over: no checkpoint is kept any more")
        committed = Committed(steps=head.committed, rested=head.rested, left_out=head.left_out or 0)
        if attempt == live.attempt.number:
            try:
                pieces = self.folders.counted(run, _pieces(messages), checkpoint_room(bundle))
                stored = live.store.add_shard(step, name, pieces, committed, attempt)
            except (DiskFull, InputError):  # a full disk, or a quota
                live.store.give_up(step, name, attempt)
                raise
            self._check_hash(call, live, head, stored)
        with live.files:
            if attempt != live.store.attempt:
                raise CheckpointError(f"run {run!r} was planned again meanwhile; the share of its older plan is not kept")
            whole = live.store.has_shards(step, planned.plan)
        if not (whole and self._replicas_agree(live, head, planned.plan)):  # without the lock: members may be judged
            return
        with live.files:
            complete = attempt == live.store.attempt and live.store.complete(step, bundle, planned.plan)
        if complete:
            self.notices.watchers(live, CheckpointWritten(step=step))
            if self.mirror is not None:
                self.mirror.put(run, live.store.checkpoints, step, live.job.checkpoint)

    def _check_hash(self, call: Call, live: LiveRun, head: ShardUpload, stored: str) -> None:
        """See that the bytes of a share are what its worker computed; the hash comes in the worker's session.

        The wait ends with the call, so that a closing broker need not wait, and with the attempt, so that the worker is free.

        Raises:
            CheckpointError: they are not, or no hash has come.
        """
        name, hashes = caller_of(call).name, live.store.hashes
        call.on_end(hashes.poke)
        own = hashes.own((head.attempt, head.step), name, _HASH_SECONDS, lambda: not call.active)
        if own == stored:
            return
        live.store.give_up(head.step, name, head.attempt)
        if own:
            cause = f"its share of the checkpoint of step {head.step} is not what it has hashed"
            self.handle(MemberLied(run=live.run, name=name, cause=cause))
        raise CheckpointError(f"the share of {name} of the checkpoint of step {head.step} has no hash that fits: it is not kept")

    def _replicas_agree(self, live: LiveRun, head: ShardUpload, plan: Plan) -> bool:
        """Compare the hashes of replicas; whoever is outvoted is left out of the run. Return whether all agree."""
        with self.runs.changed:
            offers = {name: self.runs.machine.members[name].offer for name in plan.devices if name in self.runs.machine.members}
        alike = {name: (offer.kind, offer.description, sorted(offer.versions.items())) for name, offer in offers.items()}
        agree = True
        for device in dict.fromkeys(stage.devices[0] for stage in plan.stages):
            wrong, disputed = live.store.hashes.liars((head.attempt, head.step), device, alike)
            agree = agree and not (wrong or disputed)
            for name in wrong:
                cause = f"its states after step {head.step} differ from those of the other replicas"
                self.handle(MemberLied(run=live.run, name=name, cause=cause))
            if disputed:
                cause = f"the states of {' and '.join(disputed)} after step {head.step} differ, although they must be equal"
                self.handle(RunStalled(run=live.run, attempt=head.attempt, cause=cause, suspects=tuple(disputed)))
        return agree

    def states(self, call: Call, request: StatesRequest) -> Iterator[Message]:
        """Yield tensors of a run by name: from its newest checkpoint, its optimizer, or the weights that were sent with it."""
        live, caller = self.runs.live(request.run), caller_of(call)
        if caller.role != "worker":
            self.folders.check(live.run, caller, "fetch its weights")
        elif not self.runs.serves(caller.name, live.run):
            raise SecurityError(f"{caller.name!r} does not work on run {live.run!r} and may not fetch its weights")
        names, source = tuple(dict.fromkeys(request.names)), request.source
        if source == "weights":
            yield from tensor_pieces(live.store.sent_states(names))
        elif source in ("checkpoint", "optimizer"):
            wanted = wanted_by(None if live.planned is None else live.planned.plan, caller.name)
            yield from tensor_pieces(live.store.checkpoint_states(names, optimizer=source == "optimizer", wanted=wanted))
        else:
            raise InputError(f"unknown source of states {source!r}: known are checkpoint, optimizer, weights")


def _pieces(messages: Iterator[Message]) -> Iterator[bytes | memoryview]:
    for message in messages:
        if isinstance(message, UploadEnd):
            return
        if not isinstance(message, UploadPiece):
            raise WireError("an upload is made of pieces")
        yield message.sections[0]
    raise WireError("an upload was cut in transfer")
