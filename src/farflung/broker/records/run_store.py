"""The files of one run: documents, metrics, checkpoints (``telemetry.folder`` has the file names)."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from farflung.broker.records.share_hashes import ShareHashes
from farflung.checkpoint import (
    CheckpointReader,
    CheckpointStore,
    Manifest,
    ModelFiles,
    ShardRecord,
    Weights,
    check_resume,
    locate,
)
from farflung.checkpoint.manifest import OPTIMIZER
from farflung.checkpoint.store import write_file
from farflung.engines.base import Array
from farflung.errors import CheckpointError, DataError, DiskFull, InputError
from farflung.graph.ir import StateKind
from farflung.job import to_json as job_to_json
from farflung.messages.submission import Bundle
from farflung.plan.model import Plan
from farflung.step.run_setup import Committed
from farflung.telemetry.faults import fault_point
from farflung.telemetry.folder import RunFolder
from farflung.telemetry.records import RunResult
from farflung.telemetry.trace import ProcessTrace, write_spans

__all__ = ["RunStore", "resumable"]

#: Spans of one worker and run that are stored, about 30 MB.
_MAX_SPANS = 200_000


@dataclass(slots=True)
class RunStore:
    """The folder of one run."""

    root: Path
    #: The number of the plan whose checkpoint shards are stored now.
    attempt: int = 1
    #: (attempt, step) -> device -> its shard
    _shards: dict[tuple[int, int], dict[str, tuple[ShardRecord, Committed]]] = field(default_factory=dict)
    #: What workers report of their shards.
    hashes: ShareHashes = field(default_factory=ShareHashes)
    #: Bytes of shards that have arrived: an upload over a slow link is no silence.
    arrived: int = 0
    #: (attempt, step) of the newest shard that could not be written.
    _given_up: tuple[int, int] = (0, -1)
    #: The ledger of the checkpoint with which the attempt began.
    _before: Mapping[str, int] = field(default_factory=dict)
    #: The newest checkpoint that this object wrote or checked, so that its bytes are not read again.
    _newest: int | None = None
    #: Spans by worker: stored, and lost to a full disk since the last ones were stored; whether that was reported.
    _traced: dict[str, int] = field(default_factory=dict)
    _untraced: dict[str, int] = field(default_factory=dict)
    _troubled: bool = False

    @property
    def folder(self) -> RunFolder:
        """Names of the files."""
        return RunFolder(self.root)

    @property
    def checkpoints(self) -> CheckpointStore:
        """The run's checkpoints."""
        return CheckpointStore(self.root / "checkpoints")

    @property
    def weights(self) -> Path:
        """Weights that the submitter sent (may not exist)."""
        return self.root / "weights.safetensors"

    def write_bundle(self, bundle: Bundle) -> None:
        """Write the job and its graphs."""
        self._write(self.folder.job, job_to_json(bundle.job))
        self._write(self.folder.graph, bundle.graph.to_json())
        if bundle.notes:
            self._write(self.root / "notes.json", json.dumps(dict(bundle.notes), indent=1))
        ModelFiles(self.root).write(bundle.files)

    def write_plan(self, plan: Plan, topology: str) -> str:
        """Write the plan and the topology for which it was made. Return the SHA-256 of the plan's document."""
        document = plan.to_json()
        self._write(self.folder.plan, document)
        self._write(self.folder.topology, topology)
        return hashlib.sha256(document.encode()).hexdigest()

    def add_trace(self, name: str, told: tuple[ProcessTrace, bool]) -> str:
        """Store spans of the worker ``name``: the first ``_MAX_SPANS``; the rest is only counted.

        Spans that can't be written are counted, too, since no run fails for them. Return the error the first time.
        """
        trace, clock_known = told
        kept = trace.spans[: max(_MAX_SPANS - self._traced.get(name, 0), 0)]
        lost = self._untraced.pop(name, 0) + trace.lost + len(trace.spans) - len(kept)
        try:
            write_spans(self.folder.events, name, kept, offset=trace.offset if clock_known else None, lost=lost)
        except (DataError, DiskFull) as error:
            self._untraced[name] = lost + len(kept)
            told_before, self._troubled = self._troubled, True
            return "" if told_before else f"{error}; the run goes on, and its trace lacks what can't be written"
        self._traced[name] = self._traced.get(name, 0) + len(kept)
        return ""

    def newest_checkpoint(self) -> str:
        """Return the path of the newest complete checkpoint ("": there is none)."""
        steps = self.checkpoints.steps()
        return str(self.checkpoints.path(steps[-1])) if steps else ""

    def write_result(self, result: RunResult) -> None:
        """Write the result of the run."""
        self.hashes.begin(self.attempt + 1)
        self._write(self.folder.result, result.to_json())

    def write_weights(self, pieces: Iterable[bytes | memoryview]) -> None:
        """Write weights that arrive in pieces (a safetensors file)."""
        write_file(self.weights, pieces)

    def adopt(self, source: Path, bundle: Bundle) -> Manifest:
        """Copy the checkpoint at ``source`` (the newest complete one of a run's folder, or a single one) as this run's first.

        Returns its manifest: ``bundle`` continues at its step.

        Raises:
            CheckpointError: there is none, or it belongs to another model or to a job that computes other numbers.
            InputError: it stands at or behind the job's last step.
        """
        store, manifest = resumable(source, bundle)
        place = self.checkpoints.path(manifest.step)
        place.mkdir(parents=True, exist_ok=True)
        for file in store.path(manifest.step).iterdir():
            _copy(file, place / file.name)
        sent = store.folder.parent / self.weights.name
        if sent.is_file() and not self.weights.exists():
            _copy(sent, self.weights)  # it may hold buffers that checkpoints leave out
        self._newest, self._before = manifest.step, manifest.ledger
        return manifest

    def begin(self, attempt: int, trusted: int | None = None) -> Manifest | None:
        """Store only shards of plan number ``attempt`` from now on. Return the newest complete checkpoint, if there is one.

        ``trusted``: remove the checkpoints after this step, because a worker has forged results (None: all are trusted).
        """
        if trusted is not None:
            self.checkpoints.remove_after(trusted)
            self._newest = None
        self.attempt = attempt
        self.hashes.begin(attempt)
        self._shards.clear()
        if self._newest is None:
            found = self.checkpoints.latest()
            self._newest = None if found is None else found.step
        newest = None if self._newest is None else self.checkpoints.manifest(self._newest)
        self._before = {} if newest is None else newest.ledger
        return newest

    def add_shard(
        self, step: int, name: str, pieces: Iterable[bytes | memoryview], committed: Committed, attempt: int | None = None
    ) -> str:
        """Store one worker's shard of the checkpoint after ``step`` steps; return its SHA-256."""
        record = self.checkpoints.store_shard(step, name, _counted(self, pieces))
        self._shards.setdefault((attempt or self.attempt, step), {})[name] = record, committed
        return record.sha256

    def give_up(self, step: int, name: str, attempt: int) -> None:
        """The shard of ``name`` could not be written, or can't be trusted: the checkpoint is not complete without another one.

        Nobody is late with a shard of this checkpoint any more.
        """
        self._given_up = (attempt, step)
        self._shards.get((attempt, step), {}).pop(name, None)

    def incomplete(self, plan: Plan) -> tuple[int, frozenset[str]] | None:
        """Return the newest step of which some devices of ``plan`` have sent their shards, and the other devices (None: none)."""
        begun = [step for attempt, step in list(self._shards) if attempt == self.attempt]
        step = max(begun, default=-1)
        if step < 0 or (self.attempt, step) == self._given_up:
            return None
        missing = frozenset(plan.devices) - set(self._shards.get((self.attempt, step), {}))
        return (step, missing) if missing else None

    def has_shards(self, step: int, plan: Plan) -> bool:
        """Return whether all devices of ``plan`` have sent their shards of the checkpoint after ``step`` steps."""
        return set(plan.devices) <= set(self._shards.get((self.attempt, step), {}))

    def complete(self, step: int, bundle: Bundle, plan: Plan) -> bool:
        """Write the manifest of the checkpoint of ``step`` once all devices of the plan have sent their shards.

        The ledger counts the steps that are part of the states (not skipped or rolled back) and their samples (without replicas
        that rested, or left a step out).

        Raises:
            CheckpointError: the workers disagree on how many those are, or a share is missing or torn.
        """
        shards = self._shards.get((self.attempt, step), {})
        if not self.has_shards(step, plan):
            return False
        alone = bundle.job.precision == "fp16" and plan.sync is not None  # else no replica leaves out a step that others count
        counts = {replace(count, left_out=0) if alone else count for count in (shards[device][1] for device in plan.devices)}
        if len(counts) > 1:
            said = ", ".join(_described(device, shards[device][1]) for device in plan.devices)
            raise CheckpointError(
                f"the workers disagree on how many of the first {step} steps count ({said}): the checkpoint is not kept"
            )
        committed = replace(counts.pop(), left_out=sum(shards[device][1].left_out for device in plan.devices))
        graph = bundle.graph
        expected = [s.name for s in graph.states if s.persistent and s.kind is not StateKind.CONSTANT]
        manifest = Manifest(
            step=step,
            job=job_to_json(bundle.job),
            graph_hash=graph.hash,
            plan=plan.to_json(),
            shards=tuple(shards[device][0] for device in plan.devices),
            ledger=self._ledger(committed, sum(bundle.job.micro_batch_sizes)),
            aliases={state.name: state.aliases for state in graph.states if state.aliases},
            notes=bundle.notes,
        )
        fault_point("checkpoint.before_manifest", step=step)
        self.checkpoints.write_manifest(manifest, expected)
        fault_point("checkpoint.after_manifest", step=step)
        wanted = bundle.job.checkpoint
        self.checkpoints.prune(wanted.keep, wanted.every, wanted.keep_every)
        del self._shards[self.attempt, step]
        self._newest = step
        return True

    def _ledger(self, committed: Committed, whole: int) -> Mapping[str, int]:
        """``whole``: samples of a step in which no replica rests."""
        rested = whole * self._before["steps"] - self._before["samples"] if {"steps", "samples"} <= set(self._before) else 0
        samples = committed.steps * whole - rested - committed.rested - committed.left_out
        return {"steps": committed.steps, "samples": max(samples, 0)}

    def checkpoint_states(
        self, names: Iterable[str], *, optimizer: bool, wanted: Callable[[str], bool] = lambda slot: True
    ) -> Iterator[tuple[str, Array]]:
        """Tensors of the newest whole checkpoint: states by name, or ``wanted`` optimizer slots of the parameters ``names``."""
        reader = CheckpointReader.from_folder(self.root / "checkpoints", self._newest)
        if optimizer:
            for slot in filter(wanted, reader.optimizer_names(list(names))):
                yield slot, reader.read([OPTIMIZER + slot])[OPTIMIZER + slot]
            return
        held = set(reader.manifest.states)
        sent = Weights.open(self.weights) if self.weights.exists() else None
        for name in names:
            if name in held:
                yield from reader.read([name]).items()
            elif sent is not None and name in sent.names:  # a buffer that checkpoints leave out
                yield name, sent.read(name)

    def sent_states(self, names: Iterable[str]) -> Iterator[tuple[str, Array]]:
        """States ``names`` as the submitter sent them, under these very names (missing ones are left out)."""
        weights = Weights.open(self.weights)
        for name in names:
            if name in weights.names:
                yield name, weights.read(name)

    def _write(self, path: Path, text: str) -> None:
        try:
            write_file(path, [text.encode("utf-8")])
        except OSError as error:
            raise CheckpointError(f"cannot write {path}: {error}") from None


def _counted(store: RunStore, pieces: Iterable[bytes | memoryview]) -> Iterator[bytes | memoryview]:
    for piece in pieces:
        store.arrived += len(piece)
        yield piece


def resumable(source: Path, bundle: Bundle) -> tuple[CheckpointStore, Manifest]:
    """The checkpoint at ``source`` (the newest whole one of a run's folder, or a single one) from which ``bundle`` can go on.

    Raises:
        CheckpointError, InputError: as ``RunStore.adopt``.
    """
    if not source.is_dir():
        raise CheckpointError("there is no run of this name at the broker, and no such folder: check the name")
    store, step = locate(source)
    manifest = store.latest() if step is None else store.verify(step)
    if manifest is None:
        raise CheckpointError(f"{source} holds no whole checkpoint: check the name, or start without checkpoint.resume")
    check_resume(manifest, bundle.graph.hash, bundle.job, bundle.graph.states)
    if manifest.step >= bundle.job.steps:
        raise InputError(
            f"the checkpoint at {source} stands at step {manifest.step}, and steps = {bundle.job.steps} counts the steps before "
            f"it, too: set steps above {manifest.step}"
        )
    return store, manifest


def _copy(source: Path, target: Path) -> None:
    """Make a hard link, which takes no space, or a copy if the file system has no links."""
    try:
        os.link(source, target)
    except OSError:
        try:
            shutil.copyfile(source, target)
        except OSError as error:
            raise CheckpointError(f"{target} can't be written: {error.strerror}; free space or choose another folder") from None


def _described(device: str, committed: Committed) -> str:
    return f"{device}: {committed.steps}" + (f" without {committed.rested} samples" if committed.rested else "")
