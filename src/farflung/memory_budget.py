"""One budget of memory per process: transports, decoders, codecs and initializers reserve bytes before they take them.

What arrives from others takes memory before anybody knows whether it is of use. So the sum of all such buffers is counted, and
refused where it would exceed what the machine's owner offers. Memory of arrays counts until Python's collector has released it.
The process that computes an attempt has a budget of its own, of the same size, for states and their initializers.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from farflung.clock import monotonic
from farflung.errors import MemoryExceeded
from farflung.units import Bytes

__all__ = ["MemoryBudget"]

#: Seconds for which whoever decodes or encodes is held back until others release memory.
_HOLD = 10.0


class MemoryBudget:
    """Counts bytes in use, up to ``total`` (None: there is no limit). Any thread may call."""

    def __init__(self, total: int | None = None) -> None:
        self.total = total
        #: Reentrant: the collector may release memory on a thread that reserves some.
        self._changed = threading.Condition(threading.RLock())
        self._used = self._peak = 0

    @property
    def used(self) -> int:
        """Bytes in use."""
        return self._used

    @property
    def peak(self) -> int:
        """The most bytes that were in use at a time."""
        return self._peak

    def resize(self, total: int | None) -> None:
        """Allow ``total`` bytes from now on (None: no limit). What is in use stays in use; whoever waits is asked again."""
        with self._changed:
            self.total = total
            self._changed.notify_all()

    def reserve(self, nbytes: int, what: str, *, wait: float = 0.0) -> None:
        """Take ``nbytes`` for ``what``; ``release`` gives them back.

        ``wait``: seconds to wait for others to release memory, where whoever asks may be held back.

        Raises:
            MemoryExceeded: there is not enough, with the figures.
        """
        with self._changed:
            until = monotonic() + wait
            while not self._fits(nbytes) and nbytes <= (self.total or 0) and (left := until - monotonic()) > 0:
                self._changed.wait(left)
            if not self._fits(nbytes):
                raise MemoryExceeded(
                    f"{what} needs {Bytes(nbytes)}, and {Bytes(self._used)} of the {Bytes(self.total or 0)} that this process "
                    "may use are in use: offer more memory (--memory)"
                )
            self._used += nbytes
            self._peak = max(self._peak, self._used)

    def release(self, nbytes: int) -> None:
        """Give ``nbytes`` back."""
        with self._changed:
            self._used -= nbytes
            self._changed.notify_all()

    @contextmanager
    def reserved(self, nbytes: int, what: str, *, wait: float = _HOLD) -> Iterator[None]:
        """Reserve ``nbytes`` inside the block; ``wait`` as in ``reserve``.

        Raises:
            MemoryExceeded: as ``reserve``.
        """
        self.reserve(nbytes, what, wait=wait)
        try:
            yield
        finally:
            self.release(nbytes)

    @contextmanager
    def transferred(self, nbytes: int, what: str) -> Iterator[Callable[[object], None]]:
        """Reserve ``nbytes`` for an object that the block makes, and that it passes to the function given: they count with it.

        Raises:
            MemoryExceeded: as ``reserve``.
        """
        owners: list[object] = []
        self.reserve(nbytes, what, wait=_HOLD)
        try:
            yield owners.append
        finally:
            if owners:
                self.release_with(owners[0], nbytes)
            else:
                self.release(nbytes)

    def release_with(self, holder: object, nbytes: int) -> None:
        """Give ``nbytes`` back when ``holder``, whose memory was reserved, is collected."""
        weakref.finalize(holder, self.release, nbytes).atexit = False

    def _fits(self, nbytes: int) -> bool:
        return self.total is None or self._used + nbytes <= self.total
