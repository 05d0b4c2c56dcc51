"""The files of records of one run. If somebody deletes the run's folder meanwhile, the newest records are written again."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import islice

from farflung.errors import DataError
from farflung.telemetry.attempt_record import AttemptRecord
from farflung.telemetry.folder import RunFolder
from farflung.telemetry.records import Record, RelayedRecord
from farflung.telemetry.whole_lines import append_lines

__all__ = ["MetricsFile"]

#: Records that are remembered, as many as a watcher's memory has.
_MOST = 1024


class MetricsFile:
    """Appends records, and reads old ones. One thread at a time appends; any thread reads."""

    def __init__(self, folder: RunFolder, warn: Callable[[str], None], *, lines: int = 0) -> None:
        """``lines``: in the file of metrics already. ``warn`` receives a text when a deleted folder is made again."""
        self._folder, self._warn = folder, warn
        self._recent: deque[Record | RelayedRecord | AttemptRecord] = deque(maxlen=_MOST)
        self._lines = lines
        #: Lines at the beginning that a deleted folder took with it.
        self._lost = 0

    def append(self, record: Record | RelayedRecord | AttemptRecord) -> None:
        """Add ``record`` to its file.

        Raises:
            DataError: the file can't be written.
            DiskFull: there is no space.
        """
        if self._lines > self._lost and not self._folder.metrics.exists():
            self._restore()
        self._folder.append(record)
        self._recent.append(record)
        self._lines += _is_metric(record)

    def older(self, first: int, end: int) -> list[str]:
        """Return the lines of metrics from ``first`` to ``end``, without those that are lost.

        Raises:
            DataError: the file can't be read.
        """
        begin, end = (max(place - self._lost, 0) for place in (first, end))
        try:
            with self._folder.metrics.open(encoding="utf-8", errors="replace") as file:
                return list(islice(file, begin, end))
        except OSError as error:
            raise DataError(f"cannot read {self._folder.metrics}: {error.strerror}") from None

    def _restore(self) -> None:
        root = self._folder.root
        try:
            root.mkdir(exist_ok=True)
        except OSError as error:
            why = f"which was deleted or moved away: {error.strerror}; start this again"
            raise DataError(f"cannot make {root} again, {why}") from None
        # The file of metrics comes last: as long as it is missing, this is done again.
        for file in (self._folder.relayed, self._folder.attempts, self._folder.metrics):
            lines = [record.to_line() for record in self._recent if self._folder.file_of(record) == file]
            if lines and not file.exists():
                append_lines(file, "".join(lines))
        kept = sum(_is_metric(record) for record in self._recent)
        self._lost = self._lines - kept
        self._warn(
            f"{root} was deleted or moved away during the run; it was made again with {kept} of {self._lines} records, "
            "without earlier checkpoints: stop the run if you do not want it"
        )


def _is_metric(record: Record | RelayedRecord | AttemptRecord) -> bool:
    return not isinstance(record, RelayedRecord | AttemptRecord)
