"""Notifies the watchers of a run of slow devices and links and of silent workers, from reports that workers send anyway."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

from farflung.broker.links.table import LinkTable
from farflung.messages.conversions.link_reports import LinkReport
from farflung.protocol.straggler_detector import Slowdown, StragglerDetector
from farflung.telemetry.events import SpanKind
from farflung.telemetry.trace import Span

__all__ = ["StragglerMonitor"]

#: Runs whose baselines are stored.
_MOST = 32
#: Frames that follow one another within this time (seconds) are one train.
_NEXT = 1e-3


def _ignore(run: str, attempt: int, slowdown: Slowdown) -> None:
    del run, attempt, slowdown


class StragglerMonitor:
    """A straggler detector for each run. Any thread may call."""

    def __init__(
        self,
        notify: Callable[[str, str], None],
        links: LinkTable | None = None,
        slowed: Callable[[str, int, Slowdown], None] = _ignore,
    ) -> None:
        """``notify`` receives a run and a text for people. ``links``: the figures of links. ``slowed`` receives a run, the number
        of its plan, and a change of speed."""
        self._notify, self._slowed = notify, slowed
        self._links = links or LinkTable()
        self._lock = threading.Lock()
        #: run -> the number of its plan, and its detector
        self._detectors: dict[str, tuple[int, StragglerDetector]] = {}

    def step(self, run: str, attempt: int, name: str, busy: float) -> None:
        """The worker ``name`` computed for ``busy`` seconds in a step of plan number ``attempt``."""
        with self._lock:
            detector = self._detector(run, attempt)
            texts, slowdowns = [detector.step(name, busy)], detector.slowdowns()
        self._report(run, attempt, texts, slowdowns)

    def spans(
        self, run: str, attempt: int, name: str, spans: Sequence[Span], reports: Mapping[str, LinkReport] | None = None
    ) -> None:
        """The worker ``name`` sent ``spans``; ``reports``: the system's counts of its links, by peer."""
        with self._lock:
            detector = self._detector(run, attempt)
            for peer, counts in (reports or {}).items():
                detector.counted(name, peer, counts.beta, counts.least, counts.alpha)
            sent = [span for span in spans if span.what is SpanKind.SEND and span.peer and span.nbytes > 0]
            texts = []
            for peer in dict.fromkeys(span.peer for span in sent):
                figures = self._figures(name, peer)
                for seconds, nbytes in _trains(span for span in sent if span.peer == peer):
                    texts.append(detector.sent(name, peer, seconds, nbytes, figures))
            slowdowns = detector.slowdowns()
        self._report(run, attempt, texts, slowdowns)

    def silence(self, run: str, name: str, seconds: float, lease: float) -> None:
        """The worker ``name`` of ``run`` has been silent for ``seconds``."""
        with self._lock:
            found = self._detectors.get(run)
            texts = [] if found is None else [found[1].silence(name, seconds, lease)]
        self._report(run, 0, texts, ())

    def lost(self, name: str) -> None:
        """A worker is lost."""
        with self._lock:
            for _, detector in self._detectors.values():
                detector.lost(name)

    def slow(self, run: str) -> list[str]:
        """Return the devices and links (``a -> b``) of ``run`` that are slow now."""
        with self._lock:
            found = self._detectors.get(run)
            devices, links = found[1].slow if found is not None else ((), ())
        return [*devices, *(f"{source} -> {target}" for source, target in links)]

    def _figures(self, source: str, target: str) -> tuple[float, float] | None:
        """Return the round trip (seconds) and the rate of a direction; the acknowledgment counts, too."""
        known = self._links.get(source, target)
        return (2 * known.alpha, known.beta) if known is not None and known.beta > 0 else None

    def _detector(self, run: str, attempt: int) -> StragglerDetector:
        before, detector = self._detectors.get(run, (attempt, StragglerDetector()))
        if before != attempt:
            detector.begin()
        self._detectors[run] = (attempt, detector)
        if len(self._detectors) > _MOST:
            del self._detectors[next(iter(self._detectors))]
        return detector

    def _report(self, run: str, attempt: int, texts: Sequence[str], slowdowns: Sequence[Slowdown]) -> None:
        """Outside the lock: both callbacks may take other locks."""
        for text in filter(None, texts):
            self._notify(run, text)
        for slowdown in slowdowns:
            self._slowed(run, attempt, slowdown)


def _trains(spans: Iterable[Span]) -> Iterator[tuple[float, int]]:
    """Yield the seconds and bytes of each train: frames to one peer that were sent without a break.

    Frames of a train arrive shortly after one another, however slow the link is. Only the whole train takes the link's time.
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
