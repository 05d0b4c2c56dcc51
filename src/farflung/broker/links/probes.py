"""Bandwidth probes of links: which worker probes which other one, and when. ``worker.links`` measures one direction.

A direction whose probe was unsteady (its fastest and slowest fifth differ) is probed again at the end. The best figures stay.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future

from farflung.broker.links.table import LinkFigures, LinkTable
from farflung.errors import ConnectionLost, FarflungError
from farflung.ids import Pair, pair_of
from farflung.messages import commands
from farflung.messages.calls import LinkFound, ProbeRound, Unreachable, UplinkFound
from farflung.messages.conversions.probes import Probe
from farflung.messages.schema import UNSET, Message
from farflung.protocol.probe_pairing import sampled_rounds, star_rounds, tournament

__all__ = ["LinkProbes", "sampled_pairs"]

#: A device whose two links together carry less than this share of what they carry alone has a cap on all that it sends.
_CAPPED = 0.8
#: A probe whose windows differ by more than this share is repeated, so many times.
_UNSTEADY, _REPEATS = 0.05, 2
#: Of so many members, all links are measured.
_FEW = 16
#: Seconds that a worker has for a probe.
_PATIENCE = 60.0

#: Makes the command, with the number of the question, by which the first member measures its link to the second one.
MakeProbe = Callable[[str, str, int], commands.Probe]

#: The number of a question, and its answer.
_Asked = tuple[int, Future[Probe]]


def sampled_pairs(regions: Mapping[str, str]) -> frozenset[Pair] | None:
    """Return the pairs that are measured of many members, whose ``regions`` are given by name (None: of few, all are)."""
    if len(regions) <= _FEW:
        return None
    return frozenset(pair_of(a, b) for found in sampled_rounds(regions) for a, b in found)


class LinkProbes:
    """Asks workers to probe, round by round. Sessions of workers call ``answer``. Any thread may call."""

    def __init__(self, send: Callable[[str, Message], None], table: LinkTable) -> None:
        self._send, self.table = send, table
        #: Held during a measurement: there is one at a time.
        self._one = threading.Lock()
        self._command: MakeProbe | None = None
        #: Guards ``_waiting``: answers come on the threads of sessions.
        self._guard = threading.Lock()
        #: question -> who measures the link to whom, and the answer
        self._waiting: dict[int, tuple[tuple[str, str], Future[Probe]]] = {}
        self._questions = itertools.count(1)
        #: Of the current measurement: the best figures, and the spread of the newest probe.
        self._found: dict[tuple[str, str], LinkFigures] = {}
        self._spreads: dict[tuple[str, str], float] = {}

    def run(
        self, members: Sequence[tuple[str, str]], command: MakeProbe | None = None, regions: Mapping[str, str] | None = None
    ) -> Iterator[Message]:
        """Measure the links between ``members`` (name and address), and yield the results as frames.

        All links of few members are measured. Of many members, samples of the links inside and between ``regions`` (name ->
        region, empty: unknown) are.

        Raises:
            FarflungError: another measurement is running.
        """
        if not self._one.acquire(blocking=False):
            raise FarflungError("the links are being measured already; wait until that is over")
        self._found, self._spreads = {}, {}
        try:
            addresses, self._command = dict(members), command
            sampled = regions is not None and len(addresses) > _FEW
            yield from self._rounds(sampled_rounds(regions) if sampled and regions else tournament(list(addresses)), addresses)
            for _ in range(_REPEATS):
                yield from self._again(addresses)
            yield from self._stars(addresses, self._partners() if sampled else None)
        finally:
            with self._guard:
                self._waiting.clear()  # a watcher may have left in the middle: nobody reads these answers
            self._one.release()

    def answer(self, name: str, question: int, found: Probe | FarflungError) -> None:
        """Take what the worker ``name`` answers to ``question``."""
        with self._guard:
            (asked, _), waiting = self._waiting.get(question, (("", ""), None))
            if asked != name or waiting is None:
                return  # too late, or from another worker
            del self._waiting[question]
        if isinstance(found, Probe):
            waiting.set_result(found)
        else:
            waiting.set_exception(found)

    def asks(self, name: str) -> bool:
        """Return whether ``name`` takes part in a probe now."""
        with self._guard:
            return any(name in direction for direction, _ in self._waiting.values())

    def lost(self, name: str) -> None:
        """Do not wait for ``name`` any more."""
        with self._guard:
            asked = [(source, number) for number, ((source, target), _) in self._waiting.items() if name in (source, target)]
        for source, question in asked:
            self.answer(source, question, ConnectionLost(f"worker {name} is gone"))

    def _rounds(self, rounds: Sequence[Sequence[tuple[str, str]]], addresses: dict[str, str]) -> Iterator[Message]:
        for index, pairs in enumerate(rounds, start=1):
            yield ProbeRound(number=index, of=len(rounds), pairs=tuple(pairs))
            for directions in (pairs, [(b, a) for a, b in pairs]):
                asked = [(one, self._ask(*one, addresses)) for one in directions]
                for (source, target), one in asked:
                    yield self._store(source, target, one)

    def _again(self, addresses: dict[str, str]) -> Iterator[Message]:
        """Probe unsteady directions once more, as many disjoint ones at once as there are."""
        left = [direction for direction, spread in self._spreads.items() if spread > _UNSTEADY]
        while left:
            busy: set[str] = set()
            disjoint = []
            for direction in left:
                if not busy & set(direction):
                    disjoint.append(direction)
                    busy |= set(direction)
            left = [direction for direction in left if direction not in disjoint]
            asked = [(direction, self._ask(*direction, addresses)) for direction in disjoint]
            for (source, target), one in asked:
                found = self._store(source, target, one)
                if isinstance(found, LinkFound):
                    yield found

    def _store(self, source: str, target: str, asked: _Asked) -> LinkFound | Unreachable:
        try:
            found = self._result(*asked)
        except (FarflungError, TimeoutError) as error:
            return Unreachable(source=source, to=target, cause=str(error) or "no answer in time")
        before = self._found.get((source, target), found)
        self._spreads[source, target] = found.spread
        best = LinkFigures(alpha=min(found.alpha, before.alpha), beta=max(found.beta, before.beta), relay=found.relay)
        self._found[source, target] = best
        self.table.put(source, target, best)
        return LinkFound(source=source, to=target, alpha=best.alpha, beta=best.beta, relay=found.relay or UNSET)

    def _partners(self) -> dict[str, list[str]]:
        """Return to whom each device has sent in this measurement."""
        found: dict[str, list[str]] = {}
        for source, target in self._found:
            found.setdefault(source, []).append(target)
        return found

    def _stars(self, addresses: dict[str, str], partners: Mapping[str, Sequence[str]] | None) -> Iterator[Message]:
        """Probe two directions at once from each device: do they share an up-link? ``partners``: to whom it may send."""
        for triples in star_rounds(list(addresses), partners):
            asked = [(first, (b, c), [self._ask(first, other, addresses) for other in (b, c)]) for first, b, c in triples]
            for first, others, two in asked:
                alone = [self.table.get(first, other) for other in others]
                shared = any(figures is not None and figures.relay for figures in alone)
                try:
                    results = [self._result(*one) for one in two]
                except (FarflungError, TimeoutError):
                    continue
                if shared:  # two routes through one relay share the path to it, which is no up-link
                    self.table.put_uplink(first, None)
                    continue
                together = sum(found.beta for found in results)
                separately = sum(figures.beta for figures in alone if figures is not None)
                cap = together if None not in alone and together < _CAPPED * separately else None
                self.table.put_uplink(first, cap)
                if cap is not None:
                    yield UplinkFound(name=first, rate=cap)

    def _result(self, question: int, future: Future[Probe]) -> Probe:
        """Wait for the answer to ``question``; a late answer finds nobody who waits.

        Raises:
            FarflungError: the probe failed.
            TimeoutError: there is no answer in time.
        """
        try:
            return future.result(_PATIENCE)
        finally:
            with self._guard:
                self._waiting.pop(question, None)

    def _ask(self, source: str, target: str, addresses: dict[str, str]) -> _Asked:
        asked: _Asked = next(self._questions), Future()
        with self._guard:
            self._waiting[asked[0]] = (source, target), asked[1]
        plain = commands.Probe(question=asked[0], peer=target, address=addresses[target])
        self._send(source, plain if self._command is None else self._command(source, target, asked[0]))
        return asked
