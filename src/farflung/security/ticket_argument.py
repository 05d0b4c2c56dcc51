"""A ticket as a user writes it: the ticket itself, or the file that contains it."""

from __future__ import annotations

from pathlib import Path

from farflung.errors import InputError
from farflung.security.files import read_private
from farflung.security.tickets import Ticket

__all__ = ["parse_ticket"]


def parse_ticket(text: str) -> Ticket:
    """Return the ticket ``text``, or the ticket in a file if ``text`` is ``@FILE`` or the path of a file.

    Raises:
        InputError: there is no such file.
        SecurityError: it is not a ticket.
    """
    file = _ticket_file(text)
    return Ticket.parse(text if file is None else read_private(file).decode("ascii", "replace").strip())


def _ticket_file(text: str) -> Path | None:
    if text.startswith("@"):
        if not (path := Path(text[1:]).expanduser()).is_file():
            raise InputError(f"there is no file {text[1:]!r} that could hold a ticket: check the path after @")
        return path
    return Path(text) if not text.startswith("farflung") and Path(text).is_file() else None
