"""One-time tokens and cookies of the dashboard.

Both are ``BODY.SIGNATURE``: base64 of a JSON list [purpose, role, id, expiry], and its HMAC-SHA-256. A token is signed with a
secret of this start of the server, a cookie with a key that outlives the server. So a used token never works again, and people
stay signed in when the server restarts.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
import threading
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from farflung.clock import wall_time
from farflung.errors import SecurityError
from farflung.units import Seconds

__all__ = ["Role", "Session", "SignIn", "make_token"]

TOKEN_SECONDS = Seconds(3600.0)
COOKIE_SECONDS = Seconds(7 * 86400.0)
_LONGEST = 1000
_REMEDY = "run farflung web on the broker's machine for a new link"


class Role(StrEnum):
    """``OWNER``: all rights of the broker's owner. ``VIEWER``: reads. ``TICKET``: the rights of a ticket that was pasted."""

    OWNER = "owner"
    VIEWER = "viewer"
    TICKET = "ticket"


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """A signed-in browser. ``expires``: Unix seconds."""

    role: Role
    session_id: str
    expires: float


def make_token(secret: bytes, role: Role = Role.OWNER, *, now: float | None = None, validity: Seconds = TOKEN_SECONDS) -> str:
    """Return a token that signs one browser in as ``role``, once, within ``validity``."""
    moment = wall_time() if now is None else now
    return _sign(secret, "token", Session(role=role, session_id=secrets.token_urlsafe(12), expires=moment + validity))


class SignIn:
    """Checks tokens and cookies. Any thread may call."""

    def __init__(self, secret: bytes, key: bytes, now: Callable[[], float] = wall_time) -> None:
        """``secret`` signs the tokens of this start; ``key`` signs cookies."""
        self._secret, self._key, self._now = secret, key, now
        self._lock = threading.Lock()
        #: Ids of used tokens -> when the token expires.
        self._used: dict[str, float] = {}
        #: Ids of sessions that were ended -> when their cookie expires.
        self._ended: dict[str, float] = {}

    def token(self, role: Role, validity: Seconds = TOKEN_SECONDS) -> str:
        """Return a new token for ``role``."""
        return make_token(self._secret, role, now=self._now(), validity=validity)

    def redeem(self, token: str) -> Session:
        """Return a new session for a token that was not used before.

        Raises:
            SecurityError: the token is wrong, expired or used.
        """
        found, now = _read(self._secret, "token", token), self._now()
        if found is None:
            raise SecurityError(f"this sign-in link is not of this dashboard, or the dashboard has restarted: {_REMEDY}")
        if found.expires <= now:
            raise SecurityError(f"this sign-in link has expired: {_REMEDY}")
        with self._lock:
            self._used = {one: expires for one, expires in self._used.items() if expires > now}
            if found.session_id in self._used:
                raise SecurityError(f"a sign-in link works once, and this link was used already: {_REMEDY}")
            self._used[found.session_id] = found.expires
        return self.begin(found.role)

    def begin(self, role: Role) -> Session:
        """Return a new session."""
        return Session(role=role, session_id=secrets.token_urlsafe(12), expires=self._now() + COOKIE_SECONDS)

    def cookie(self, session: Session) -> str:
        """Return the cookie of ``session``."""
        return _sign(self._key, "cookie", session)

    def session(self, cookie: str) -> Session | None:
        """Return the session of a cookie, ``None`` if the cookie is wrong, has expired, or its user has signed out."""
        found = _read(self._key, "cookie", cookie)
        return found if found is not None and found.expires > self._now() and found.session_id not in self._ended else None

    def end(self, session: Session) -> None:
        """The user of ``session`` signs out: until the next start of the server, its cookie is refused."""
        now = self._now()
        with self._lock:
            self._ended = {one: expires for one, expires in self._ended.items() if expires > now} | {
                session.session_id: session.expires
            }


def _sign(key: bytes, purpose: str, session: Session) -> str:
    body = json.dumps([purpose, session.role.value, session.session_id, int(session.expires)]).encode()
    return f"{_text(body)}.{_text(hmac.new(key, body, hashlib.sha256).digest())}"


def _read(key: bytes, purpose: str, text: str) -> Session | None:
    body, _, signature = text.partition(".")
    if len(text) > _LONGEST or not text.isascii():
        return None
    try:
        raw, given = _bytes(body), _bytes(signature)
    except ValueError:
        return None
    if not hmac.compare_digest(given, hmac.new(key, raw, hashlib.sha256).digest()):
        return None
    what, role, session_id, expires = json.loads(raw)  # signed, so it is what ``_sign`` made
    return Session(role=Role(role), session_id=session_id, expires=float(expires)) if what == purpose else None


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode("ascii").rstrip("=")


def _bytes(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
