"""The folder of a broker, made from the rows that the leader wrote."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path, PurePosixPath

from farflung.broker.replication.database import Change
from farflung.errors import DataError
from farflung.security.files import make_private_folder, write_private

__all__ = ["FolderReplay"]


class FolderReplay:
    """Applies changes to the folder ``home``. One thread."""

    def __init__(self, home: Path) -> None:
        self._home = home
        #: The number of the last change that was applied.
        self.last = 0
        #: The files that were made here, with their sizes; another one of that name is older than the database.
        self.files: dict[Path, int] = {}

    @property
    def whole(self) -> bool:
        """Whether nobody has deleted or cut one of the files."""
        return all(path.is_file() and path.stat().st_size == size for path, size in self.files.items())

    def follow(self, changes: Callable[[int], Iterable[Change]]) -> None:
        """Apply the new ones of ``changes``, which returns those after a number; raises as ``apply``."""
        self.apply(changes(self.last))

    def apply(self, changes: Iterable[Change]) -> None:
        """Apply ``changes``, which follow those that were applied before.

        Raises:
            DataError: a path leads out of the folder, or a file can't be written.
        """
        for change in changes:
            path = self._path(change.path)
            make_private_folder(path.parent)
            if change.kind == "put" or path not in self.files:
                for log in ("-wal", "-shm"):
                    path.with_name(path.name + log).unlink(missing_ok=True)
                write_private(path, change.body)
                self.files[path] = len(change.body)
            else:
                _append(path, change.body)
                self.files[path] += len(change.body)
            self.last = change.number

    def _path(self, text: str) -> Path:
        parts = PurePosixPath(text).parts
        if not parts or PurePosixPath(text).is_absolute() or ".." in parts:
            raise DataError(
                f"the database names the file {text!r:.100}, which is outside of the broker's folder: restore a backup"
            )
        return self._home.joinpath(*parts)


def _append(path: Path, body: bytes) -> None:
    try:
        with path.open("ab") as file:
            file.write(body)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise DataError(f"cannot write {path}: {error.strerror}; free space or choose another folder") from None
