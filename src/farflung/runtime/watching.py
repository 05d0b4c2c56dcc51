"""Tells those who watch a run which device or link is slow, and who is silent, from what workers report anyway."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from farflung.protocol.rhythm import Rhythm
from farflung.telemetry.events import SpanKind
from farflung.telemetry.trace import Span

__all__ = ["Watching"]

#: Runs whose rhythm is kept.
_MOST = 32


class Watching:
    """The rhythms of the runs. Any thread may call."""

    def __init__(self, tell: Callable[[str, str], None]) -> None:
        """``tell`` hears of a run and what is new of it."""
        self._tell = tell
        self._lock = threading.Lock()
        self._rhythms: dict[str, tuple[int, Rhythm]] = {}

    def step(self, run: str, attempt: int, name: str, busy: float) -> None:
        """A worker reported a step of plan number ``attempt``."""
        with self._lock:
            said = [self._rhythm(run, attempt).step(name, busy)]
        self._say(run, said)

    def spans(self, run: str, attempt: int, name: str, spans: Sequence[Span]) -> None:
        """A worker told what it sent."""
        with self._lock:
            rhythm = self._rhythm(run, attempt)
            sent = [span for span in spans if span.what is SpanKind.SEND and span.peer and span.nbytes > 0]
            said = [rhythm.sent(name, span.peer, span.seconds, span.nbytes) for span in sent]
        self._say(run, said)

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

    def _say(self, run: str, said: Sequence[str]) -> None:
        for text in said:
            if text:
                self._tell(run, text)
