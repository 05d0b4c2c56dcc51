"""Whether the standard output is the log of a service, which other people can read: no ticket and no link belongs there."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

__all__ = ["writes_to_a_service_log"]


def writes_to_a_service_log(variables: Mapping[str, str] = os.environ, process: int | None = None) -> bool:
    """Return whether the output goes to systemd's journal or to another log that a service manager or a container keeps.

    ``process``: this process's ID. The main process of a container has 1, and its output is the container's log. systemd gives
    the ID of the main process of a service, whose output may also be a file.
    """
    if sys.stdout.isatty():
        return False
    own = os.getpid() if process is None else process
    if own == 1 or variables.get("SYSTEMD_EXEC_PID") == str(own):
        return True
    device, _, inode = variables.get("JOURNAL_STREAM", "").partition(":")
    try:
        found = os.fstat(sys.stdout.fileno())
        return (found.st_dev, found.st_ino) == (int(device), int(inode))
    except (OSError, ValueError):
        return False
