"""The broker's logs: one of its own, and one for each run; what a name refers to in them, and how they are read.

| file | content |
| --- | --- |
| ``broker.log`` in the broker's folder | every line that the broker prints |
| ``watch.log`` in the run's folder | what the watchers of the run received (``watch_history``) |
| ``run.log`` in the run's folder | the lines about the run, notes of its workers, checkpoints, evaluations, now and then a step |
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from farflung.broker.records.watch_history import write_history
from farflung.errors import InputError
from farflung.messages.schema import Message
from farflung.messages.watching import CheckpointWritten, GeneratedText, Note, Planned, RecordLine
from farflung.telemetry.folder import newest_labels
from farflung.telemetry.log_file import LogPart, LogWriter, read_last, read_more
from farflung.telemetry.records import EvaluationRecord, StepRecord, read_record
from farflung.units import Seconds

__all__ = ["BrokerLog", "Log", "find_log", "run_log"]

_BROKER, _RUN = "broker.log", "run.log"
_OF_RUN = re.compile(r"run ([\w-]+): (.*)", re.DOTALL)
#: Seconds of training from one logged step to the next.
_STEP_SECONDS = 10.0
#: Of so many last lines a text that is both printed and sent to watchers is written once, whichever comes first.
_RECENT = 16


class BrokerLog:
    """Writes the logs. ``say`` and ``message`` may be called from any thread."""

    def __init__(self, home: Path, say: Callable[[str], None]) -> None:
        """``home``: the broker's folder. ``say`` shows a line to the person at this machine."""
        self._home, self._show = home, say
        self._writer = LogWriter()
        self._said: deque[tuple[str, str]] = deque(maxlen=_RECENT)
        self._noted: deque[tuple[str, str]] = deque(maxlen=_RECENT)
        self._logged: dict[str, float] = {}

    def say(self, line: str) -> None:
        """Show a line and log it; one that begins with ``run NAME:`` also belongs to the log of that run."""
        self._show(line)
        self._writer.write(self._home / _BROKER, line)
        if match := _OF_RUN.fullmatch(line):
            self._write_once(match[1], match[2], self._said, self._noted)

    def message(self, run: str, message: Message, records: int) -> None:
        """Log what watchers of ``run`` receive after ``records`` records."""
        write_history(self._writer, self._home / "runs" / run, message, records)
        match message:
            case Note(text=text):
                self._write_once(run, text, self._noted, self._said)
            case CheckpointWritten(step=step):
                self._write(run, f"checkpoint after step {step}")
            case GeneratedText(text=text):
                self._write(run, f"generated:\n{text}")
            case Planned(attempt=attempt, predicted=predicted):
                self._write(run, f"plan {attempt}: predicted step {Seconds(predicted)}")
            case RecordLine(line=line):
                self._record(run, line)

    def close(self) -> None:
        """Write what is left."""
        self._writer.close()

    def _write_once(self, run: str, text: str, own: deque[tuple[str, str]], other: deque[tuple[str, str]]) -> None:
        """Write ``text`` unless it came the other way; ``own``: the recent texts that came this way."""
        try:
            other.remove((run, text))
        except ValueError:
            own.append((run, text))
            self._write(run, text)

    def _record(self, run: str, line: str) -> None:
        record = read_record(line)
        if isinstance(record, EvaluationRecord):
            self._write(run, f"evaluation after step {record.step}: loss {record.loss:.4f}")
        elif isinstance(record, StepRecord):
            last = self._logged.get(run)
            if last is None or not last <= record.elapsed < last + _STEP_SECONDS:
                self._logged[run] = record.elapsed
                self._write(run, f"step {record.step + 1}: loss {record.loss:.4f}, {Seconds(record.seconds)}")

    def _write(self, run: str, text: str) -> None:
        self._writer.write(self._home / "runs" / run / _RUN, text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """A log file, and which of its lines are ``wanted``. ``run``: the folder of the run that it is about (None: of no run)."""

    path: Path
    run: Path | None = None
    wanted: Callable[[str], bool] = field(default=lambda line: True)

    def last(self, count: int) -> LogPart:
        """The last ``count`` lines."""
        return read_last(self.path, count, self.wanted)

    def more(self, position: int) -> LogPart:
        """What was added after ``position``."""
        return read_more(self.path, position, self.wanted)

    @property
    def over(self) -> bool:
        """Whether nothing will be added: the run has ended."""
        return self.run is not None and (self.run / "result.json").is_file()


def find_log(home: Path, name: str) -> Log:
    """The log of the run ``name``, what the broker has logged of the worker ``name``, or (empty name) all that it has logged.

    Raises:
        InputError: the broker knows neither; or the run is older than logs.
    """
    run, own = home / "runs" / name, home / _BROKER
    if not name:
        return Log(path=own)
    if run.is_dir() and run.parent == home / "runs":
        return run_log(run)
    mentions = re.compile(rf"(?<![\w-]){re.escape(name)}(?![\w-])")
    log = Log(path=own, wanted=lambda line: mentions.search(line) is not None)
    if not log.last(1).lines:
        known = newest_labels(home / "runs")
        raise InputError(f"the broker knows no run and no worker {name!r}: farflung status lists them; runs: {known}")
    return log


def run_log(folder: Path) -> Log:
    """The log of the run in ``folder``.

    Raises:
        InputError: there is none.
    """
    log = Log(path=folder / _RUN, run=folder)
    if not log.path.is_file():
        raise InputError(
            f"{folder} has no log ({_RUN}): it is not a run's folder, or an older version made it; try farflung report"
        )
    return log
