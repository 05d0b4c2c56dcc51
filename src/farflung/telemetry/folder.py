"""The run folder: which file holds what.

| file            | content                                                     | when it is written      |
| --------------- | ----------------------------------------------------------- | ----------------------- |
| job.json        | the job (``JobSpec``)                                       | before the first step   |
| graph.json      | the operator graph (``Graph.to_json``)                      | before the first step   |
| topology.json   | devices and links (``Topology.to_json``)                    | before the first step   |
| plan.json       | the newest plan (``Plan.to_json``)                          | before the first step   |
| metrics.jsonl   | a line per step, evaluation, recovery (``read_record``)       | as the run goes         |
| attempts.jsonl  | plan and topology of each attempt (``AttemptRecord``)         | when an attempt begins  |
| relayed.jsonl   | what each relay carried (``RelayedRecord``), if there was one | when a relay ends       |
| result.json     | how it ended (``RunResult``)                                | at the end              |
| run.log         | the log for people (``telemetry.log_file``)                 | as the run goes         |
| model/          | tokenizer and generation settings (``ModelFiles``)          | before the first step   |
| events/*.jsonl  | spans, a file for each process (``write_spans``)            | as the run goes         |

A folder without ``result.json`` belongs to a run that was cut short or still goes on.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from farflung.errors import DataError
from farflung.telemetry.attempt_record import AttemptRecord
from farflung.telemetry.records import Record, RelayedRecord, RunResult, committed, read_record
from farflung.telemetry.whole_lines import append_lines

__all__ = ["RunFolder", "newest_labels"]

#: A list of runs has at most so many.
_LISTED = 8


@dataclass(frozen=True, slots=True)
class RunFolder:
    """Paths inside the folder of one run, and the readers of the files that telemetry owns."""

    root: Path

    @property
    def job(self) -> Path:
        """``job.json``."""
        return self.root / "job.json"

    @property
    def label(self) -> str:
        """The name of the run with that of its job, for lists that people choose from."""
        try:
            return f"{self.root.name} ({json.loads(self.job.read_bytes())['name']})"
        except (OSError, ValueError, KeyError, TypeError):  # no run, or a damaged one
            return self.root.name

    @property
    def graph(self) -> Path:
        """``graph.json``."""
        return self.root / "graph.json"

    @property
    def topology(self) -> Path:
        """``topology.json``."""
        return self.root / "topology.json"

    @property
    def plan(self) -> Path:
        """``plan.json``."""
        return self.root / "plan.json"

    @property
    def metrics(self) -> Path:
        """``metrics.jsonl``."""
        return self.root / "metrics.jsonl"

    @property
    def result(self) -> Path:
        """``result.json``."""
        return self.root / "result.json"

    @property
    def events(self) -> Path:
        """The folder of the event files."""
        return self.root / "events"

    @property
    def relayed(self) -> Path:
        """``relayed.jsonl``."""
        return self.root / "relayed.jsonl"

    @property
    def attempts(self) -> Path:
        """``attempts.jsonl``."""
        return self.root / "attempts.jsonl"

    def append(self, record: Record | RelayedRecord | AttemptRecord) -> None:
        """Add a line to ``metrics.jsonl`` (of a relay: to ``relayed.jsonl``, of an attempt: to ``attempts.jsonl``).

        Raises:
            DataError: the file can't be written.
            DiskFull: there is no space; the file is as it was.
        """
        append_lines(self.file_of(record), record.to_line())

    def file_of(self, record: Record | RelayedRecord | AttemptRecord) -> Path:
        """The file to which ``record`` belongs."""
        return {RelayedRecord: self.relayed, AttemptRecord: self.attempts}.get(type(record), self.metrics)

    def read_relayed(self) -> list[RelayedRecord]:
        """What relays carried (nothing: there was none).

        Raises:
            DataError: the file is damaged.
        """
        return [RelayedRecord.from_line(line) for line in _lines(self.relayed)]

    def read_attempts(self) -> list[AttemptRecord]:
        """The attempts that have trained (nothing: an older version wrote the folder, or training has not begun).

        Raises:
            DataError: the file is damaged.
        """
        return [AttemptRecord.from_line(line) for line in _lines(self.attempts)]

    def records(self) -> Iterator[Record]:
        """The records of ``metrics.jsonl`` in order. A last line without its end was cut off and is left out.

        Raises:
            DataError: the file is missing, or a line is damaged (the text names it).
        """
        try:
            with self.metrics.open(encoding="utf-8", errors="replace") as file:
                for number, line in enumerate(file, start=1):
                    if not line.endswith("\n"):
                        return
                    yield from self._record(number, line)
        except OSError as error:
            raise DataError(f"cannot read {self.metrics}: {error.strerror}; is {self.root} the folder of a run?") from None

    def committed(self) -> list[Record]:
        """The records that count: without steps that were made again after a loss.

        Raises:
            DataError: as ``records``.
        """
        return committed(self.records())

    def _record(self, number: int, line: str) -> Iterator[Record]:
        try:
            record = read_record(line)
        except DataError as error:
            raise DataError(f"{self.metrics}, line {number}: {error}") from None
        if record is not None:
            yield record

    def read_result(self) -> RunResult | None:
        """How the run ended (None: cut short, or still going on).

        Raises:
            DataError: ``result.json`` is damaged.
        """
        try:
            text = self.result.read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(f"cannot read {self.result}: {error}; it is damaged or not readable by you") from None
        try:
            return RunResult.from_json(text)
        except DataError as error:
            raise DataError(f"{self.result}: {error}") from None


def newest_labels(runs: Path) -> str:
    """Return the newest runs in the folder ``runs``, with the names of their jobs, as text ("none": there are none)."""
    found = sorted((path for path in runs.glob("*") if path.is_dir()), key=_age)
    return ", ".join(RunFolder(run).label for run in found[-_LISTED:]) or "none"


def _age(run: Path) -> float:
    """Return when a run was submitted, in Unix seconds (0: that is unknown, as of one that was copied without its job)."""
    try:
        return RunFolder(run).job.stat().st_mtime
    except OSError:
        return 0.0


def _lines(path: Path) -> list[str]:
    """Return the whole lines of a file (none: there is no file). A last line without its end was cut off and is left out."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot read {path}: {error}") from None
    return text.split("\n")[:-1]
