"""Progress of slow work: one live line with a spinner and the elapsed time on a terminal, plain lines elsewhere.

Commands show their phases with an ``Activity``. ``farflung.train`` shows its steps with a ``TrainingProgress``.
"""

from __future__ import annotations

import logging
import statistics
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text

from farflung.foreign_text import printable
from farflung.telemetry.records import StepRecord
from farflung.telemetry.terminal import terminal
from farflung.units import Seconds

__all__ = ["Activity", "TrainingProgress", "pace"]

_LOG = logging.getLogger("farflung")
#: Steps whose median is the pace.
_RECENT = 10


class Activity:
    """The phases of a slow task. A context manager; its live line disappears at the end, however the task ends.

    Without a terminal each phase is one line.
    """

    def __init__(self, console: Console | None = None, write: Callable[[str], None] | None = None) -> None:
        """``console``: where the live line is (default: standard error).

        ``write`` prints a whole line (default: on ``console``).
        """
        self._console = console or terminal(stderr=True)
        self._write = write or self._print
        self._live: Progress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.end()

    def phase(self, text: str, *, silent: bool = False) -> None:
        """Begin the next phase. ``text`` says what goes on (empty: nothing). ``silent``: no line without a terminal."""
        if not text:
            self.end()
        elif not self._console.is_terminal:
            if not silent:
                self._write(text)
        else:
            live = self._shown()
            if self._task is not None:
                live.remove_task(self._task)
            self._task = live.add_task(text, total=None)

    @property
    def on_terminal(self) -> bool:
        """Whether there is a live line."""
        return self._console.is_terminal

    def update(self, text: str) -> None:
        """Change the text of the live line. The elapsed time goes on; nothing happens without a terminal."""
        if self._live is not None and self._task is not None:
            self._live.update(self._task, description=text)

    def say(self, text: str) -> None:
        """Print a line that stays, above the live line."""
        self._write(text)

    def end(self) -> None:
        """Remove the live line."""
        live, self._live, self._task = self._live, None, None
        if live is not None:
            live.stop()

    def _shown(self) -> Progress:
        if self._live is None:
            columns = SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn()
            self._live = Progress(*columns, console=self._console, transient=True)
            self._live.start()
        return self._live

    def _print(self, text: str) -> None:
        self._console.print(Text(text), soft_wrap=True)


class TrainingProgress:
    """Show the steps of a training: on a terminal as a live line, else in the log ``farflung`` (level INFO), ten times.

    A context manager; the live line disappears at the end.
    """

    def __init__(self, steps: int, activity: Activity | None = None) -> None:
        """``steps``: of the whole training. ``activity``: where the steps are shown (default: on standard error)."""
        self._steps = steps
        self._activity = activity or Activity(write=_LOG.info)
        self._recent: list[float] = []
        self._tenth = 0
        self._activity.phase("capturing the model", silent=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._activity.end()

    def captured(self) -> None:
        """The model is a graph now, and the run begins, or has machines at last."""
        self._activity.phase("waiting for the first step", silent=True)

    def waiting(self, run: str, missing: int, busy: Sequence[str] = ()) -> None:
        """``run`` waits for ``missing`` more machines (0 or less: for its turn). ``busy``: runs of workers."""
        workers, others = f"worker{'s'[: missing != 1]}", " and ".join(dict.fromkeys(busy))
        text = f"waiting for {missing} more {workers}: add workers with farflung join"
        if 0 < missing <= len(busy):
            text = (
                f"waiting for {missing} {workers} busy with {others}: it starts when {'they are' if missing > 1 else 'it is'} "
                "free; to start it sooner, add workers with farflung join"
            )
        elif missing <= 0:
            text = "waiting for its turn, as other runs have the workers"
        self._activity.phase(f"{run}: {text}", silent=True)
        _LOG.log(
            logging.INFO if self._activity.on_terminal else logging.WARNING, "%s is %s, or end the run with Ctrl-C", run, text
        )

    def note(self, run: str, text: str) -> None:
        """Show a message about ``run`` that stays: a loss, a recovery, for what it waits."""
        _LOG.warning("%s: %s", run, printable(text))

    def interrupted(self, text: str = "training ends after the current step") -> None:
        """Ctrl-C was pressed. ``text`` says when the training ends."""
        text += "" if text.endswith(" now") else "; press Ctrl-C again to end it at once"
        self._activity.update(text)
        _LOG.log(logging.INFO if self._activity.on_terminal else logging.WARNING, "%s", text)

    def __call__(self, record: StepRecord) -> None:
        """Show ``record``."""
        self._recent = [*self._recent[1 - _RECENT :], record.seconds]
        line = "  ".join(pace(record, self._steps, statistics.median(self._recent)))
        self._activity.update(line)
        tenth = (record.step + 1) * 10 // max(self._steps, 1)
        if tenth > self._tenth:
            self._tenth = tenth
            _LOG.info("%s", line)


def pace(record: StepRecord, steps: int, usual: float) -> list[str]:
    """Return where a run of ``steps`` steps stands after ``record``, as parts of a line; ``usual``: seconds per step."""
    expected = f" (predicted {Seconds(record.predicted_seconds)})" if record.predicted_seconds else ""
    parts = [f"step {record.step + 1}/{steps}", f"loss {record.loss:.4f}", f"{Seconds(usual)}/step{expected}"]
    left = steps - record.step - 1
    return [*parts, f"{Seconds(usual * left)} left"] if left else parts
