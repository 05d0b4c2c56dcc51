"""Who can dial whom: the broker dials every worker that joins, and asks workers about each other where that leaves a doubt.

Two workers share a link if one of them can dial the other. A worker that the broker can't dial (behind NAT or a firewall) may
still be dialled from its own network, and may find another one closed that the broker reaches; so before a plan is made, such
a worker is asked to dial the others, and they to dial it. What nobody asked about counts as reachable.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from itertools import combinations
from typing import Any

from farflung.cluster.relays import Pair, pair_of
from farflung.errors import FarflungError, WireError
from farflung.messages.fields import table, whole
from farflung.protocol.broker import Member
from farflung.wire.frames import Frame

__all__ = ["DIAL_SECONDS", "Reaching"]

#: A worker that does not answer the broker's dialling for so long can't be dialled.
DIAL_SECONDS = 3.0
_PATIENCE = 20.0

#: Dials a worker (name, address); raises a ``FarflungError`` if it can't be dialled.
Dial = Callable[[str, str], None]


class Reaching:
    """What is known of who can dial whom; ``answer`` is called by the workers' sessions. Thread-safe."""

    def __init__(self, send: Callable[[str, Frame], None], dial: Dial | None, patience: float = _PATIENCE) -> None:
        """``dial``: None if the broker shall not try, and takes every worker with an address for one that can be dialled."""
        self._send, self._dial, self._patience = send, dial, patience
        self._lock = threading.Lock()
        #: member -> whether the broker can dial it, at the address that it had last
        self._open: dict[str, Future[bool]] = {}
        #: (from, to) -> whether the one can dial the other
        self._known: dict[tuple[str, str], bool] = {}
        #: question -> who was asked, and the answer
        self._waiting: dict[int, tuple[str, Future[Mapping[str, Any]]]] = {}
        self._questions = itertools.count(1)

    def joined(self, name: str, address: str) -> None:
        """A worker is there: what was known of it is old, and it is dialled (on a thread of its own)."""
        found: Future[bool] = Future()
        with self._lock:
            self._open[name] = found
            for way in [way for way in self._known if name in way]:
                del self._known[way]
        if not address or self._dial is None:
            found.set_result(bool(address))
            return
        threading.Thread(target=self._try, args=(name, address, found), name=f"dial-{name}", daemon=True).start()

    def gone(self, name: str) -> None:
        """Do not wait for ``name``."""
        with self._lock:
            asked = [question for question, (one, _) in self._waiting.items() if one == name]
        for question in asked:
            self.answer(name, question, {})

    def answer(self, name: str, question: int, found: Mapping[str, Any]) -> None:
        """``name``, asked the ``question``, has tried to dial the members in ``found`` (member -> whether it could)."""
        with self._lock:
            asked, waiting = self._waiting.get(question, ("", None))
            if asked != name or waiting is None:
                return  # too late, or of somebody else
            del self._waiting[question]
        waiting.set_result(found)

    def dialable(self, name: str, patience: float = 0.0) -> bool:
        """Whether the broker can dial ``name``, as far as is known after ``patience`` seconds."""
        with self._lock:
            found = self._open.get(name)
        if found is None:
            return True
        with suppress(TimeoutError):
            return found.result(patience)
        return False

    def can_dial(self, source: str, target: str) -> bool:
        """Whether ``source`` can dial ``target``, as far as is known."""
        with self._lock:
            known = self._known.get((source, target))
        return self.dialable(target) if known is None else known

    def apart(self, members: Sequence[Member]) -> frozenset[Pair]:
        """The pairs of ``members`` that can't reach each other; workers are asked where nobody knows."""
        closed = {member.name for member in members if not self.dialable(member.name, self._patience)}
        if not closed:
            return frozenset()
        addresses = {member.name: member.address for member in members}
        doubtful = [(a, b) for a, b in combinations(addresses, 2) if a in closed or b in closed]
        self._ask([(a, b) if a in closed else (b, a) for a, b in doubtful], addresses)
        self._ask([(b, a) for a, b in doubtful if not self._reached(a, b)], addresses)
        self._ask([(a, b) for a, b in doubtful if not self._reached(a, b)], addresses)
        return frozenset(pair_of(a, b) for a, b in doubtful if not self._reached(a, b))

    def nats(self, members: Sequence[Member]) -> Mapping[str, str]:
        """The NAT of each of ``members``, as ``apart`` found it (empty: it can be dialled); who reach each other share one."""
        names: dict[str, str] = {}
        for member in members:
            if self.dialable(member.name):
                names[member.name] = ""
                continue
            mates = [other for other, nat in names.items() if nat and self._reached(member.name, other)]
            names[member.name] = names[mates[0]] if mates else f"nat of {member.name}"
        return names

    def _reached(self, a: str, b: str) -> bool:
        with self._lock:
            return self._known.get((a, b), False) or self._known.get((b, a), False)

    def _ask(self, ways: Sequence[tuple[str, str]], addresses: Mapping[str, str]) -> None:
        """Let the first of each way dial the second, if that is not known yet and the second has an address."""
        asked: dict[str, dict[str, str]] = {}
        with self._lock:
            for source, target in ways:
                if (source, target) in self._known:
                    continue
                if addresses[target]:
                    asked.setdefault(source, {})[target] = addresses[target]
                else:
                    self._known[source, target] = False
            questions = {next(self._questions): name for name in asked}
            futures: dict[int, Future[Mapping[str, Any]]] = {question: Future() for question in questions}
            self._waiting |= {question: (name, futures[question]) for question, name in questions.items()}
        for question, name in questions.items():
            self._send(name, Frame("reach", {"question": question, "peers": asked[name], "seconds": DIAL_SECONDS}))
        for question, future in futures.items():
            found: Mapping[str, Any] = {}
            with suppress(TimeoutError):
                found = future.result(self._patience)
            name = questions[question]
            with self._lock:
                self._waiting.pop(question, None)
                self._known |= {(name, target): found[target] for target in asked[name] if target in found}

    def _try(self, name: str, address: str, found: Future[bool]) -> None:
        assert self._dial is not None
        try:
            self._dial(name, address)
        except FarflungError:
            found.set_result(False)
        except Exception:  # noqa: BLE001 - a defect here must not make those wait who plan
            found.set_result(False)
        else:
            found.set_result(True)


def read_reached(header: Mapping[str, Any]) -> tuple[int, Mapping[str, Any]]:
    """A worker's answer: to which question, and what it reached.

    Raises:
        WireError: it is malformed.
    """
    found = table(header, "found")
    if not all(isinstance(value, bool) for value in found.values()):
        raise WireError("bad message: what was reached must be true or false")
    return whole(header, "question"), found
