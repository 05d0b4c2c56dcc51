"""Who can dial whom: the broker dials every worker that joins, and lets workers dial each other where doubt remains.

Two workers share a link if one of them can dial the other. A worker behind NAT or a firewall may accept connections from its own
network only. It may also be unable to dial a worker that the broker can dial. So before a plan is made, such a worker dials the
others, and they dial it. Pairs that nobody tested count as reachable. Two workers of which neither can dial the other try hole
punching (``hole_punching``), unless their NATs rule it out.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from itertools import combinations
from typing import Any

from farflung.broker.links.punched_pairs import PunchedPairs
from farflung.clock import monotonic
from farflung.cluster.relays import Pair, pair_of
from farflung.errors import FarflungError
from farflung.messages.commands import Reach
from farflung.messages.schema import Message
from farflung.nat_types import NatType
from farflung.protocol.members import Member
from farflung.thread_group import ThreadGroup
from farflung.transports.base import PUNCHED

__all__ = ["DIAL_SECONDS", "Dial", "Reachability"]

#: Seconds. A worker that does not accept the broker's connection in this time can't be dialled.
DIAL_SECONDS = 3.0
#: Seconds that workers have to answer.
_PATIENCE = 20.0
#: Seconds that ``close`` waits for dialling threads.
_END_SECONDS = 2 * DIAL_SECONDS

#: Dials a worker (name, address); raises a ``FarflungError`` if it can't be dialled.
Dial = Callable[[str, str], None]


class Reachability:
    """Results of dialling. Sessions of workers call ``answer``. Any thread may call."""

    def __init__(self, send: Callable[[str, Message], None], dial: Dial | None, patience: float = _PATIENCE) -> None:
        """``dial``: None if the broker does not dial; then every worker with an address counts as one that can be dialled."""
        self._send, self._dial, self._patience = send, dial, patience
        self._lock = threading.Lock()
        #: The threads "dial-NAME".
        self._threads = ThreadGroup()
        #: member -> whether the broker can dial it, at the address that it had last
        self._open: dict[str, Future[bool]] = {}
        #: (from, to) -> whether the one can dial the other
        self.known: dict[tuple[str, str], bool] = {}
        #: The same for the second addresses of members.
        self.known6: dict[tuple[str, str], bool] = {}
        self._second: dict[str, str] = {}
        #: What hole punching connects where nobody can dial.
        self.holes = PunchedPairs()
        #: question -> who was asked, and the answer
        self._waiting: dict[int, tuple[str, Future[Mapping[str, Any]]]] = {}
        self._questions = itertools.count(1)

    def joined(self, name: str, address: str, address6: str = "") -> None:
        """A worker has joined: forget earlier results, and dial it on a thread of its own. ``address6``: a second address."""
        found: Future[bool] = Future()
        with self._lock:
            self._forget(name)
            self._open[name] = found
            if address6:
                self._second[name] = address6
        if not address or self._dial is None:
            found.set_result(bool(address))
            return
        self._threads.spawn(f"dial-{name}", self._try, self._dial, name, address, found)

    def _forget(self, name: str) -> None:
        """Drop all results of ``name`` (under the lock)."""
        self._open.pop(name, None)
        self.holes.forget(name)
        self._second.pop(name, None)
        for found in (self.known, self.known6):
            for direction in [direction for direction in found if name in direction]:
                del found[direction]

    def lost(self, name: str) -> None:
        """Do not wait for ``name`` any more, and forget what is known of it."""
        with self._lock:
            self._forget(name)
            asked = [question for question, (one, _) in self._waiting.items() if one == name]
        for question in asked:
            self.answer(name, question, {})

    def close(self) -> None:
        """Stop waiting for workers, and join the threads that dial."""
        with self._lock:
            self._patience = 0.0  # later questions do not wait either
            asked = [(name, question) for question, (name, _) in self._waiting.items()]
        for name, question in asked:
            self.answer(name, question, {})
        self._threads.join(_END_SECONDS)

    def answer(self, name: str, question: int, found: Mapping[str, Any]) -> None:
        """``name`` answers the ``question``: ``found`` says which members it could dial (member -> whether)."""
        with self._lock:
            asked, waiting = self._waiting.get(question, ("", None))
            if asked != name or waiting is None:
                return  # too late, or from another worker
            del self._waiting[question]
        waiting.set_result(found)

    def dialable(self, name: str, patience: float = 0.0) -> bool:
        """Return whether the broker can dial ``name``, as far as is known after ``patience`` seconds."""
        with self._lock:
            found = self._open.get(name)
        if found is None:
            return True
        with suppress(TimeoutError):
            return found.result(patience)
        return False

    def can_dial(self, source: str, target: str) -> bool:
        """Return whether ``source`` can dial ``target``, as far as is known."""
        with self._lock:
            known = self.known.get((source, target))
        return self.dialable(target) if known is None else known

    def apart(self, members: Sequence[Member], among: Collection[Pair] | None = None) -> frozenset[Pair]:
        """Return the pairs of ``members`` that can't reach each other. Waits for workers where that is unknown.

        ``among``: test no other pairs (None: all).
        """
        closed = {member.name for member in members if not self.dialable(member.name, self._patience)}
        addresses = {member.name: member.address for member in members}
        routers = self._routers(addresses)
        if not (closed or routers):
            return frozenset()
        doubtful = [
            (a, b)
            for a, b in (combinations(addresses, 2) if among is None else sorted(among))
            if a in closed or b in closed or (a in routers and routers[a] == routers.get(b))
        ]
        self.ask([(a, b) if a in closed else (b, a) for a, b in doubtful], addresses)
        self.ask([(b, a) for a, b in doubtful if not self._reached(a, b)], addresses)
        self.ask([(a, b) for a, b in doubtful if not self._reached(a, b)], addresses)
        self._try_second([(a, b) for a, b in doubtful if not self._reached(a, b)])
        listening = [(a, b) for a, b in doubtful if addresses[a] and addresses[b]]  # the others accept no connections
        tried = self.holes.begin([pair_of(a, b) for a, b in listening if not self._reached(a, b)])
        self.holes.store(tried, self._answers([(pair, PUNCHED) for pair in tried]))
        return frozenset(pair_of(a, b) for a, b in doubtful if not self._reached(a, b))

    def nats(self, members: Sequence[Member]) -> Mapping[str, str]:
        """Return the NAT of each of ``members`` (empty: it can be dialled). Members that reach each other share a NAT."""
        names: dict[str, str] = {}
        for member in members:
            if self.dialable(member.name):
                names[member.name] = ""
                continue
            reached = [other for other, nat in names.items() if nat and self._reached(member.name, other)]
            names[member.name] = names[reached[0]] if reached else f"nat of {member.name}"
        return names

    def address_for(self, name: str, peer: str, address: str) -> str:
        """Return by which address ``name`` dials ``peer``, which listens at ``address`` (empty: ``name`` waits)."""
        if self.can_dial(name, peer):
            return address
        with self._lock:
            if self.known6.get((name, peer)):
                return self._second[peer]
        return PUNCHED if name < peer and self.holes.connects(name, peer) else ""

    def nat_of(self, name: str) -> NatType | None:
        """Return behind which type of NAT ``name`` is (None: not known)."""
        return self.holes.nat_of(name) or (NatType.NONE if self.dialable(name) else None)

    def _routers(self, addresses: Mapping[str, str]) -> dict[str, str]:
        """Return the router of each member whose address is a mapped port of one: its second address is a local one, with IPv4.

        Many routers do not lead what comes from inside back to the inside (hairpinning, RFC 4787 section 6).
        """
        with self._lock:
            mapped = {name for name in addresses if "." in self._second.get(name, "")}
        return {name: addresses[name].rpartition(":")[0] for name in mapped}

    def _try_second(self, pairs: Sequence[tuple[str, str]]) -> None:
        """Let ``pairs`` dial each other at their second addresses, one direction after the other."""
        for directions in (pairs, [(b, a) for a, b in pairs]):
            with self._lock:
                both = [way for way in directions if self._second.keys() >= set(way) and not self.known6.get(way[::-1])]
                places = {way: self._second[way[1]] for way in both if way not in self.known6}
            found = self._answers(list(places.items()))
            with self._lock:
                self.known6 |= {way: reached for way, reached in found.items() if way[1] in self._second}

    def _reached(self, a: str, b: str) -> bool:
        with self._lock:
            ways = [found.get(way, False) for found in (self.known, self.known6) for way in ((a, b), (b, a))]
            return any(ways) or self.holes.connects(a, b)

    def ask(self, directions: Sequence[tuple[str, str]], addresses: Mapping[str, str]) -> None:
        """Let the first of each direction dial the second, unless the result is known or the second has no address."""
        with self._lock:
            new = [direction for direction in directions if direction not in self.known]
            self.known |= {(source, target): False for source, target in new if not addresses[target]}
        found = self._answers([((source, target), addresses[target]) for source, target in new if addresses[target]])
        with self._lock:
            self.known |= found

    def _answers(self, directions: Sequence[tuple[tuple[str, str], str]]) -> dict[tuple[str, str], bool]:
        """Let members dial, each (source, target) at its address, and return what they answer in time."""
        asked: dict[str, dict[str, str]] = {}
        for (source, target), address in directions:
            asked.setdefault(source, {})[target] = address
        with self._lock:
            questions = {next(self._questions): name for name in asked}
            futures: dict[int, Future[Mapping[str, Any]]] = {question: Future() for question in questions}
            self._waiting |= {question: (name, futures[question]) for question, name in questions.items()}
        for question, name in questions.items():
            self._send(name, Reach(question=question, peers=asked[name], seconds=DIAL_SECONDS))
        answers: dict[tuple[str, str], bool] = {}
        until = monotonic() + self._patience  # of all: silent members must not add up
        for question, future in futures.items():
            found: Mapping[str, Any] = {}
            with suppress(TimeoutError):
                found = future.result(max(0.0, until - monotonic()))
            name = questions[question]
            with self._lock:
                self._waiting.pop(question, None)
            answers |= {(name, target): found[target] for target in asked[name] if target in found}
        return answers

    def _try(self, dial: Dial, name: str, address: str, found: Future[bool]) -> None:
        reached = False
        try:
            dial(name, address)
            reached = True
        except FarflungError:
            return  # ``dial`` has told the operator
        finally:
            found.set_result(reached)  # whatever happens: planning waits for it
