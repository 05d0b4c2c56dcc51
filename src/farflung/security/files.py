"""Files that hold secrets: written whole or not at all, readable by their owner only."""

from __future__ import annotations

import errno
import os
import secrets
from pathlib import Path

from farflung.errors import DiskFull, InputError, SecurityError

__all__ = ["make_private_folder", "read_private", "write_private"]


def make_private_folder(folder: Path) -> None:
    """Make ``folder`` (and its parents) if it is missing; a new one is open to its owner only.

    Raises:
        InputError: it can't be made.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"cannot make the state folder {folder}: {error.strerror}; choose a folder that you may write"
        ) from error


def write_private(path: Path, content: bytes) -> None:
    """Write ``content`` under ``path`` with mode 0600; a crash leaves the old file or the new one, never a torn one.

    Raises:
        DiskFull: there is no space for it.
        SecurityError: the file can't be written.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)  # after the replacement there is no such file
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFull(f"cannot write {path}: {error.strerror}; free space on the disk") from error
        raise SecurityError(f"cannot write {path}: {error.strerror}; choose a folder that you may write") from error


def read_private(path: Path) -> bytes:
    """The content of ``path``, which nobody but its owner may read.

    Raises:
        SecurityError: the file can't be read, or its mode lets others read it.
    """
    try:
        mode = path.stat().st_mode & 0o777
        if mode & 0o077:
            raise SecurityError(f"{path} holds a secret, but its mode {mode:04o} lets others read it; run: chmod 600 {path}")
        return path.read_bytes()
    except OSError as error:
        raise SecurityError(f"cannot read {path}: {error.strerror}") from error
