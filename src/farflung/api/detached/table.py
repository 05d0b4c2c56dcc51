"""The runs of a broker as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, overload

from farflung.foreign_text import printable
from farflung.units import Seconds

__all__ = ["RunStatus", "RunTable"]

_HEAD = ("run", "job", "state", "steps", "loss", "time", "cause")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStatus:
    """A run as the broker reports it. ``seconds``: of training. ``cause``: why it waits, or why it failed."""

    run: str
    job: str
    state: str
    step: int
    steps: int
    loss: float | None = None
    seconds: float = 0.0
    cause: str = ""
    folder: str = ""

    @classmethod
    def of(cls, status: Mapping[str, Any]) -> RunStatus:
        """Read an entry of the broker's status."""
        return cls(**{name: status[name] for name in cls.__dataclass_fields__})

    @property
    def over(self) -> bool:
        """Whether the run has ended."""
        return self.state in ("finished", "stopped", "failed")

    def cells(self) -> tuple[str, ...]:
        """A row of the table; the text of others has no control characters."""
        loss = "" if self.loss is None else f"{self.loss:.4f}"
        row = (self.run, self.job, self.state, f"{self.step}/{self.steps}", loss, str(Seconds(self.seconds)), self.cause)
        return tuple(map(printable, row))


class RunTable(Sequence[RunStatus]):
    """Runs, oldest first."""

    def __init__(self, runs: Sequence[RunStatus]) -> None:
        self._runs = tuple(runs)

    @overload
    def __getitem__(self, index: int) -> RunStatus: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[RunStatus]: ...

    def __getitem__(self, index: int | slice) -> RunStatus | Sequence[RunStatus]:
        return self._runs[index]

    def __len__(self) -> int:
        return len(self._runs)

    def __repr__(self) -> str:
        rows = [_HEAD, *(run.cells() for run in self)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows)

    def _repr_html_(self) -> str:  # notebooks call it
        return self.to_html()

    def to_html(self) -> str:
        """The table as HTML, as notebooks show it."""
        head = "".join(f"<th>{name}</th>" for name in _HEAD)
        rows = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in run.cells()) + "</tr>" for run in self)
        return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
