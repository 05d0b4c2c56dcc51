"""Lines that are added to a file whole or not at all."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from farflung.errors import DataError, DiskFull
from farflung.telemetry.faults import fault_point
from farflung.telemetry.shortage import remedy_of

__all__ = ["append_lines"]


def append_lines(path: Path, text: str) -> None:
    """Add ``text`` to ``path``.

    Raises:
        DataError: the file can't be written.
        DiskFull: there is no space, or no descriptor is free; the file is as it was.
    """
    before = -1
    try:
        fault_point("disk.before_write", file=path.name)
        with path.open("a", encoding="utf-8") as file:
            before = file.tell()
            file.write(text)
    except OSError as error:
        with suppress(OSError):
            if before >= 0:
                os.truncate(path, before)  # half a line would spoil the next one
        remedy = remedy_of(error)
        kind = DiskFull if remedy else DataError
        if isinstance(error, FileNotFoundError):
            raise DataError(f"cannot write {path}: its folder was deleted or moved away; start this again") from None
        raise kind(f"cannot write {path}: {error.strerror}; {remedy or 'choose another folder'}") from None
