"""The process that reports one run to one tracker: ``python -m farflung.tracking TRACKER FOLDER``; see ``processes``."""

from __future__ import annotations

import faulthandler
import os
import select
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from farflung.errors import FarflungError, InputError
from farflung.tracking.cursor import Cursor, TrackerBusy
from farflung.tracking.follower import RunFollower
from farflung.tracking.processes import FAILED, MOST_SECONDS, REFUSED
from farflung.tracking.registry import TRACKERS
from farflung.tracking.secrets import one_line

#: Training goes first.
_NICE = 10


def _wait(seconds: float) -> bool:
    """Wait for at most ``seconds``. Return whether the process that started this one asked for the end, or is dead."""
    return bool(select.select([sys.stdin], [], [], seconds)[0])


@contextmanager
def _guard() -> Iterator[None]:
    """End this process when the calls inside take too long, even while a library holds the interpreter."""
    faulthandler.dump_traceback_later(MOST_SECONDS, exit=True, file=sys.stderr)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


def main(name: str, folder: Path) -> int:
    """Report the run in ``folder`` to the tracker ``name``. Return the exit code; the cursor holds the cause of a failure."""
    os.nice(_NICE)
    refused = False
    try:
        RunFollower(folder, name, TRACKERS.get(name), guard=_guard).follow(_wait)
    except TrackerBusy as error:
        cause = one_line(error)
    except InputError as error:  # a missing library, or a setting that the tracker refuses: another try would end the same way
        cause, refused = one_line(error), True
    except Exception as error:  # noqa: BLE001 - trackers are foreign code, and the process that waits here gets one line
        cause = one_line(error)
    else:
        return 0
    cursor = Cursor.load(folder, name)
    cursor.trouble, cursor.refused = cause, refused
    with suppress(FarflungError):  # the disk is full: the exit code says that something failed
        cursor.save(folder, name)
    return REFUSED if refused else FAILED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2])))
