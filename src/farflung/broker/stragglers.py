"""Tells those who watch a run which device or link is slow, and who is silent, from what workers report anyway."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

from farflung.broker.links.table import LinkTable
from farflung.messages.link_reports import Told
from farflung.protocol.rhythm import Drift, Rhythm
from farflung.telemetry.events import SpanKind
from farflung.telemetry.trace import Span

__all__ = ["Watching"]

#: Runs whose rhythm is kept.
_MOST = 32
#: Frames that follow one another within so many seconds are one train.
_NEXT = 1e-3


class Watching:
    """The rhythms of the runs. Any thread may call."""

    def __init__(
        self,
        tell: Callable[[str, str], None],
        links: LinkTable | None = None,
        drifted: Callable[[str, int, Drift], None] = lambda run, attempt, drift: None,
    ) -> None:
        """``tell`` hears of a run and what is new of it; ``links``: what is known of them; ``drifted`` hears of a run, the number
        of its plan, and what of it drifts."""
        self._tell, self._drifted = tell, drifted
        self._links = links or LinkTable()
        self._lock = threading.Lock()
        self._rhythms: dict[str, tuple[int, Rhythm]] = {}

    def step(self, run: str, attempt: int, name: str, busy: float) -> None:
        """A worker reported a step of plan number ``attempt``."""
        with self._lock:
            rhythm = self._rhythm(run, attempt)
            said, drifts = [rhythm.step(name, busy)], rhythm.drifts()
        self._say(run, said)
        self._hear(run, attempt, drifts)

    def spans(self, run: str, attempt: int, name: str, spans: Sequence[Span], told: Mapping[str, Told] | None = None) -> None:
        """A worker told what it sent, and what the system's counts say of its links."""
        with self._lock:
            rhythm = self._rhythm(run, attempt)
            for peer, counts in (told or {}).items():
                rhythm.counted(name, peer, counts.beta, counts.least, counts.alpha)
            sent = [span for span in spans if span.what is SpanKind.SEND and span.peer and span.nbytes > 0]
            said = []
            for peer in dict.fromkeys(span.peer for span in sent):
                way = self._way(name, peer)
                for seconds, nbytes in _trains(span for span in sent if span.peer == peer):
                    said.append(rhythm.sent(name, peer, seconds, nbytes, way))
            drifts = rhythm.drifts()
        self._say(run, said)
        self._hear(run, attempt, drifts)

    def _way(self, source: str, target: str) -> tuple[float, float] | None:
        """What is known of a direction: the round trip, because the word that all has come counts, too, and the rate."""
        known = self._links.get(source, target)
        return (2 * known.alpha, known.beta) if known is not None and known.beta > 0 else None

    def silence(self, run: str, name: str, seconds: float, lease: float) -> None:
        """Nothing was heard for ``seconds`` of a worker of ``run``."""
        with self._lock:
            held = self._rhythms.get(run)
            said = [] if held is None else [held[1].silence(name, seconds, lease)]
        self._say(run, said)

    def gone(self, name: str) -> None:
        """A worker is lost."""
        with self._lock:
            for _, rhythm in self._rhythms.values():
                rhythm.gone(name)

    def slow(self, run: str) -> list[str]:
        """Devices and links (``a -> b``) of ``run`` that are slow now."""
        with self._lock:
            held = self._rhythms.get(run)
            devices, links = held[1].slow if held is not None else ((), ())
        return [*devices, *(f"{source} -> {target}" for source, target in links)]

    def _rhythm(self, run: str, attempt: int) -> Rhythm:
        before, rhythm = self._rhythms.get(run, (attempt, Rhythm()))
        if before != attempt:
            rhythm.begin()
        self._rhythms[run] = (attempt, rhythm)
        if len(self._rhythms) > _MOST:
            del self._rhythms[next(iter(self._rhythms))]
        return rhythm

    def _hear(self, run: str, attempt: int, drifts: Sequence[Drift]) -> None:
        for drift in drifts:
            self._drifted(run, attempt, drift)

    def _say(self, run: str, said: Sequence[str]) -> None:
        for text in said:
            if text:
                self._tell(run, text)


def _trains(spans: Iterable[Span]) -> Iterator[tuple[float, int]]:
    """Seconds and bytes of what one peer was sent without a break.

    Of frames that are under way together each one arrives a moment after the one before, however slow the link is; only all of
    them together take the time that the link takes.
    """
    ordered = sorted(spans, key=lambda span: span.start)
    if not ordered:
        return
    start, end, nbytes = ordered[0].start, ordered[0].end, ordered[0].nbytes
    for _, span in pairwise(ordered):
        if span.start > end + _NEXT:
            yield end - start, nbytes
            start, end, nbytes = span.start, span.end, 0
        end, nbytes = max(end, span.end), nbytes + span.nbytes
    yield end - start, nbytes
