"""What the members of one ticket may do: how often they join and submit, how many runs they queue, how many names they take.

Calls at once are bounded, too: each takes a thread, and a caller may leave it waiting.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from farflung.broker.rate_limit import RateLimit
from farflung.clock import monotonic
from farflung.errors import InputError, SecurityError
from farflung.security import Caller

__all__ = ["Quotas", "TicketQuotas"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Quotas:
    """For each ticket: ``queued`` runs that wait for workers, ``submissions`` and ``joins`` a minute, and ``names``.

    ``calls``: of all clients of a ticket at once, and ``own_calls`` of one member.
    """

    queued: int = 100
    submissions: int = 120
    joins: int = 2000
    names: int = 5000
    calls: int = 512
    own_calls: int = 128


class TicketQuotas:
    """Refuses what goes beyond ``quotas``. Any thread may call."""

    def __init__(self, quotas: Quotas) -> None:
        self._quotas = quotas
        self._lock = threading.Lock()
        self._submissions, self._joins = RateLimit(quotas.submissions), RateLimit(quotas.joins)
        self._weights = RateLimit(quotas.submissions)

    def groups(self, caller: Caller, ticket_of: Callable[[str], str]) -> Mapping[str, int]:
        """Return the groups of ``caller``, as errors name them, each with the most calls at once. The broker's owner has none."""
        if caller.role == "owner":
            return {}
        found = {f"member {caller.name}": self._quotas.own_calls}
        if caller.role == "client":  # workers of one ticket may be thousands
            found[f"the clients of ticket {ticket_of(caller.name)}"] = self._quotas.calls
        return found

    def submit(self, ticket: str, queued: int) -> None:
        """A member of ``ticket``, whose members have ``queued`` runs in the queue, submits a run.

        Raises:
            InputError: there are too many, or it submits too often.
        """
        if queued >= self._quotas.queued:
            raise InputError(
                f"{queued} runs that were submitted with ticket {ticket} wait for workers, the most are {self._quotas.queued}: "
                "wait for one to end, or stop one (the broker's owner can start it with a larger --queue-limit)"
            )
        self._take(self._submissions, ticket, "submit")

    def send(self, ticket: str) -> None:
        """A member of ``ticket`` sends first weights for a run.

        Raises:
            InputError: its members do so too often.
        """
        self._take(self._weights, ticket, "send weights for")

    def _take(self, rate: RateLimit, ticket: str, what: str) -> None:
        with self._lock:
            seconds = rate.take(ticket, monotonic())
        if seconds:
            raise InputError(
                f"members of ticket {ticket} {what} at most {self._quotas.submissions} runs a minute: "
                f"try again in {math.ceil(seconds)} s"
            )

    def join(self, ticket: str, names: int) -> None:
        """A member joins with ``ticket``, whose members have ``names`` names; a new one would be one more.

        Raises:
            SecurityError: there are too many, or its members join too often.
        """
        if names >= self._quotas.names:
            raise SecurityError(
                f"{names} names were taken with ticket {ticket}, the most are {self._quotas.names}: join under one "
                "of them, or ask the broker's owner for a fresh ticket"
            )
        with self._lock:
            seconds = self._joins.take(ticket, monotonic())
        if seconds:
            raise SecurityError(
                f"members join with ticket {ticket} at most {self._quotas.joins} times a minute: "
                f"try again in {math.ceil(seconds)} s"
            )
