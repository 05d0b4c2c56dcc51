"""The attempts of a run: which plan it trained by, and since when."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from farflung.errors import DataError

__all__ = ["AttemptRecord"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRecord:
    """Attempt ``number`` began to train at ``step``, ``elapsed`` seconds after the run did. ``plan``, ``topology``: documents."""

    number: int
    step: int
    elapsed: float
    plan: Mapping[str, Any]
    topology: Mapping[str, Any]

    def to_line(self) -> str:
        """One line of ``attempts.jsonl``."""
        body = {"attempt": self.number, "step": self.step, "elapsed": self.elapsed, "plan": self.plan, "topology": self.topology}
        return json.dumps(body, separators=(",", ":")) + "\n"

    @classmethod
    def from_line(cls, line: str) -> AttemptRecord:
        """Read what ``to_line`` wrote.

        Raises:
            DataError: it is something else.
        """
        try:
            body = json.loads(line)
            found = cls(
                number=int(body["attempt"]),
                step=int(body["step"]),
                elapsed=float(body["elapsed"]),
                plan=dict(body["plan"]),
                topology=dict(body["topology"]),
            )
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            raise DataError(f"this line about an attempt is damaged ({type(error).__name__}: {error}): {line[:60]!r}") from None
        return found
