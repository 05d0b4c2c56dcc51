"""Hashes of checkpoint shares: the worker that computed a share hashes it, and so do its replicas.

The hashes come in the workers' sessions, the bytes in uploads. A share whose bytes have another hash was changed on its way, or
by a worker that lies. Replicas of a stage have the same states, bit by bit, so their hashes of its share are the same.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping

__all__ = ["ShareHashes"]

#: Shares of so many (attempt, step) are remembered.
_MOST = 8
#: Workers whose hashes are remembered for one share.
_MOST_WITNESSES = 256

Key = tuple[int, int]


class ShareHashes:
    """Hashes by attempt and step. Any thread may call."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        #: (attempt, step) -> (worker, whose share) -> hash
        self._known: dict[Key, dict[tuple[str, str], str]] = {}
        #: Workers of earlier attempts report no hashes any more.
        self._attempt = 0

    def begin(self, attempt: int) -> None:
        """``attempt`` begins: nobody waits for hashes of earlier ones any more."""
        with self._changed:
            self._attempt = attempt
            self._changed.notify_all()

    def poke(self) -> None:
        """Make those who wait ask again whether their uploads have ended."""
        with self._changed:
            self._changed.notify_all()

    def report(self, key: Key, worker: str, of: str, sha256: str) -> None:
        """``worker`` reports the hash of the share of ``of``."""
        with self._changed:
            known = self._known.setdefault(key, {})
            if sum(name == worker for name, _ in known) < _MOST_WITNESSES:
                known[worker, of] = sha256
            for old in sorted(self._known)[:-_MOST]:
                del self._known[old]
            self._changed.notify_all()

    def own(self, key: Key, worker: str, seconds: float, ended: Callable[[], bool] = lambda: False) -> str:
        """Return the hash that ``worker`` reports of its own share, after at most ``seconds`` (empty: none has come).

        ``ended``: whether the upload has ended; call ``poke`` when it does.
        """
        with self._changed:
            self._changed.wait_for(
                lambda: (worker, worker) in self._known.get(key, {}) or key[0] < self._attempt or ended(), seconds
            )
            return self._known.get(key, {}).get((worker, worker), "")

    def liars(self, key: Key, of: str, alike: Mapping[str, object]) -> tuple[list[str], list[str]]:
        """Return who reports a wrong hash of the share of ``of``, and who is in a dispute that nobody decides.

        ``alike``: worker -> what its numbers depend on; only workers that equal ``of`` there have the same bits.
        """
        with self._changed:
            known = {worker: sha256 for (worker, share), sha256 in self._known.get(key, {}).items() if share == of}
        known = {worker: sha256 for worker, sha256 in known.items() if worker in alike and alike[worker] == alike.get(of)}
        if len(set(known.values())) < 2:
            return [], []
        (most, votes), *others = Counter(known.values()).most_common()
        wrong = sorted(worker for worker, sha256 in known.items() if sha256 != most)
        return (wrong, []) if votes > others[0][1] else ([], sorted(known))
