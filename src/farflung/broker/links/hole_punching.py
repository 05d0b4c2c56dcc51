"""Attempts to connect two members behind NAT: the broker observes a port of both, and tells both when to dial (docs/nat.md).

A member dials only an address from which the broker itself had a connection with the token of this attempt. So no member can
direct another one at an address of its choice. Attempts are bounded in number, rate and time.
"""

from __future__ import annotations

import ipaddress
import itertools
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from farflung.broker.links.advertised_address import check_advertised
from farflung.broker.rate_limit import RateLimit
from farflung.clock import monotonic
from farflung.errors import InputError
from farflung.ids import pair_of
from farflung.messages.commands import Observe, Punch
from farflung.messages.schema import Message
from farflung.transports.punching.observation import new_token

__all__ = ["HolePunching"]

#: Attempts at once, and those of one member; seconds that one may take until both ends are observed; attempts of a pair in a
#: minute.
_MOST_AT_ONCE, _MOST_OF_MEMBER, _SECONDS, _PER_MINUTE = 512, 32, 6.0, 60.0


@dataclass(slots=True, eq=False)
class _Attempt:
    """``tokens``: token -> member. ``seen``: member -> the address that this broker saw."""

    number: int
    until: float
    tokens: dict[str, str]
    seen: dict[str, str] = field(default_factory=dict)


class HolePunching:
    """Sessions of workers call ``request``, the gates' threads call ``seen``. Any thread may call."""

    def __init__(
        self,
        send: Callable[[str, Message], None],
        allowed: Callable[[str, str], bool],
        same_host: Callable[[str, str], bool],
        now: Callable[[], float] = monotonic,
    ) -> None:
        """``allowed``: whether the first member may want a connection with the second one. ``same_host``: whether both are on one
        machine. ``send`` never waits."""
        self._send, self._allowed, self._same_host, self._now = send, allowed, same_host, now
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        #: token -> the attempt; each has two tokens
        self._attempts: dict[str, _Attempt] = {}
        self._rate = RateLimit(_PER_MINUTE)

    def request(self, name: str, peer: str) -> None:
        """``name`` wants a connection with ``peer``. What is not allowed, or too much, is ignored: its wait is bounded.

        A pair has one open attempt at most: the newest.
        """
        if not self._allowed(name, peer):
            return
        now = self._now()
        with self._lock:
            if self._rate.take(" ".join(pair_of(name, peer)), now):
                return
            self._forget(lambda attempt: now > attempt.until or set(attempt.tokens.values()) == {name, peer})
            busy = Counter(attempt.tokens[token] for token, attempt in self._attempts.items())
            if len(self._attempts) >= 2 * _MOST_AT_ONCE or max(busy[name], busy[peer]) >= _MOST_OF_MEMBER:
                return
            tokens = {new_token(): name, new_token(): peer}
            attempt = _Attempt(next(self._numbers), now + _SECONDS, tokens)
            self._attempts |= dict.fromkeys(tokens, attempt)
        others = {name: peer, peer: name}
        for token, member in tokens.items():
            self._send(member, Observe(number=attempt.number, peer=others[member], token=token, dials=member == name))

    def seen(self, token: str, place: str) -> None:
        """A connection with ``token`` came from ``place``. Once both ends were seen, both dial."""
        with self._lock:
            attempt = self._attempts.get(token)
            if attempt is None or self._now() > attempt.until or not _dialable(place):
                return
            attempt.seen.setdefault(attempt.tokens[token], place)
            if len(attempt.seen) < 2:
                return
            self._forget(lambda one: one is attempt)
        (one, near), (other, far) = attempt.seen.items()
        ends = [_ip(near), _ip(far)]
        if len({(end.version, end.is_global, end.is_private) for end in ends}) > 1:
            return  # one end shares a private or carrier's network with this broker, where the other would dial somebody else
        if any(end.is_loopback for end in ends) and not self._same_host(one, other):
            return  # both come through tunnels, and each would dial its own machine
        self._send(one, Punch(number=attempt.number, address=far))
        self._send(other, Punch(number=attempt.number, address=near))

    def lost(self, name: str) -> None:
        """The member ``name`` is lost."""
        with self._lock:
            self._forget(lambda attempt: name in attempt.tokens.values())

    def _forget(self, over: Callable[[_Attempt], bool]) -> None:
        """Drop attempts (under the lock)."""
        self._attempts = {token: attempt for token, attempt in self._attempts.items() if not over(attempt)}


def _dialable(place: str) -> bool:
    try:
        check_advertised(place, place)
    except InputError:
        return False
    return True


def _ip(place: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    return ipaddress.ip_address(place.rpartition(":")[0].strip("[]"))
