"""The log of a broker or worker on its terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable

from farflung.clock import date_text
from farflung.foreign_text import printable
from farflung.telemetry.log_line import without_details

__all__ = ["timed_log"]


def timed_log(*, verbose: bool) -> Callable[[str], None]:
    """Return a function that prints a line with the time of day (``verbose``: also lines for experts).

    Text of other machines neither controls the terminal nor looks like a line of its own.
    """

    def write(line: str) -> None:
        text = printable(line).replace("\n", "\n         ")
        # not typer.echo: while a live line is shown, ``sys.stdout`` prints above it
        sys.stdout.write(f"{date_text('%H:%M:%S')} {text}\n")
        sys.stdout.flush()

    return write if verbose else without_details(write)
