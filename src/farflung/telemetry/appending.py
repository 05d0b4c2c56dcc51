"""Lines that are added to a file whole or not at all."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path

from farflung.errors import DataError, DiskFull
from farflung.telemetry.faults import fault_point

__all__ = ["append_lines"]


def append_lines(path: Path, text: str) -> None:
    """Add ``text`` to ``path``.

    Raises:
        DataError: the file can't be written.
        DiskFull: there is no space; the file is as it was.
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
        kind = DiskFull if error.errno in (errno.ENOSPC, errno.EDQUOT) else DataError
        raise kind(f"cannot write {path}: {error.strerror}; free space or choose another folder") from None
