"""Naming of the batch on which a computation fails."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from farflung.errors import DataError, FailedBatch, GraphError

__all__ = ["blaming"]


@contextmanager
def blaming(batch: FailedBatch) -> Iterator[None]:
    """Put ``batch`` into an error of the graph or the data that is raised inside, and before its text."""
    try:
        yield
    except (GraphError, DataError) as error:
        error.naming(batch)
        raise
