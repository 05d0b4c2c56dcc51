"""How far a run is reported to one tracker, in a file of the run's folder."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Self

from farflung.errors import DataError, InputError

__all__ = ["Cursor", "TrackerBusy", "claimed", "cursor_file", "tracker_folder"]


class TrackerBusy(InputError):
    """Another process reports this run to this tracker."""


def tracker_folder(run: Path, name: str) -> Path:
    """Return the folder of the tracker ``name`` in the folder ``run`` of a run."""
    return run / "trackers" / name


def cursor_file(run: Path, name: str) -> Path:
    """Return the file with the cursor of the tracker ``name``."""
    return run / "trackers" / f"{name}.json"


@dataclass(slots=True, kw_only=True)
class Cursor:
    """How far one run is reported to one tracker.

    ``run``: the id under which the tracker has the run. ``file``, ``offset``: which metrics file was read up to which byte, and
    ``furthest``: the highest step there, counted from 1. ``train`` and ``evaluation``: the newest steps that the tracker has.
    ``records``: lines before ``offset``. ``events``: which byte of ``watch.log`` follows the newest event that the tracker has.
    ``attempt``: of the newest recovery. ``trouble``: why the last process ended early. ``refused``: it would do so again.
    """

    run: str = ""
    file: int = 0
    offset: int = 0
    furthest: int = 0
    records: int = 0
    events: int = 0
    train: int = 0
    evaluation: int = -1
    attempt: int = 1
    complete: bool = False
    trouble: str = ""
    refused: bool = False

    @classmethod
    def load(cls, run: Path, name: str) -> Self:
        """Read the cursor. A missing or damaged file is a new cursor: the tracker knows itself what it has."""
        with suppress(OSError, ValueError, TypeError):
            body = json.loads(cursor_file(run, name).read_text(encoding="utf-8"))
            known = {field.name: type(field.default) for field in fields(cls)}
            if isinstance(body, dict) and {key: type(value) for key, value in body.items()} == known:
                return cls(**body)
        return cls()

    def save(self, run: Path, name: str) -> None:
        """Write the cursor, whole or not at all.

        Raises:
            DataError: it can't be written.
        """
        place = cursor_file(run, name)
        pending = place.with_name(f".{place.name}.part")
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            pending.write_text(json.dumps(asdict(self)), encoding="utf-8")
            os.replace(pending, place)
        except OSError as error:
            raise DataError(f"cannot write {place}: {error.strerror}; free space or choose another folder") from None


@contextmanager
def claimed(run: Path, name: str) -> Iterator[None]:
    """Only one process at a time reports a run to a tracker, so that no step is reported twice.

    Raises:
        TrackerBusy: another process does.
        InputError: the folder can't be written.
    """
    place = run / "trackers" / f"{name}.lock"
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        file = place.open("ab")
    except OSError as error:
        raise InputError(f"cannot write {place}: {error.strerror}; copy the run's folder to one that you may write") from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise TrackerBusy(f"another process reports {run.name} to {name} already: wait until it ends") from None
        try:
            yield
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)  # a process that is being forked may have the file open for a moment longer
