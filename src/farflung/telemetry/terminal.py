"""Where commands draw: live on a terminal that can show it, as plain lines elsewhere."""

from __future__ import annotations

import os

from rich.console import Console

__all__ = ["terminal"]

#: Terminals that cannot move their cursor.
_DUMB = ("dumb", "unknown")


def terminal(*, stderr: bool = False, plain: bool = False) -> Console:
    """Return the console of this process. ``is_terminal`` says whether something may be drawn live.

    Nothing is drawn into pipes, in continuous integration (``CI``), with ``NO_COLOR``, on a dumb terminal, or if ``plain``.
    """
    still = plain or os.environ.get("TERM", "").lower() in _DUMB
    still = still or bool(os.environ.get("NO_COLOR")) or os.environ.get("CI", "").lower() not in ("", "0", "false")
    return Console(stderr=stderr, force_terminal=False if still else None)
