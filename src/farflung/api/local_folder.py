"""The folder of a run in this process: the same files as a broker keeps, so that the same commands read it."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from farflung.api.argument_names import warn_if_stretched
from farflung.broker.records.run_store import RunStore, resumable
from farflung.checkpoint import CheckpointReader, encode_shard, locate, pack
from farflung.checkpoint.store import write_file
from farflung.cluster import Topology
from farflung.engines.base import Array
from farflung.errors import CheckpointError, FarflungError, InputError
from farflung.job import from_json
from farflung.messages.submission import Bundle
from farflung.plan.model import Plan
from farflung.step.run_setup import Committed
from farflung.step.sync.replica_slots import wanted_by
from farflung.telemetry.folder import RunFolder
from farflung.telemetry.records import EvaluationRecord, RunResult, StepRecord

__all__ = ["LocalFolder", "check_folders"]


def check_folders(folder: str | Path | None, resume: str | Path | None) -> None:
    """Check, before the slow capture, that ``folder`` can be written and that ``resume`` exists.

    Raises:
        InputError: one of them fails.
        CheckpointError: there is no folder ``resume``.
    """
    if resume is not None and Path(resume).is_file():
        raise CheckpointError(f"resume={str(resume)!r} is a file: pass the folder of a run, or of a checkpoint")
    if resume is not None and not Path(resume).is_dir():
        raise CheckpointError(f"resume={str(resume)!r}: there is no such folder: check the path")
    if folder is None:
        return
    if Path(folder).is_file():
        raise InputError(f"folder={str(folder)!r} is a file: choose a folder")
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise InputError(
            f"folder={str(folder)!r} can't be written: {error.strerror}; choose a folder that you may write"
        ) from None


class LocalFolder:
    """Checkpoints, records and result of a run in this process, and the checkpoint from which it continues.

    Without a folder nothing is written. Any thread may call.
    """

    def __init__(self, folder: Path | None, bundle: Bundle, plan: Plan, topology: Topology) -> None:
        """Open the checkpoint that the job resumes from, and begin ``folder``.

        Raises:
            InputError: the folder holds another run, or the checkpoint stands at the job's last step.
            CheckpointError: there is no whole checkpoint, or it belongs to another model or job.
        """
        self._bundle, self._plan = bundle, plan
        self._lock = threading.Lock()
        self._store = None if folder is None else RunStore(folder)
        self._reader: CheckpointReader | None = None
        self.first_step = self.committed = 0
        source = Path(bundle.job.checkpoint.resume) if bundle.job.checkpoint.resume else None
        if source is not None:
            self._resume(source)
        if self._store is not None:
            self._begin(self._store, topology, source)

    @property
    def resumed(self) -> bool:
        """Whether there is a checkpoint to read states from."""
        return self._reader is not None

    @property
    def newest(self) -> str:
        """The newest checkpoint of this run (empty: none)."""
        steps = () if self._store is None else self._store.checkpoints.steps()
        return str(self._store.checkpoints.path(steps[-1])) if steps and self._store is not None else ""

    def states(self, names: Sequence[str]) -> Mapping[str, Array]:
        """Those of ``names`` that the newest checkpoint holds."""
        return _read(self._reader, names)

    def reader(self) -> Callable[[Sequence[str]], Mapping[str, Array]]:
        """Return what reads states of the checkpoint that is the newest one now, also when there are newer ones."""
        return partial(_read, self._reader)

    def optimizer(self, names: Sequence[str], device: str) -> Mapping[str, Array]:
        """The optimizer state of the parameters ``names``, as ``device`` needs it."""
        if self._reader is None:
            return {}
        wanted = wanted_by(self._plan, device)
        found = self._reader.read_optimizer(names)
        return {slot: array for slot, array in found.items() if wanted(slot)}

    def write_share(
        self, step: int, device: str, committed: Committed, states: Mapping[str, Array], optimizer: Mapping[str, Array]
    ) -> bool:
        """Write the share of ``device`` in the checkpoint after ``step`` steps; return whether the checkpoint is complete."""
        if self._store is None:
            return False
        with self._lock:
            self._store.add_shard(step, device, encode_shard(pack(states, optimizer)), committed)
            complete = self._store.complete(step, self._bundle, self._plan)
            if complete:
                self._reader = CheckpointReader.from_folder(self._store.checkpoints.folder, step)
            return complete

    def write_record(self, record: StepRecord | EvaluationRecord) -> None:
        """Add ``record`` to the metrics."""
        if self._store is not None:
            self._store.folder.append(record)

    def write_result(self, result: RunResult) -> None:
        """Write how the run ended."""
        if self._store is not None:
            self._store.write_result(replace(result, checkpoint=self.newest))

    def _resume(self, source: Path) -> None:
        try:
            store, manifest = resumable(source, self._bundle)
        except FarflungError as error:
            raise type(error)(f"resume={str(source)!r}: {error}") from None
        self._reader = CheckpointReader.from_folder(store.folder, manifest.step)
        warn_if_stretched(self._bundle.job, from_json(manifest.job).steps)
        self.first_step, self.committed = manifest.step, manifest.ledger.get("steps", manifest.step)

    def _begin(self, store: RunStore, topology: Topology, source: Path | None) -> None:
        same = source is not None and locate(source)[0].folder.resolve() == store.checkpoints.folder.resolve()
        if not same and (store.folder.job.exists() or store.checkpoints.steps()):
            raise InputError(
                f"folder={str(store.root)!r} holds a run already: pass resume={str(store.root)!r} to continue it, or choose "
                "another folder"
            )
        if same:
            newest = store.checkpoints.steps()[-1]
            if newest != self.first_step:
                raise InputError(
                    f"resume={str(source)!r} is step {self.first_step} of a run whose newest checkpoint is step {newest}: "
                    "choose another folder for the new run, or delete the newer checkpoints"
                )
            _cut_records(store.folder, self.first_step)
        elif source is not None:
            store.adopt(source, self._bundle)
        store.begin(1)
        store.write_bundle(self._bundle)
        store.write_plan(self._plan, topology.to_json())


def _read(reader: CheckpointReader | None, names: Sequence[str]) -> Mapping[str, Array]:
    """Those of ``names`` that the checkpoint of ``reader`` holds."""
    return {} if reader is None else reader.read([name for name in names if name in reader.manifest.states])


def _cut_records(folder: RunFolder, step: int) -> None:
    """Keep the records of the first ``step`` steps only: the others are made again."""
    folder.result.unlink(missing_ok=True)
    if not folder.metrics.exists():
        return
    # an evaluation after exactly ``step`` steps is not repeated
    kept = [one for one in folder.committed() if one.step < step or (isinstance(one, EvaluationRecord) and one.step == step)]
    write_file(folder.metrics, [f"{one.to_line().rstrip()}\n".encode() for one in kept])
