"""Calls of code that is not ours: models and recipes of users, plug-ins, libraries that raise anything."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["translated"]


@contextmanager
def translated(describe: Callable[[Exception], Exception]) -> Iterator[None]:
    """Raise ``describe(error)`` in place of an ``error`` of the block; ``describe`` may return ``error`` itself.

    Callers keep the block small: a defect of ours inside would be described as one of the foreign code.
    """
    try:
        yield
    except Exception as error:  # foreign code can raise anything, and each failure must become one clear line
        found = describe(error)
        if found is error:
            raise
        raise found from error
