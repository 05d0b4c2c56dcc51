"""Rates: how often something may happen, for each key. Times are seconds of any clock."""

from __future__ import annotations

import threading
from dataclasses import dataclass

__all__ = ["RateLimit"]

#: Keys that are remembered. The least recent ones are forgotten first.
_MOST_KEYS = 10_000


@dataclass(slots=True)
class _Bucket:
    left: float
    at: float


class RateLimit:
    """A token bucket for each key: ``per_minute`` at once, and as many again in each minute. Any thread may call."""

    def __init__(self, per_minute: float) -> None:
        self._per_minute = per_minute
        self._buckets: dict[str, _Bucket] = {}
        self._lock = threading.Lock()

    def take(self, key: str, now: float) -> float:
        """Take one for ``key``. Return 0.0, or, if there is none, the seconds after which there is one."""
        with self._lock:
            return self._take(key, now)

    def _take(self, key: str, now: float) -> float:
        bucket = self._buckets.pop(key, None) or _Bucket(self._per_minute, now)
        bucket.left = min(self._per_minute, bucket.left + max(now - bucket.at, 0.0) * self._per_minute / 60.0)
        bucket.at = now
        self._buckets[key] = bucket  # the most recent key comes last
        if len(self._buckets) > _MOST_KEYS:
            del self._buckets[next(iter(self._buckets))]
        if bucket.left < 1.0:
            return (1.0 - bucket.left) * 60.0 / self._per_minute
        bucket.left -= 1.0
        return 0.0
