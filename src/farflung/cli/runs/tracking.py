"""``farflung report --to``: send runs to experiment trackers, afterwards or while they train."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from pathlib import Path

import typer

from farflung.errors import FarflungError, TrainingError
from farflung.tracking import TRACKERS, RunFollower, check_names
from farflung.tracking.cursor import tracker_folder
from farflung.tracking.follower import read_job
from farflung.tracking.secrets import one_line

__all__ = ["send_runs"]


def send_runs(folders: Iterable[Path], names: Sequence[str], *, follow: bool, offline: bool) -> None:
    """Send the runs in ``folders`` to the trackers ``names``; what they have already is left out.

    Raises:
        InputError: there is no such tracker, or its library is missing.
        TrainingError: a tracker fails.
    """
    check_names(tuple(names), "--to")
    for folder in folders:
        for name in names:
            spec = read_job(folder).report
            follower = RunFollower(
                folder, name, TRACKERS.get(name), spec=spec.model_copy(update={"offline": offline or spec.offline})
            )
            before = follower.cursor.train
            whole = _send(follower, name, follow=follow)
            found = follower.cursor
            text = f"steps {before + 1} to {found.train}" if found.train > before else "no new step"
            typer.echo(
                f"{folder.name}: {name} has {text}{'' if whole else '; the run is not over'} ({tracker_folder(folder, name)})"
            )


def _send(follower: RunFollower, name: str, *, follow: bool) -> bool:
    waiting = threading.Event()
    try:
        return follower.follow(waiting.wait if follow else lambda seconds: True)
    except FarflungError:
        raise
    except Exception as error:  # noqa: BLE001 - trackers are foreign code: the user gets one line
        raise TrainingError(
            f"the tracker {name!r} failed: {one_line(error)}; check its server and its settings in the environment, and try again"
        ) from None
