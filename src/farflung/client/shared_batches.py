"""Micro-batches from a function of the caller, for every stage that reads a part of them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence

from farflung.engines.base import Array
from farflung.errors import DataError

__all__ = ["SharedBatches"]


class SharedBatches:
    """Calls ``batch(step, micro_batch)`` once for each micro-batch, in order, however many workers read it.

    ``batch`` returns every placeholder's array by name. ``readers``: how many workers read each one; the last frees it.
    """

    def __init__(self, batch: Callable[[int, int], Mapping[str, Array]], readers: int) -> None:
        self._batch = batch
        self._readers = readers
        self._lock = threading.Lock()
        self._stored: dict[tuple[int, int], tuple[Mapping[str, Array], int]] = {}

    def get(self, step: int, micro_batch: int, names: Sequence[str]) -> dict[str, Array]:
        """The arrays of ``names``.

        Raises:
            DataError: the function gave no array for a name.
        """
        with self._lock:
            key = (step, micro_batch)
            arrays, reads = self._stored.get(key) or (self._batch(step, micro_batch), 0)
            if reads + 1 < self._readers:
                self._stored[key] = (arrays, reads + 1)
            else:
                self._stored.pop(key, None)
        missing = [name for name in names if name not in arrays]
        if missing:
            raise DataError(f"the batch of step {step} has no {missing[0]!r}; it has {', '.join(arrays) or 'nothing'}")
        return {name: arrays[name] for name in names}
