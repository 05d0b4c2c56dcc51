"""The log of a broker or worker on its terminal."""

from __future__ import annotations

from collections.abc import Callable

import typer

from farflung.clock import date_text
from farflung.telemetry.log_line import without_details

__all__ = ["timed_log"]


def timed_log(*, verbose: bool) -> Callable[[str], None]:
    """Return a function that prints a line with the time of day (``verbose``: also lines for experts)."""

    def write(line: str) -> None:
        typer.echo(f"{date_text('%H:%M:%S')} {line}")

    return write if verbose else without_details(write)
