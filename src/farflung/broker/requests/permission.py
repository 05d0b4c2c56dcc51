"""Who may call what."""

from __future__ import annotations

from farflung.errors import SecurityError
from farflung.security import Caller
from farflung.transports.rpc.calls import Call

__all__ = ["caller_of", "client_of"]


def caller_of(call: Call) -> Caller:
    """Return who calls; the server admits nobody without a certificate."""
    assert call.caller is not None
    return call.caller


def client_of(call: Call, what: str) -> Caller:
    """Return who calls.

    Raises:
        SecurityError: it is neither a client nor the broker's owner, so it may not do ``what``.
    """
    caller = caller_of(call)
    if caller.role not in ("client", "owner"):
        raise SecurityError(f"{caller.name!r} has no right to {what}: it joined as a {caller.role}; use a submit ticket")
    return caller
