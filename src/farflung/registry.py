"""Names to members: one registry for each room of interchangeable parts, open to plug-ins by entry points."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator
from importlib.metadata import entry_points
from typing import Generic, TypeVar

from farflung.errors import InputError

__all__ = ["Registry"]

T = TypeVar("T")


class Registry(Generic[T]):
    """Members of one kind by name.

    Built-in members are registered as ``name -> loader`` so that nothing is imported before it is asked for;
    installed packages add members under the entry-point group ``farflung.<group>``.
    """

    def __init__(self, kind: str, group: str) -> None:
        self._kind = kind
        self._group = f"farflung.{group}"
        self._loaders: dict[str, Callable[[], T]] = {}
        self._plugins_read = False

    def add(self, name: str, loader: Callable[[], T]) -> None:
        """Register ``loader`` under ``name`` (a second registration of a name is a programming error)."""
        if name in self._loaders:
            raise ValueError(f"{self._kind} {name!r} is registered twice")
        self._loaders[name] = loader

    def replace(self, name: str, loader: Callable[[], T]) -> None:
        """Put ``loader`` in the place of the member called ``name`` (emulations of devices do)."""
        if name not in self._loaders:
            raise ValueError(f"there is no {self._kind} {name!r} to replace")
        self._loaders[name] = loader

    def get(self, name: str) -> T:
        """The member called ``name``.

        Raises:
            InputError: nothing has that name; the text lists the known ones.
        """
        self._read_plugins()
        try:
            loader = self._loaders[name]
        except KeyError:
            close = difflib.get_close_matches(name, self._loaders, n=1)
            hint = f"did you mean {close[0]!r}? " if close else ""
            known = f"known are {', '.join(self)}" if self._loaders else "none is installed"
            raise InputError(f"unknown {self._kind} {name!r}: {hint}{known}") from None
        return loader()

    def remove(self, name: str) -> None:
        """Forget ``name`` (nothing happens where it is unknown)."""
        self._loaders.pop(name, None)

    def __iter__(self) -> Iterator[str]:
        self._read_plugins()
        return iter(sorted(self._loaders))

    def __contains__(self, name: object) -> bool:
        self._read_plugins()
        return name in self._loaders

    def _read_plugins(self) -> None:
        if self._plugins_read:
            return
        self._plugins_read = True
        for point in entry_points(group=self._group):
            self._loaders.setdefault(point.name, point.load)
