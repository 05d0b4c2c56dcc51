"""A backup of a broker's folder in one file, made while the broker runs, and a folder made from a backup.

The file is a tar archive. The journal comes first: files of a run are written before the journal says so, so the restored folder
is like that of a broker that was killed at that moment. Of a checkpoint, the manifest comes last, since the broker deletes old
checkpoints meanwhile and removes the manifest first.
"""

from __future__ import annotations

import io
import json
import os
import secrets
import shutil
import tarfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from farflung.broker.replication.folder_copy import copied_files, database_bytes
from farflung.errors import DataError, InputError
from farflung.security.files import make_private_folder
from farflung.telemetry.shortage import remedy_of
from farflung.units import Bytes
from farflung.version import __version__

__all__ = ["BackupSummary", "back_up", "restore"]

#: The last file of a backup: an archive that was cut off has none.
_END = "farflung-backup.json"
_JOURNAL, _MANIFEST = "journal.sqlite", "manifest.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupSummary:
    """What a backup has."""

    files: int
    size: Bytes
    runs: int


def back_up(home: Path, target: Path, *, checkpoints: bool = True) -> BackupSummary:
    """Write the backup ``target`` of the broker's folder ``home``. A broker may use the folder.

    Raises:
        DataError: a file can't be read or written; there is no new file.
        InputError: ``target`` exists, or is in ``home``.
    """
    if target.resolve().is_relative_to(home.resolve()):
        raise InputError(f"{target} is in the broker's folder, which may be lost: choose a place outside of {home}")
    if target.exists():
        raise InputError(f"{target} exists already: choose another name, or delete it first")
    temporary = target.with_name(f".{target.name}-{secrets.token_hex(4)}.part")
    try:
        with open(temporary, "xb", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
            with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as archive:
                summary = _write(archive, home, checkpoints=checkpoints)
            os.fsync(file.fileno())
        temporary.replace(target)
    except OSError as error:
        raise DataError(f"cannot write {target}: {error.strerror}; {remedy_of(error) or 'choose another folder'}") from None
    finally:
        temporary.unlink(missing_ok=True)
    return summary


def restore(source: Path, home: Path) -> BackupSummary:
    """Make the broker's folder ``home`` from the backup ``source``.

    Raises:
        InputError: there is something in ``home``, or ``source`` is no whole backup; nothing has changed.
        DataError: a file can't be written.
    """
    if not source.is_file():
        raise InputError(f"{source} is no file: name a file of farflung backup")
    if home.exists() and (not home.is_dir() or any(home.iterdir())):
        raise InputError(f"{home} is not empty: move it away, or choose another folder with --home")
    make_private_folder(home.parent)
    temporary = home.with_name(f".{home.name}-{secrets.token_hex(4)}.part")
    make_private_folder(temporary)
    try:
        with tarfile.open(source, "r:") as archive:
            for entry in archive:
                _extract(archive, entry, temporary)
        end = json.loads((temporary / _END).read_bytes())
        summary = BackupSummary(files=int(end["files"]), size=Bytes(end["size"]), runs=int(end["runs"]))
        (temporary / _END).unlink()
        if home.exists():
            home.rmdir()
        temporary.replace(home)
    except (tarfile.TarError, EOFError, KeyError, ValueError, TypeError, FileNotFoundError):
        why = "it is damaged or was cut off; make one with farflung backup"
        raise InputError(f"{source} is no whole backup of a broker: {why}") from None
    except OSError as error:
        raise DataError(f"cannot restore {home}: {error.strerror}; {remedy_of(error) or 'choose another folder'}") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return summary


def _extract(archive: tarfile.TarFile, entry: tarfile.TarInfo, folder: Path) -> None:
    """Write a file of a backup below ``folder``.

    ``TarFile.extractall(filter="data")`` is no option: Python 3.11.0 to 3.11.3 do not have it.

    Raises:
        ValueError: the entry is no file, or leads out of ``folder``.
    """
    place = PurePosixPath(entry.name)
    if not entry.isreg() or place.is_absolute() or ".." in place.parts:
        raise ValueError(entry.name)
    target = folder / place
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    data = archive.extractfile(entry)
    assert data is not None, "a regular file has data"
    with data, open(target, "xb", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
        shutil.copyfileobj(data, file)


def _write(archive: tarfile.TarFile, home: Path, *, checkpoints: bool) -> BackupSummary:
    files = [path for path in copied_files(home, checkpoints=checkpoints) if not path.is_symlink()]
    files.sort(key=lambda path: (path.name != _JOURNAL, path.parent, path.name == _MANIFEST, path.name))
    count = size = 0
    for path in files:
        try:
            size += _add(archive, path.relative_to(home).as_posix(), path)
        except FileNotFoundError:
            continue  # the broker has deleted an old checkpoint meanwhile
        count += 1
    runs = len({path.relative_to(home).parts[1] for path in files if path.relative_to(home).parts[0] == "runs"})
    end = {"files": count, "size": size, "runs": runs, "farflung": __version__}
    _add_bytes(archive, _END, json.dumps(end).encode())
    return BackupSummary(files=count, size=Bytes(size), runs=runs)


def _add(archive: tarfile.TarFile, name: str, path: Path) -> int:
    """Add the file ``path`` as it is now, although it may grow meanwhile; return its size."""
    if path.suffix == ".sqlite":
        data = database_bytes(path)
        _add_bytes(archive, name, data)
        return len(data)
    with path.open("rb") as file:
        entry = tarfile.TarInfo(name)
        found = os.fstat(file.fileno())
        entry.size, entry.mtime, entry.mode = found.st_size, int(found.st_mtime), 0o600
        archive.addfile(entry, file)
        return entry.size


def _add_bytes(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(data), 0o600
    archive.addfile(entry, io.BytesIO(data))
