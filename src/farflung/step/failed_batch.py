"""The batch whose computation failed, as an error's text names it: between machines an error is its text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from farflung.errors import GraphError

__all__ = ["FailedBatch"]

_TRAINING = re.compile(r"\bstep (\d+), micro-batch (\d+): operator ")
_EVALUATION = re.compile(r"\bevaluation after step (\d+), batch (\d+): operator ")


@dataclass(frozen=True, slots=True)
class FailedBatch:
    """Micro-batch ``index`` of training step ``step``, or batch ``index`` of the evaluation after ``step`` steps."""

    step: int
    index: int
    evaluates: bool = False

    def __str__(self) -> str:
        if self.evaluates:
            return f"evaluation after step {self.step}, batch {self.index}"
        return f"step {self.step}, micro-batch {self.index}"

    @classmethod
    def find(cls, text: str) -> FailedBatch | None:
        """Return the batch that ``text`` names (None: the failed operator had no batch that is known)."""
        for pattern, evaluates in ((_TRAINING, False), (_EVALUATION, True)):
            if found := pattern.search(text):
                return cls(int(found[1]), int(found[2]), evaluates)
        return None

    @contextmanager
    def named(self) -> Iterator[None]:
        """Put this batch before the text of a ``GraphError`` that is raised inside."""
        try:
            yield
        except GraphError as error:
            error.args = (f"{self}: {error}",)
            raise
