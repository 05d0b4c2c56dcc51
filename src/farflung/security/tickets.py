"""Join tickets: one line that a person copies from the broker to a new machine.

``farflung1-`` and base32 in small letters (no sign that a shell or chat program would change) of: a msgpack list
[scope, addresses, fingerprint, id, secret, expiry] and the first four bytes of its SHA-256, so that a typing error is told
from a wrong ticket.
"""

from __future__ import annotations

import base64
import hashlib
import math
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import msgpack  # type: ignore[import-untyped]

from farflung.errors import SecurityError
from farflung.security.certificates import check_name
from farflung.security.pinning import split_address

__all__ = ["Ticket", "describe_time"]

_PREFIX = "farflung1-"
_MAX_TEXT = 2048
_CHECK = 4
_ALPHABET = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZ234567")
_REMEDY = "copy the whole line again, from 'farflung1-' to its end"


def describe_time(unix_time: float) -> str:
    """``2026-11-21 07:58 UTC``."""
    return datetime.fromtimestamp(unix_time, UTC).strftime("%Y-%m-%d %H:%M UTC")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticket:
    """The right to do ``scope`` ("join", "submit") at a broker until ``expires`` (Unix seconds).

    ``addresses`` are tried in order (``host:port``); ``fingerprint`` is the SHA-256 (32 bytes) of the broker's certificate.
    """

    scope: str
    addresses: tuple[str, ...]
    fingerprint: bytes
    ticket_id: str
    secret: bytes = field(repr=False)
    expires: float

    def __post_init__(self) -> None:
        check_name(self.scope, "ticket scope")
        check_name(self.ticket_id, "ticket id")
        if not self.addresses:
            raise SecurityError("a ticket must name at least one address of the broker (host:port)")
        for address in self.addresses:
            split_address(address)
        if len(self.fingerprint) != 32 or not 8 <= len(self.secret) <= 64 or not math.isfinite(self.expires):
            raise SecurityError("a ticket needs a fingerprint of 32 bytes, a secret of 8 to 64 bytes and a finite expiry time")

    def __str__(self) -> str:
        """The line to copy."""
        fields = [self.scope, list(self.addresses), self.fingerprint, self.ticket_id, self.secret, int(self.expires)]
        body = msgpack.packb(fields)
        return _PREFIX + base64.b32encode(body + _checksum(body)).decode("ascii").rstrip("=").lower()

    @classmethod
    def parse(cls, text: str) -> Ticket:
        """Read a ticket's line; blanks around and line breaks inside (from copying) are ignored.

        Raises:
            SecurityError: it is no ticket, of another version, cut or mistyped.
        """
        line = "".join(text.split())
        if not line.lower().startswith(_PREFIX):
            raise SecurityError(f"{_shorten(line)!r} is not a ticket: a ticket begins with '{_PREFIX}'; {_REMEDY}")
        if len(line) > _MAX_TEXT:
            raise SecurityError(f"a ticket has at most {_MAX_TEXT} signs, this text has {len(line)}; {_REMEDY}")
        code = line[len(_PREFIX) :].upper()
        try:
            raw = base64.b32decode(code + "=" * (-len(code) % 8))
        except ValueError as error:  # an impossible length, or a character outside the alphabet
            strange = next((sign for sign in code if sign not in _ALPHABET), None)
            what = f"a ticket cannot have {len(line)} characters" if strange is None else f"it contains {strange.lower()!r}"
            raise SecurityError(f"the ticket is mistyped or cut: {what}; {_REMEDY}") from error
        body, check = raw[:-_CHECK], raw[-_CHECK:]
        if len(raw) <= _CHECK or _checksum(body) != check:
            raise SecurityError(f"the ticket is mistyped or cut: its checksum is wrong; {_REMEDY}")
        return cls._from_fields(body)

    @classmethod
    def _from_fields(cls, body: bytes) -> Ticket:
        try:
            scope, addresses, fingerprint, ticket_id, secret, expires = msgpack.unpackb(body)
        except (ValueError, TypeError, msgpack.UnpackException) as error:
            raise SecurityError("the ticket's content is malformed; ask the broker's owner for a fresh one") from error
        kinds: list[tuple[Any, type]] = [(scope, str), (addresses, list), (fingerprint, bytes), (ticket_id, str), (secret, bytes)]
        if not all(isinstance(value, kind) for value, kind in [*kinds, (expires, int)]) or not all(
            isinstance(address, str) for address in addresses
        ):
            raise SecurityError("the ticket's content is malformed; ask the broker's owner for a fresh one")
        return cls(
            scope=scope,
            addresses=tuple(addresses),
            fingerprint=fingerprint,
            ticket_id=ticket_id,
            secret=secret,
            expires=float(expires),
        )

    def require_current(self, now: float) -> None:
        """Refuse an expired ticket before the broker is asked.

        Raises:
            SecurityError: ``now`` (Unix seconds) is past the expiry.
        """
        if now >= self.expires:
            raise SecurityError(f"the ticket expired at {describe_time(self.expires)}; ask the broker's owner for a fresh one")


def _checksum(body: bytes) -> bytes:
    return hashlib.sha256(body).digest()[:_CHECK]


def _shorten(text: str) -> str:
    return text if len(text) <= 24 else text[:24] + "..."
