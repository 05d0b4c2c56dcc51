"""Hashes of checkpoint shares: the worker that computed a share hashes it, and so do its replicas.

The hashes come in the workers' sessions, the bytes in uploads. A share whose bytes have another hash was changed on its way, or
by a worker that lies. Replicas of a stage have the same states, bit by bit, so their hashes of its share are the same.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping

__all__ = ["ShareHashes"]

#: So many (attempt, step) of each worker are remembered.
_MOST = 8
#: Shares of others of which a worker's hashes are remembered.
_MOST_WITNESSES = 256

Key = tuple[int, int]


class ShareHashes:
    """Hashes by attempt and step. Any thread may call."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        #: worker -> (attempt, step) -> whose share -> hash. What one worker reports takes the place of no other's.
        self._known: dict[str, dict[Key, dict[str, str]]] = {}
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
            known = self._known.setdefault(worker, {})
            shares = known.setdefault(key, {})
            if len(shares) < _MOST_WITNESSES:
                shares[of] = sha256
            for old in sorted(known)[:-_MOST]:
                del known[old]
            self._changed.notify_all()

    def own(self, key: Key, worker: str, seconds: float, ended: Callable[[], bool] = lambda: False) -> str:
        """Return the hash that ``worker`` reports of its own share, after at most ``seconds`` (empty: none has come).

        ``ended``: whether the upload has ended; call ``poke`` when it does.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._of(key, worker, worker) or key[0] < self._attempt or ended(), seconds)
            return self._of(key, worker, worker)

    def liars(self, key: Key, of: str, alike: Mapping[str, object]) -> tuple[list[str], list[str]]:
        """Return who reports a wrong hash of the share of ``of``, and who is in a dispute that nobody decides.

        ``alike``: worker -> what its numbers depend on; only workers that equal ``of`` there have the same bits.
        """
        with self._changed:
            known = {worker: self._of(key, worker, of) for worker in self._known}
        known = {
            worker: sha256 for worker, sha256 in known.items() if sha256 and worker in alike and alike[worker] == alike.get(of)
        }
        if len(set(known.values())) < 2:
            return [], []
        (most, votes), *others = Counter(known.values()).most_common()
        wrong = sorted(worker for worker, sha256 in known.items() if sha256 != most)
        return (wrong, []) if votes > others[0][1] else ([], sorted(known))

    def _of(self, key: Key, worker: str, of: str) -> str:
        return self._known.get(worker, {}).get(key, {}).get(of, "")
