"""Items that come in any order and leave in the order of their indices."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Generic, TypeVar

__all__ = ["InOrder"]

Item = TypeVar("Item")


class InOrder(Generic[Item]):
    """Returns items by ascending index, in whatever order they come: the order in which they are added up."""

    def __init__(self, indices: Sequence[int]) -> None:
        self._left = deque(sorted(indices))
        self._stored: dict[int, Item] = {}

    def put(self, index: int, item: Item) -> Iterator[tuple[int, Item]]:
        """Store ``item``, and yield all items that are next now."""
        assert index in self._left, f"slice {index} counts once"
        assert index not in self._stored, f"slice {index} counts once"
        self._stored[index] = item
        while self._left and self._left[0] in self._stored:
            first = self._left.popleft()
            yield first, self._stored.pop(first)

    @property
    def done(self) -> bool:
        """Whether all items were returned."""
        return not self._left
