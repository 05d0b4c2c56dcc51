"""Weights and checkpoint shards that are uploaded, and states that workers and owners download."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from farflung.broker.notices import Notices
from farflung.broker.records.mirror import Mirror
from farflung.broker.records.run_folders import RunFolders
from farflung.broker.records.run_store import RunStore
from farflung.broker.requests.permission import caller_of, client_of
from farflung.broker.run_table import RunTable
from farflung.errors import CheckpointError, InputError, SecurityError, WireError
from farflung.messages.array_stream import write_arrays
from farflung.messages.fields import text, texts, whole
from farflung.step.run_setup import Committed
from farflung.step.sync.replica_slots import wanted_by
from farflung.transports.rpc import Call, RpcServer
from farflung.wire.frames import Frame

__all__ = ["Transfers"]

_MAX_RUN = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfers:
    """``mirror`` copies checkpoints to an object store (None: nobody wants that)."""

    runs: RunTable
    folders: RunFolders
    notices: Notices
    mirror: Mirror | None

    def register(self, server: RpcServer) -> None:
        """Serve the calls."""
        server.session("upload", self.upload)
        server.stream("states", self.states)

    def upload(self, call: Call, frames: Iterator[Frame]) -> Iterator[Frame]:
        """Store a checkpoint's shard from a worker, or first weights from a submitter."""
        head = next(frames, None)
        if head is None or head.kind not in ("weights", "shard"):
            raise WireError("an upload must begin with weights or shard")
        run = text(head.header, "run", limit=_MAX_RUN)
        if head.kind == "weights":
            caller = client_of(call, "send weights")
            root = self.folders.path(run)
            if (root / "job.json").exists():
                raise InputError(f"run {run!r} exists already; its weights can't be sent again")
            RunStore(self.folders.claim(run, caller)).write_weights(self.folders.counted(run, _pieces(frames)))
        else:
            self._shard(call, run, head, frames)
        yield Frame("kept")

    def _shard(self, call: Call, run: str, head: Frame, frames: Iterator[Frame]) -> None:
        name = caller_of(call).name
        if not self.runs.serves(name, run):
            raise CheckpointError(f"{name!r} does not work on run {run!r} (any more); its share of a checkpoint is not kept")
        live = self.runs.live(run)
        step = whole(head.header, "step", low=live.attempt.first_step, high=live.job.steps)
        bundle, planned = live.bundle, live.planned
        if bundle is None or planned is None:
            raise CheckpointError(f"run {run!r} is over: no checkpoint is kept any more")
        steps, attempt = whole(head.header, "committed", high=step), whole(head.header, "attempt", low=1)
        committed = Committed(steps=steps, rested=whole(head.header, "rested", high=step * sum(live.job.micro_batch_sizes)))
        if attempt == live.attempt.number:
            live.store.add_shard(step, name, self.folders.counted(run, _pieces(frames)), committed, attempt)
        with live.files:
            if attempt != live.store.attempt:
                raise CheckpointError(f"run {run!r} was planned again meanwhile; the share of its older plan is not kept")
            complete = live.store.complete(step, bundle, planned.plan)
        if complete:
            self.notices.watchers(live, Frame("checkpoint", {"step": step}))
            if self.mirror is not None:
                self.mirror.put(run, live.store.checkpoints, step, live.job.checkpoint)

    def states(self, call: Call, frame: Frame) -> Iterator[Frame]:
        """Yield tensors of a run by name: from its newest checkpoint, its optimizer, or the weights that were sent with it."""
        live, caller = self.runs.live(text(frame.header, "run", limit=_MAX_RUN)), caller_of(call)
        if caller.role != "worker":
            self.folders.check(live.run, caller, "fetch its weights")
        elif not self.runs.serves(caller.name, live.run):
            raise SecurityError(f"{caller.name!r} does not work on run {live.run!r} and may not fetch its weights")
        names = texts(frame.header, "names")
        source = text(frame.header, "source")
        if source == "weights":
            yield from write_arrays(live.store.sent_states(names))
        elif source in ("checkpoint", "optimizer"):
            wanted = wanted_by(None if live.planned is None else live.planned.plan, caller.name)
            yield from write_arrays(live.store.checkpoint_states(names, optimizer=source == "optimizer", wanted=wanted))
        else:
            raise InputError(f"unknown source of states {source!r}: known are checkpoint, optimizer, weights")


def _pieces(frames: Iterator[Frame]) -> Iterator[bytes | memoryview]:
    for frame in frames:
        if frame.kind == "end":
            return
        if frame.kind != "piece" or len(frame.sections) != 1:
            raise WireError("an upload is made of pieces with one section each")
        yield frame.sections[0]
    raise WireError("an upload was cut in transfer")
