"""The checkpoints of a run on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from farflung.checkpoint import CheckpointReader, CheckpointStore, export_file, locate
from farflung.errors import FarflungError

__all__ = ["CheckpointRow", "checkpoint_rows", "export_checkpoint"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRow:
    """One checkpoint; ``nbytes`` and ``shards`` are 0 if ``problem`` says what is wrong with it."""

    step: int
    nbytes: int = 0
    shards: int = 0
    problem: str = ""


def checkpoint_rows(run: Path) -> Sequence[CheckpointRow]:
    """Return the checkpoints in the folder ``run``, the newest first. Reads files."""
    try:
        store, _ = locate(run)
    except FarflungError:
        return []
    return [_row(store, step) for step in reversed(store.steps())]


def _row(store: CheckpointStore, step: int) -> CheckpointRow:
    try:
        manifest = store.manifest(step)
    except FarflungError as error:
        return CheckpointRow(step=step, problem=str(error))
    return CheckpointRow(step=step, nbytes=sum(shard.size for shard in manifest.shards), shards=len(manifest.shards))


def export_checkpoint(run: Path, step: int | None, target: Path) -> int:
    """Write the weights of the checkpoint after ``step`` to ``target``, as one safetensors file; return the step.

    ``step``: ``None`` is the newest.

    Raises:
        CheckpointError: there is no such checkpoint, or it is damaged.
    """
    store, _ = locate(run)
    reader = CheckpointReader.from_folder(store.folder, step)
    export_file(reader, target)
    return reader.manifest.step
