"""The columns of a run's metrics, read from ``metrics.jsonl`` as the file grows.

Each line is decoded once, by msgspec into the few fields that pages show: 10,000 steps of 64 machines are some 100 MB of text.
A recovery removes the steps that the run makes again; ``rewritten`` then counts up, and charts start anew.
"""

from __future__ import annotations

import math
from array import array
from collections import deque
from pathlib import Path

import msgspec

from farflung.errors import DataError
from farflung.telemetry.records import EvaluationRecord, RecoveryRecord, StepRecord, read_record

__all__ = ["COLUMNS", "RunSeries"]

#: One number for each step; NaN: unknown. ``clock``: seconds of training at the end of the step. ``error``: mean relative error
#: of the codecs. ``sent``: bytes on all links in the step. ``traffic``: bytes on all links from the first step
#: to the end of this one, without steps that a recovery removed.
COLUMNS = (
    "step", "loss", "learning_rate", "gradient_norm", "seconds", "predicted", "clock", "samples", "tokens", "sent", "traffic",
    "divergence", "error",
)  # fmt: skip
#: The newest steps, complete: for means of links and stages.
_RECENT = 20
#: Bytes that one call reads at most, so that one huge file does not delay the others.
_BLOCK = 32 << 20

_Figure = float | str | None


class _Use(msgspec.Struct):
    error: _Figure = None


class _Line(msgspec.Struct):
    """The fields of a step's line; ``telemetry.records.StepRecord`` writes it."""

    kind: str = ""
    step: int = 0
    loss: _Figure = None
    seconds: float = 0.0
    elapsed: float = 0.0
    samples: int = 0
    tokens: int = 0
    learning_rate: _Figure = None
    grad_norm: _Figure = None
    predicted_seconds: _Figure = None
    divergence: _Figure = None
    link_bytes: dict[str, int] = {}
    codecs: dict[str, _Use] = {}


_DECODER = msgspec.json.Decoder(_Line)


class RunSeries:
    """The metrics of one run. One thread reads; pages on the event loop only look."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._position = 0
        self._offset = self._elapsed = 0.0
        self.columns: dict[str, array[float]] = {name: array("d") for name in COLUMNS}
        self._known: set[str] = set()
        self.evaluations: list[EvaluationRecord] = []
        self.recoveries: list[RecoveryRecord] = []
        #: The lines of the newest steps; ``recent`` decodes them.
        self._recent: deque[bytes] = deque(maxlen=_RECENT)
        self._decoded: tuple[int, tuple[StepRecord, ...]] = (-1, ())
        self.rewritten = 0
        #: Lines that could not be read.
        self.damaged = 0

    def __len__(self) -> int:
        """How many steps count. Another thread may be adding the next row, of which the last column comes last."""
        return len(self.columns[COLUMNS[-1]])

    def known(self, column: str) -> bool:
        """Whether any step has a number in ``column``."""
        return column in self._known

    @property
    def latest(self) -> StepRecord | None:
        """The newest step, ``None`` before the first."""
        return self.recent[-1] if self.recent else None

    @property
    def recent(self) -> tuple[StepRecord, ...]:
        """The newest steps, complete."""
        position = self._position
        if self._decoded[0] != position:
            found = [read_record(line.decode("utf-8", "replace")) for line in self._recent]
            self._decoded = position, tuple(record for record in found if isinstance(record, StepRecord))
        return self._decoded[1]

    def read(self) -> bool:
        """Read what was added. Returns whether there is more to read at once.

        Raises:
            DataError: the file can't be read.
        """
        try:
            if self._path.stat().st_size < self._position:  # the file began anew
                self._restart()
            with self._path.open("rb") as file:
                file.seek(self._position)
                data = file.read(_BLOCK)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise DataError(f"cannot read {self._path}: {error.strerror}; check the rights of this user") from None
        end = data.rfind(b"\n") + 1
        for line in data[:end].split(b"\n"):
            if line:
                self._take(line)
        self._position += end
        return len(data) == _BLOCK and end > 0

    def _restart(self) -> None:
        self._position, self._offset, self._elapsed = 0, 0.0, 0.0
        self._cut(0)
        self.evaluations, self.recoveries = [], []

    def _take(self, line: bytes) -> None:
        try:
            found = _DECODER.decode(line)
            if found.kind == "step":
                self._step(found)
                self._recent.append(line)
                return
            record = read_record(line.decode("utf-8", "replace"))
        except (msgspec.MsgspecError, DataError):
            self.damaged += 1
            return
        if isinstance(record, EvaluationRecord):
            self.evaluations = [*self.evaluations, record]
        elif isinstance(record, RecoveryRecord):
            self._recover(record)

    def _step(self, line: _Line) -> None:
        if line.elapsed < self._elapsed:  # a resumed run counts from 0 again
            self._offset += self._elapsed
        self._elapsed = line.elapsed
        sent, before = float(sum(line.link_bytes.values())), self.columns["traffic"]
        errors = [value for value in (_number(use.error) for use in line.codecs.values()) if math.isfinite(value)]
        values = (
            line.step + 1.0,
            _number(line.loss),
            _number(line.learning_rate),
            _number(line.grad_norm),
            line.seconds,
            _number(line.predicted_seconds),
            self._offset + line.elapsed,
            float(line.samples),
            float(line.tokens),
            sent,
            sent + (before[-1] if before else 0.0),
            _number(line.divergence),
            sum(errors) / len(errors) if errors else math.nan,
        )
        for (name, column), value in zip(self.columns.items(), values, strict=True):
            column.append(value)
            if math.isfinite(value):
                self._known.add(name)

    def _recover(self, record: RecoveryRecord) -> None:
        steps = self.columns["step"]
        keep = len(steps)
        while keep and steps[keep - 1] > record.step:
            keep -= 1
        if keep < len(steps):
            self._cut(keep)
        self.evaluations = [one for one in self.evaluations if one.step < record.step]
        self.recoveries = [*self.recoveries, record]

    def _cut(self, keep: int) -> None:
        self.columns = {name: column[:keep] for name, column in self.columns.items()}
        self._known = {name for name, column in self.columns.items() if any(map(math.isfinite, column))}
        self._recent.clear()
        self.rewritten += 1


def _number(value: _Figure) -> float:
    return float(value) if isinstance(value, (int, float)) or value in ("nan", "inf", "-inf") else math.nan
