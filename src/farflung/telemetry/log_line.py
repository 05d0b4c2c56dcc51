"""The two levels of the log of a broker or a worker: a plain string is for everybody, a ``Detail`` is for experts."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["Detail", "without_details"]


class Detail(str):
    """A line of a log that is printed with ``--verbose`` only."""

    __slots__ = ()


def without_details(say: Callable[[str], None]) -> Callable[[str], None]:
    """Return a function that passes lines to ``say``, and drops each ``Detail``."""

    def filtered(line: str) -> None:
        if not isinstance(line, Detail):
            say(line)

    return filtered
