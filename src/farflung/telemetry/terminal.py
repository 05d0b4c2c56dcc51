"""Where commands draw: live on a terminal that can show it, as plain lines elsewhere."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from rich.console import Console

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["print_table", "terminal"]

#: Terminals that cannot move their cursor.
_DUMB = ("dumb", "unknown")
#: More columns than any table has.
_WIDEST = 100_000


def terminal(*, stderr: bool = False, plain: bool = False) -> Console:
    """Return the console of this process. ``is_terminal`` says whether something may be drawn live.

    Nothing is drawn into pipes, in continuous integration (``CI``), with ``NO_COLOR``, on a dumb terminal, or if ``plain``.
    """
    still = plain or os.environ.get("TERM", "").lower() in _DUMB
    still = still or bool(os.environ.get("NO_COLOR")) or os.environ.get("CI", "").lower() not in ("", "0", "false")
    return Console(stderr=stderr, force_terminal=False if still else None)


def print_table(table: Table) -> None:
    """Print ``table`` on standard output as wide as its content: nothing is cut. A narrow terminal wraps the lines."""
    console = Console()
    console.width = max(console.width, console.measure(table, options=console.options.update(max_width=_WIDEST)).maximum)
    console.print(table)
