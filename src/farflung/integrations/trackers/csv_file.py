"""CSV: ``metrics.csv`` with a row for each step, and ``texts.csv``."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path

from farflung.errors import DataError
from farflung.job.spec import ReportSpec
from farflung.tracking.base import TrackedRun
from farflung.tracking.values import VALUES

__all__ = ["CsvTracker"]

_STEP = "step"


class CsvTracker:
    """Writes a table with a column for each value. A value that is absent in a step is an empty cell."""

    def __init__(self, spec: ReportSpec) -> None:
        del spec
        self._columns = [_STEP, *VALUES]
        self._rows: list[dict[str, object]] = []
        self._texts: list[tuple[int, str, str]] = []
        self._metrics = self._text_file = Path()

    def begin(self, run: TrackedRun) -> Mapping[str, int]:
        """See ``Tracker``. A last row that a crash cut off is removed."""
        self._metrics, self._text_file = run.folder / "metrics.csv", run.folder / "texts.csv"
        try:
            run.folder.mkdir(parents=True, exist_ok=True)
            return self._stored()
        except OSError as error:
            raise DataError(f"cannot write {self._metrics}: {error.strerror}; free space or choose another folder") from None

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """See ``Tracker``."""
        self._rows.append({_STEP: step, **{name: repr(float(value)) for name, value in values.items()}})

    def text(self, step: int, name: str, text: str) -> None:
        """See ``Tracker``."""
        self._texts.append((step, name, text))

    def flush(self) -> None:
        """See ``Tracker``."""
        with self._metrics.open("a", newline="", encoding="utf-8") as file:
            csv.DictWriter(file, self._columns, extrasaction="ignore").writerows(self._rows)
        self._rows.clear()
        if self._texts:
            with self._text_file.open("a", newline="", encoding="utf-8") as file:
                csv.writer(file).writerows(self._texts)
            self._texts.clear()

    def end(self, status: str) -> None:
        """See ``Tracker``."""
        del status

    def _stored(self) -> dict[str, int]:
        if not self._metrics.exists():
            with self._metrics.open("w", newline="", encoding="utf-8") as file:
                csv.DictWriter(file, self._columns).writeheader()
            return {}
        data = self._metrics.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        if len(whole) < len(data):
            self._metrics.write_bytes(whole)
        found: dict[str, int] = {}
        for row in csv.DictReader(whole.decode("utf-8").splitlines()):
            for name, value in row.items():
                if value and name != _STEP:
                    found[name] = max(found.get(name, 0), int(row[_STEP]))
        return found
