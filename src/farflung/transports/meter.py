"""Counts traffic by peer."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass

from farflung.clock import Clock
from farflung.transports.base import LinkStatistics
from farflung.units import Seconds
from farflung.wire.frames import Frame, FrameLimits, encode_frame

__all__ = ["Meter", "frame_bytes"]


def frame_bytes(frame: Frame, limits: FrameLimits | None = None) -> int:
    """Bytes of ``frame`` on a wire (nothing is copied).

    Raises:
        WireError: the frame can't travel, or passes ``limits``.
    """
    if frame.nbytes and limits is None:
        return frame.nbytes  # it was received: the header need not be encoded again
    return sum(len(buffer) for buffer in encode_frame(frame, checksum=False, limits=limits))


@dataclass(slots=True)
class _Count:
    frames_sent: int = 0
    bytes_sent: int = 0
    frames_received: int = 0
    bytes_received: int = 0
    busy: float = 0.0
    pending: int = 0
    busy_since: float = 0.0


class Meter:
    """Thread-safe counters; ``begin`` and ``end`` frame the time during which something is on its way to a peer."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._counts: dict[str, _Count] = {}

    def begin(self, peer: str) -> None:
        """A frame to ``peer`` sets out."""
        with self._lock:
            count = self._counts.setdefault(peer, _Count())
            if count.pending == 0:
                count.busy_since = self._clock.now()
            count.pending += 1

    def end(self, peer: str, size: int, *, delivered: bool) -> None:
        """A frame of ``size`` bytes to ``peer`` was taken, or lost."""
        with self._lock:
            count = self._counts.setdefault(peer, _Count())
            count.pending -= 1
            if count.pending == 0:
                count.busy += self._clock.now() - count.busy_since
            if delivered:
                count.frames_sent += 1
                count.bytes_sent += size

    def received(self, peer: str, size: int) -> None:
        """A frame of ``size`` bytes came from ``peer``."""
        with self._lock:
            count = self._counts.setdefault(peer, _Count())
            count.frames_received += 1
            count.bytes_received += size

    @property
    def idle(self) -> bool:
        """Whether nothing is on its way."""
        with self._lock:
            return not any(count.pending for count in self._counts.values())

    def snapshot(self) -> Mapping[str, LinkStatistics]:
        """All counters at this moment, a running busy time included."""
        with self._lock:
            now = self._clock.now()
            return {
                peer: LinkStatistics(
                    frames_sent=count.frames_sent,
                    bytes_sent=count.bytes_sent,
                    frames_received=count.frames_received,
                    bytes_received=count.bytes_received,
                    busy_seconds=Seconds(count.busy + (now - count.busy_since if count.pending else 0.0)),
                )
                for peer, count in sorted(self._counts.items())
            }
