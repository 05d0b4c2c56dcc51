"""Probes over links of known rate, in virtual time."""

from __future__ import annotations

import pytest

from farflung.transports.base import LinkStatistics, Urgency
from farflung.units import Seconds
from farflung.wire.frames import Frame
from farflung.worker.links.link_probe import _usual_rate, probe_link


class Slow:
    """A link in virtual time: frames leave one after another at ``rate``, arrive ``latency`` later and are confirmed as late."""

    def __init__(self, latency: float, rate: float) -> None:
        self.latency, self.rate = latency, rate
        self.time = self.free = 0.0

    def now(self) -> float:
        return self.time

    def statistics(self) -> dict[str, LinkStatistics]:
        return {}

    def post(self, peer: str, frame: Frame, urgency: Urgency = Urgency.VALUES) -> Confirmed:
        self.free = max(self.free, self.time) + sum(len(section) for section in frame.sections) / self.rate
        return Confirmed(self, self.free + 2 * self.latency)


class Confirmed:
    """A future whose result takes virtual time."""

    def __init__(self, link: Slow, at: float) -> None:
        self._link, self._at = link, at

    def result(self, timeout: float = 1e9) -> None:
        if self._at > self._link.time + timeout:
            self._link.time += timeout
            raise TimeoutError
        self._link.time = max(self._link.time, self._at)


@pytest.mark.parametrize(("latency", "rate"), [(0.02, 1e6), (0.025, 12.5e6), (0.01, 125e6), (0.05, 62.5e6), (0.1, 1e5)])
def test_a_probe_finds_latency_and_rate(latency: float, rate: float) -> None:
    link = Slow(latency, rate)
    found = probe_link(link, "b", link.now)  # type: ignore[arg-type]
    assert found.alpha == pytest.approx(latency)
    assert found.beta == pytest.approx(rate, rel=0.05)
    assert link.time < 12.0


class HeldUp(Slow):
    """Programs answer 5 ms late; the system tells what it saw."""

    def statistics(self) -> dict[str, LinkStatistics]:
        return {"b": LinkStatistics(alpha=Seconds(self.latency - 0.005))}


def test_what_the_system_saw_counts_where_programs_answer_late() -> None:
    link = HeldUp(0.025, 12.5e6)
    assert probe_link(link, "b", link.now).alpha == pytest.approx(0.02)  # type: ignore[arg-type]


class Opening(Slow):
    """A link whose window opens for 6 s, and which tells what has arrived."""

    OPEN = 6.0

    def statistics(self) -> dict[str, LinkStatistics]:
        return {"b": LinkStatistics(confirmed=int(self._carried(self.time)))}

    def post(self, peer: str, frame: Frame, urgency: Urgency = Urgency.VALUES) -> Confirmed:
        self.sent = max(getattr(self, "sent", 0.0), self._carried(self.time)) + sum(len(section) for section in frame.sections)
        return Confirmed(self, self._when(self.sent) + 2 * self.latency)

    def _carried(self, time: float) -> float:
        """Bytes until ``time`` from rates that grow from nothing, if there is always something to send."""
        grown = min(time, self.OPEN)
        return self.rate * (grown * grown / 2 / self.OPEN + max(time - self.OPEN, 0.0))

    def _when(self, nbytes: float) -> float:
        half = self.rate * self.OPEN / 2
        return (2 * self.OPEN * nbytes / self.rate) ** 0.5 if nbytes < half else self.OPEN + (nbytes - half) / self.rate


def test_a_probe_waits_until_the_window_is_open() -> None:
    link = Opening(0.045, 6e6)
    assert probe_link(link, "b", link.now).beta == pytest.approx(6e6, rel=0.05)  # type: ignore[arg-type]
    assert link.time < 14.0


def test_the_usual_rate_is_that_of_undisturbed_time() -> None:
    """A link of 1 MB/s that carries half of it in every other second of ten."""
    marks, sent = [(0.0, 0)], 0.0
    for tick in range(1, 1001):
        sent += 1e4 if tick // 100 % 2 else 0.5e4
        marks.append((tick / 100, int(sent)))
    rate, spread = _usual_rate(marks, 0.5)
    assert rate == pytest.approx(1e6, rel=0.02)
    assert spread > 0.3
    steady = [(tick / 100, tick * 10_000) for tick in range(1000)]
    assert _usual_rate(steady, 0.5) == (pytest.approx(1e6, rel=1e-3), pytest.approx(0.0, abs=1e-3))
