"""Which pairs of members hole punching connects, and behind which types of NAT members are."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from farflung.ids import Pair, pair_of
from farflung.nat_types import NatType, Way, way_between

__all__ = ["PunchedPairs"]

#: Pairs that try hole punching for one plan, those of one member, and attempts of a pair that may fail in a row.
_MOST_TRIED, _MOST_OF_MEMBER, _MOST_FAILURES = 200, 24, 2


class PunchedPairs:
    """The first member of a pair dials. Any thread may call."""

    def __init__(self) -> None:
        #: Guards all fields below: sessions report results while plans read them.
        self._lock = threading.Lock()
        #: Pairs that were told to try.
        self._allowed: set[Pair] = set()
        #: pair -> whether hole punching connects it, once that is known
        self._punched: dict[Pair, bool] = {}
        #: pair -> how often punching has failed since it succeeded
        self._failures: dict[Pair, int] = {}
        #: Types of NAT, as members describe them.
        self._types: dict[str, NatType] = {}

    def described(self, name: str, nat: NatType) -> None:
        """The member ``name`` says behind which type of NAT it is."""
        with self._lock:
            self._types[name] = nat

    def nat_of(self, name: str) -> NatType | None:
        """Return what ``name`` has described (None: nothing)."""
        with self._lock:
            return self._types.get(name)

    def begin(self, pairs: Sequence[Pair]) -> list[Pair]:
        """Return those of ``pairs`` whose result is not known, unless their NATs rule it out, and allow their attempts."""
        with self._lock:
            new: list[Pair] = []
            counts: Counter[str] = Counter()
            for pair in pairs:
                full = len(new) >= _MOST_TRIED or max(counts[name] for name in pair) >= _MOST_OF_MEMBER
                if not full and pair not in self._punched and not self._hopeless(pair):
                    new.append(pair)
                    counts.update(pair)
            self._allowed.update(new)
            return new

    def store(self, tried: Collection[Pair], answers: Mapping[Pair, bool]) -> None:
        """Store which of the pairs that have ``tried`` have connected. Without an answer in time, one has not, until it has."""
        with self._lock:
            found = dict.fromkeys(tried, False) | self._punched | dict(answers)
            self._punched = {pair: reached for pair, reached in found.items() if pair in self._allowed}  # else a member is lost

    def connects(self, a: str, b: str) -> bool:
        """Return whether hole punching connects ``a`` and ``b``."""
        with self._lock:
            return self._punched.get(pair_of(a, b), False)

    def among(self, names: Collection[str]) -> list[Pair]:
        """Return the pairs of ``names`` that hole punching connects."""
        with self._lock:
            return sorted(pair for pair, reached in self._punched.items() if reached and set(pair) <= set(names))

    def allows(self, name: str, peer: str) -> bool:
        """Return whether the broker has told ``name`` to reach ``peer`` by hole punching."""
        with self._lock:
            return (name, peer) in self._allowed

    def ended(self, name: str, peer: str, *, reached: bool) -> None:
        """An attempt that ``name`` wanted has ended. A pair that fails again and again gets a relay in the next plan, and one
        that connects again gets none."""
        with self._lock:
            if (name, peer) not in self._allowed:
                return
            failures = self._failures[name, peer] = 0 if reached else self._failures.get((name, peer), 0) + 1
            if reached or failures >= _MOST_FAILURES:
                self._punched[name, peer] = reached

    def forget(self, name: str) -> None:
        """Forget all about ``name``."""
        with self._lock:
            self._types.pop(name, None)
            self._allowed = {pair for pair in self._allowed if name not in pair}
            self._punched = {pair: reached for pair, reached in self._punched.items() if name not in pair}
            self._failures = {pair: count for pair, count in self._failures.items() if name not in pair}

    def _hopeless(self, pair: Pair) -> bool:
        """Whether the NATs of ``pair`` rule it out (under the lock)."""
        types = [self._types[name] for name in pair if name in self._types]
        return len(types) == len(pair) and way_between(types[0], types[1]) is Way.RELAY
