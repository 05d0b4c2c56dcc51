"""The job of a run with all its graphs, in one file, from which the run can begin again."""

from __future__ import annotations

from pathlib import Path

from farflung.checkpoint.store import write_file
from farflung.errors import DataError, DiskFull
from farflung.messages.submission import Bundle
from farflung.telemetry.shortage import remedy_of

__all__ = ["read_bundle", "store_bundle", "stored_bytes"]

_BUNDLE = "bundle.frame"


def stored_bytes(bundle: Bundle, packed: bytes) -> int:
    """Return how many bytes the files of a submission take, of which ``packed`` is one."""
    files = sum(map(len, bundle.files.values())) + sum(map(len, bundle.notes.values()))
    return len(packed) + len(bundle.graph.to_json()) + files


def store_bundle(root: Path, packed: bytes) -> None:
    """Write a bundle, as ``Bundle.to_bytes`` returns it, to the run's folder ``root``."""
    write_file(root / _BUNDLE, [packed])


def read_bundle(root: Path) -> Bundle:
    """Return what ``store_bundle`` wrote.

    Raises:
        DataError: the file is missing or damaged.
        DiskFull: no descriptor is free.
    """
    try:
        data = (root / _BUNDLE).read_bytes()
    except OSError as error:
        remedy = remedy_of(error)
        kind = DiskFull if remedy else DataError
        raise kind(f"cannot read {root / _BUNDLE}: {error.strerror}{remedy and f'; {remedy}'}") from None
    return Bundle.from_bytes(data)
