"""Calls of code that is not ours: models and recipes of users, plug-ins, libraries that raise anything."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from textwrap import shorten

__all__ = ["first_line", "translated"]

_LOG = logging.getLogger("farflung")
#: Characters of an error's text that are quoted.
_LONGEST = 300


@contextmanager
def translated(describe: Callable[[Exception], Exception], *, chained: bool = True) -> Iterator[None]:
    """Raise ``describe(error)`` in place of an ``error`` of the block; ``describe`` may return ``error`` itself.

    ``chained``: whether a traceback shows ``error``, too. Otherwise the log ``farflung`` has it at level DEBUG.

    Callers keep the block small: a defect of ours inside would be described as one of the foreign code.
    """
    try:
        yield
    except Exception as error:  # foreign code can raise anything, and each failure must become one clear line
        found = describe(error)
        if found is error:
            raise
        if chained:
            raise found from error
        _LOG.debug("%s", found, exc_info=error)
        raise found from None


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text that says something. A long line ends after a whole word, with dots."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return shorten(lines[0], _LONGEST, placeholder=" ...") if lines else type(error).__name__
