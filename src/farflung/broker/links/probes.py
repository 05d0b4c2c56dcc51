"""Bandwidth probes of all links: who probes whom when. ``worker.link_probe`` measures one direction.

Where the fastest and the slowest fifth of a probe differ, the direction is probed again at the end, and its best figures stay.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from farflung.broker.links.table import LinkFigures, LinkTable
from farflung.errors import ConnectionLost, FarflungError
from farflung.messages.probes import Probe
from farflung.protocol.rounds import star_rounds, tournament
from farflung.wire.frames import Frame

__all__ = ["Probing"]

#: A device whose two links together carry less than this share of what they carry alone has a cap on all that it sends.
_CAPPED = 0.8
#: A probe whose windows differ by more than this share is repeated, so many times.
_UNSTEADY, _REPEATS = 0.05, 2
_PATIENCE = 60.0


#: What else a member (the first) must be told to reach another one: fields of a header.
Extra = Callable[[str, str], Mapping[str, Any]]


def _nothing(source: str, target: str) -> Mapping[str, Any]:
    del source, target
    return {}


class Probing:
    """The broker's side: asks workers to probe, round by round; ``answer`` is called by their sessions."""

    def __init__(self, send: Callable[[str, Frame], None], table: LinkTable) -> None:
        self._send, self.table = send, table
        self._one = threading.Lock()
        self._extra: Extra = _nothing
        self._guard = threading.Lock()
        self._waiting: dict[tuple[str, str], Future[Probe]] = {}
        #: Of the measurement that is going on: the best figures, and the spread of the newest probe.
        self._found: dict[tuple[str, str], LinkFigures] = {}
        self._spreads: dict[tuple[str, str], float] = {}

    def run(
        self, members: Sequence[tuple[str, str]], extra: Callable[[str, str], Mapping[str, Any]] = _nothing
    ) -> Iterator[Frame]:
        """Measure all links between ``members`` (name and address); frames tell what was found.

        Raises:
            FarflungError: another measurement is going on.
        """
        if not self._one.acquire(blocking=False):
            raise FarflungError("the links are being measured already; wait until that is over")
        self._found, self._spreads = {}, {}
        try:
            addresses, self._extra = dict(members), extra
            yield from self._rounds(addresses)
            for _ in range(_REPEATS):
                yield from self._again(addresses)
            yield from self._stars(addresses)
        finally:
            self._one.release()

    def answer(self, name: str, peer: str, found: Probe | FarflungError) -> None:
        """The worker ``name`` has probed its way to ``peer``."""
        with self._guard:
            waiting = self._waiting.pop((name, peer), None)
        if waiting is not None:
            if isinstance(found, Probe):
                waiting.set_result(found)
            else:
                waiting.set_exception(found)

    def asks(self, name: str) -> bool:
        """Whether ``name`` takes part in a probe now."""
        with self._guard:
            return any(name in way for way in self._waiting)

    def gone(self, name: str) -> None:
        """Do not wait for ``name``."""
        with self._guard:
            keys = [key for key in self._waiting if name in key]
        for source, target in keys:
            self.answer(source, target, ConnectionLost(f"worker {name} is gone"))

    def _rounds(self, addresses: dict[str, str]) -> Iterator[Frame]:
        rounds = tournament(list(addresses))
        for index, pairs in enumerate(rounds, start=1):
            yield Frame("round", {"number": index, "of": len(rounds), "pairs": [list(pair) for pair in pairs]})
            for ways in (pairs, [(b, a) for a, b in pairs]):
                asked = [(way, self._ask(*way, addresses)) for way in ways]
                for (source, target), future in asked:
                    yield self._keep(source, target, future)

    def _again(self, addresses: dict[str, str]) -> Iterator[Frame]:
        """Probe once more what was unsteady, as many disjoint directions at once as there are."""
        left = [way for way, spread in self._spreads.items() if spread > _UNSTEADY]
        while left:
            busy: set[str] = set()
            ways = []
            for way in left:
                if not busy & set(way):
                    ways.append(way)
                    busy |= set(way)
            left = [way for way in left if way not in ways]
            asked = [(way, self._ask(*way, addresses)) for way in ways]
            for (source, target), future in asked:
                found = self._keep(source, target, future)
                if found.kind == "link":
                    yield found

    def _keep(self, source: str, target: str, future: Future[Probe]) -> Frame:
        try:
            found = future.result(_PATIENCE)
        except (FarflungError, TimeoutError) as error:
            return Frame("unreachable", {"from": source, "to": target, "cause": str(error) or "no answer in time"})
        before = self._found.get((source, target), found)
        self._spreads[source, target] = found.spread
        best = LinkFigures(alpha=min(found.alpha, before.alpha), beta=max(found.beta, before.beta), relay=found.relay)
        self._found[source, target] = best
        self.table.put(source, target, best)
        through = {"relay": found.relay} if found.relay else {}
        return Frame("link", {"from": source, "to": target, "alpha": best.alpha, "beta": best.beta, **through})

    def _stars(self, addresses: dict[str, str]) -> Iterator[Frame]:
        """Two ways at once from each device: do they share an up-link?"""
        for triples in star_rounds(list(addresses)):
            asked = [(first, (b, c), [self._ask(first, other, addresses) for other in (b, c)]) for first, b, c in triples]
            for first, others, futures in asked:
                alone = [self.table.get(first, other) for other in others]
                shared = any(figures is not None and figures.relay for figures in alone)
                try:
                    together = sum(future.result(_PATIENCE).beta for future in futures)
                except (FarflungError, TimeoutError):
                    continue
                if shared:  # two ways that meet at a relay share the way to it: that says nothing of an up-link
                    self.table.put_uplink(first, None)
                    continue
                separately = sum(figures.beta for figures in alone if figures is not None)
                cap = together if None not in alone and together < _CAPPED * separately else None
                self.table.put_uplink(first, cap)
                if cap is not None:
                    yield Frame("uplink", {"name": first, "rate": cap})

    def _ask(self, source: str, target: str, addresses: dict[str, str]) -> Future[Probe]:
        future: Future[Probe] = Future()
        with self._guard:
            self._waiting[source, target] = future
        self._send(source, Frame("probe", {"peer": target, "address": addresses[target], **self._extra(source, target)}))
        return future
