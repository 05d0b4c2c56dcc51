"""A file for arrays that a stage needs only for a moment of each step.

The file has no name. The system removes it with the last process that has it open, also after a kill. Its space is reserved when
it is made, so that a full disk is noticed before training begins. Written bytes go to the disk, and leave the page cache: they
would take memory that the worker's owner has not offered.
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from farflung.clock import precise_time
from farflung.errors import DiskFull, InputError, TrainingError
from farflung.units import Bytes

__all__ = ["DiskSpace", "StateFile", "disk_rate"]

#: Arrays begin at multiples of this.
_PAGE = 4096
#: Bytes that are written before the file is flushed.
_FLUSH = 32 << 20
#: Bytes that a measurement writes and reads, and of each array.
_MEASURED, _BLOCK = 256 << 20, 8 << 20


class StateFile:
    """``nbytes`` of a disk. One thread at a time may use it."""

    def __init__(self, descriptor: int, nbytes: int) -> None:
        """Take over ``descriptor``, an open file of ``nbytes``."""
        self.descriptor, self.nbytes = descriptor, nbytes
        self._next = self._unflushed = 0
        weakref.finalize(self, os.close, descriptor)

    @classmethod
    def create(cls, folder: Path, nbytes: int) -> StateFile:
        """Reserve ``nbytes`` in a new file in ``folder``.

        Raises:
            DiskFull: the disk has not so many free bytes.
            InputError: no file can be made in ``folder``.
        """
        try:
            folder.mkdir(parents=True, exist_ok=True)
            descriptor, name = tempfile.mkstemp(prefix="farflung-states-", dir=folder)
            os.unlink(name)
        except OSError as error:
            raise InputError(f"--disk-folder {folder}: no file can be made there ({error}); choose another folder") from None
        found = cls(descriptor, nbytes)
        try:
            os.posix_fallocate(descriptor, 0, max(1, nbytes))
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise InputError(f"--disk-folder {folder}: no space can be reserved ({error}); choose another folder") from None
            raise DiskFull(
                f"--disk-folder {folder}: optimizer states take {Bytes(nbytes)}, and the disk has not so much free space; "
                "free some, or offer less with --disk"
            ) from None
        return found

    def reserve(self, nbytes: int) -> int:
        """Return the offset of ``nbytes`` that nobody else uses.

        Raises:
            DiskFull: the file has no space left.
        """
        offset, after = self._next, self._next + -(-nbytes // _PAGE) * _PAGE
        if after > self.nbytes:
            raise DiskFull(f"optimizer states take more than {Bytes(self.nbytes)}, which the plan has for them; plan again")
        self._next = after
        return offset

    def write(self, offset: int, array: NDArray[Any]) -> None:
        """Write ``array``, which is contiguous, at ``offset``.

        Raises:
            TrainingError: the disk does not take it.
        """
        data = array.reshape(-1).view(np.uint8).data
        with _checked("written to"):
            while data:
                count = os.pwritev(self.descriptor, [data], offset)
                data, offset = data[count:], offset + count
        self._unflushed += array.nbytes
        if self._unflushed >= _FLUSH:
            self.flush()

    def flush(self) -> None:
        """Wait until all is on the disk, and leave the page cache.

        Raises:
            TrainingError: the disk does not take it.
        """
        with _checked("written to"):
            os.fdatasync(self.descriptor)
            os.posix_fadvise(self.descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        self._unflushed = 0

    def read(self, offset: int, array: NDArray[Any]) -> None:
        """Fill ``array``, which is contiguous, from ``offset``.

        Raises:
            TrainingError: the disk does not give it.
        """
        data, begin = array.reshape(-1).view(np.uint8).data, offset
        with _checked("read from"):
            while data:
                count = os.preadv(self.descriptor, [data], offset)
                if not count:
                    raise OSError(errno.EIO, "the file ends too early")
                data, offset = data[count:], offset + count
            os.posix_fadvise(self.descriptor, begin, offset - begin, os.POSIX_FADV_DONTNEED)


@contextmanager
def _checked(way: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise TrainingError(f"optimizer states can't be {way} the disk: {error}; check the disk of --disk-folder") from None


@dataclass(frozen=True, slots=True)
class DiskSpace:
    """What the owner of a worker offers for arrays: ``nbytes`` in ``folder``."""

    folder: Path
    nbytes: int

    def file(self, nbytes: int) -> StateFile:
        """Reserve ``nbytes``.

        Raises:
            DiskFull: the owner offers less, or the disk is full.
            InputError: no file can be made in the folder.
        """
        if nbytes > self.nbytes:
            raise DiskFull(
                f"optimizer states take {Bytes(nbytes)}, and this worker offers {Bytes(self.nbytes)} of its disk; "
                "offer more with --disk, or plan again"
            )
        return StateFile.create(self.folder, nbytes)

    def check(self) -> None:
        """See that a file can be made in the folder, and that the disk has as much free space as its owner offers.

        Raises:
            InputError: neither.
        """
        StateFile.create(self.folder, 0)
        free = shutil.disk_usage(self.folder).free
        if free < self.nbytes:
            raise InputError(
                f"--disk {Bytes(self.nbytes).written()}: the disk of {self.folder} has {Bytes(free)} free; offer less, "
                "or name a folder on another disk with --disk-folder"
            )


def disk_rate(space: DiskSpace) -> float:
    """Measure bytes per second of a disk, over writing and reading the same bytes, as an update does. It takes some seconds.

    Raises:
        DiskFull: the disk has less free space than its owner offers.
        InputError: no file can be made in the folder.
        TrainingError: the disk fails.
    """
    space.file(space.nbytes)  # whether the offer can be kept
    count = max(1, min(_MEASURED, space.nbytes) // _BLOCK)
    file, block = StateFile.create(space.folder, count * _BLOCK), np.arange(_BLOCK // 8, dtype=np.uint64)
    begin = precise_time()
    for number in range(count):
        file.write(number * _BLOCK, block)
    file.flush()
    for number in range(count):
        file.read(number * _BLOCK, block)
    return 2 * count * _BLOCK / (precise_time() - begin)
