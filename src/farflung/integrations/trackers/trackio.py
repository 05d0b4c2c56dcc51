"""trackio: a database of this user, with a dashboard on this machine (``trackio show``)."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from farflung.errors import InputError
from farflung.job.spec import ReportSpec
from farflung.tracking.base import TrackedRun

__all__ = ["TrackioTracker"]


class TrackioTracker:
    """One run of a trackio project."""

    def __init__(self, spec: ReportSpec) -> None:
        del spec
        self._run: Any = None

    def begin(self, run: TrackedRun) -> Mapping[str, int] | None:
        """See ``Tracker``."""
        try:
            import trackio
        except ImportError:
            raise InputError("the tracker 'trackio' needs the package trackio: pip install trackio") from None
        name = run.name if run.name.endswith(run.id.removeprefix("run-")) else f"{run.name}-{run.id}"  # names are keys there
        self._run = trackio.init(
            project=run.project,
            name=name,
            group=run.group or None,
            config=dict(run.settings),
            resume="allow",
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )
        with suppress(Exception):  # of another version, or on a server: then the cursor says what was reported
            from trackio.sqlite_storage import SQLiteStorage

            found = SQLiteStorage.get_max_step_for_run(run.project, name)
            return {} if found is None else {"train/loss": found, "eval/loss": found, "events/recoveries": found}
        return None

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """See ``Tracker``."""
        self._run.log(dict(values), step=step)

    def text(self, step: int, name: str, text: str) -> None:
        """See ``Tracker``."""
        import trackio

        self._run.log({name: trackio.Markdown(text)}, step=step)

    def flush(self) -> None:
        """See ``Tracker``. A thread of trackio stores the values within a second."""

    def end(self, status: str) -> None:
        """See ``Tracker``."""
        del status
        self._run.finish()
