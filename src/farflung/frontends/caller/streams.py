"""Batches of an iterable, which can only be read in order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from farflung.errors import DataError

__all__ = ["StreamedBatches"]


class StreamedBatches:
    """The batches of ``data`` by position. A position before the last one that was read begins ``data`` anew.

    At the end of ``data`` the next epoch begins. An iterator has one epoch.
    """

    def __init__(self, data: Iterable[Any]) -> None:
        self._data = data
        self._running: Iterator[Any] | None = None
        self._next = 0

    def __call__(self, position: int) -> Any:
        """The batch at ``position``, counted over all epochs.

        Raises:
            DataError: the data end before it, or cannot begin anew.
        """
        if position < self._next:
            self._again()
        while True:
            batch = self._read()
            self._next += 1
            if self._next > position:
                return batch

    def close(self) -> None:
        """End what the iterable has started."""
        self._running = None

    def _again(self) -> None:
        if isinstance(self._data, Iterator):
            raise DataError(
                "the data are an iterator, which cannot be read twice: pass an iterable, such as a DataLoader or a list"
            )
        self._running, self._next = None, 0

    def _read(self) -> Any:
        for _ in range(2):
            if self._running is None:
                self._running = iter(self._data)
            try:
                return next(self._running)
            except StopIteration:
                if isinstance(self._data, Iterator):
                    break
                self._running = None
        raise DataError(
            f"the data ended after {self._next} batches: pass fewer steps, or an iterable that can be read again, such as a "
            "DataLoader or a list"
            if self._next
            else "the data have no batch: pass at least one, or check the code that collects them"
        )
