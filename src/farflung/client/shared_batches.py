"""Micro-batches from a function of the caller's, handed to every stage that reads a part of them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence

from farflung.engines.base import Array
from farflung.errors import DataError

__all__ = ["SharedBatches"]


class SharedBatches:
    """Calls ``batch(step, micro_batch)`` once for each micro-batch, in order, however many workers read it.

    ``batch`` returns every placeholder's array by name. ``readers``: how many workers ask for each micro-batch; after the last
    has asked, it is forgotten.
    """

    def __init__(self, batch: Callable[[int, int], Mapping[str, Array]], readers: int) -> None:
        self._batch = batch
        self._readers = readers
        self._lock = threading.Lock()
        self._kept: dict[tuple[int, int], tuple[Mapping[str, Array], int]] = {}

    def get(self, step: int, micro_batch: int, names: Sequence[str]) -> dict[str, Array]:
        """The arrays of ``names``.

        Raises:
            DataError: the function gave no array for a name.
        """
        with self._lock:
            key = (step, micro_batch)
            arrays, asked = self._kept.get(key) or (self._batch(step, micro_batch), 0)
            if asked + 1 < self._readers:
                self._kept[key] = (arrays, asked + 1)
            else:
                self._kept.pop(key, None)
        missing = [name for name in names if name not in arrays]
        if missing:
            raise DataError(f"the batch of step {step} has no {missing[0]!r}; it has {', '.join(arrays) or 'nothing'}")
        return {name: arrays[name] for name in names}
