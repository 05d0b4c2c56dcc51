"""The user's own folder on this machine, and the key in it by which brokers recognize the user."""

from __future__ import annotations

import os
from pathlib import Path

from farflung.security.certificates import kept_key

__all__ = ["home", "own_key"]


def home() -> Path:
    """``$FARFLUNG_HOME``, or ``~/.farflung``."""
    return Path(os.environ.get("FARFLUNG_HOME") or Path.home() / ".farflung")


def own_key() -> bytes:
    """This user's key, by which brokers know names and runs again; made at first use.

    Raises:
        InputError, SecurityError: as ``kept_key``.
    """
    return kept_key(home() / "member-key.pem")
