"""Names to members: one registry for each room of interchangeable parts, open to plug-ins by entry points."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Generic, TypeVar

from farflung.errors import FarflungError, InputError
from farflung.foreign_code import translated
from farflung.known_names import known_names

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

__all__ = ["Registry"]

T = TypeVar("T")


class Registry(Generic[T]):
    """Members of one kind by name.

    Built-in members are registered as ``name -> loader`` so that nothing is imported before it is asked for;
    installed packages add members under the entry-point group ``farflung.<group>``. Iteration leaves out what can't be loaded.
    """

    def __init__(self, kind: str, group: str) -> None:
        self._kind = kind
        self._group = f"farflung.{group}"
        self._loaders: dict[str, Callable[[], T]] = {}
        self._plugins: dict[str, EntryPoint] = {}
        self._broken: set[str] = set()
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
            InputError: nothing has that name (the text lists the known ones), or its package can't be loaded.
        """
        self._read_plugins()
        try:
            loader = self._loaders[name]
        except KeyError:
            names = list(self)
            known = known_names(name, names) if names else "none is installed"
            raise InputError(f"unknown {self._kind} {name!r}: {known}") from None
        with self.blame(name, "can't be loaded"):
            with ExitStack() as failed:
                failed.callback(self._broken.add, name)
                member = loader()
                failed.pop_all()
            return member

    def brought_by(self, name: str) -> str | None:
        """The package (and its version) that brings ``name`` as a plug-in; None: the name is built in, or unknown."""
        self._read_plugins()
        point = self._plugins.get(name)
        if point is None:
            return None
        package = getattr(point, "dist", None)
        return f"{package.name} {package.version}" if package is not None else repr(point.value)

    @contextmanager
    def blame(self, name: str, what: str, kind: type[FarflungError] = InputError) -> Iterator[None]:
        """What the plug-in ``name`` raises inside comes out as an error of ``kind`` that says which plug-in of which package
        failed at ``what``; our own errors, and those of built-in members, stay as they are."""

        def describe(error: Exception) -> Exception:
            package = None if isinstance(error, FarflungError) else self.brought_by(name)
            if package is None:
                return error
            cause = " ".join(f"{type(error).__name__}: {error}".split())
            return kind(
                f"{self._kind} {name!r} of the package {package} {what}: {cause}; install what it lacks, or another version "
                f"of it, or take another {self._kind}"
            )

        with translated(describe):
            yield

    def remove(self, name: str) -> None:
        """Forget ``name`` (nothing happens where it is unknown)."""
        self._loaders.pop(name, None)
        self._plugins.pop(name, None)

    def forget_plugins(self) -> None:
        """Remove all plug-ins. The next question reads the installed ones again."""
        self._broken -= self._plugins.keys()
        for name in list(self._plugins):
            self.remove(name)
        self._plugins_read = False

    def __iter__(self) -> Iterator[str]:
        self._read_plugins()
        return iter(sorted(name for name in self._loaders if self._usable(name)))

    def __contains__(self, name: object) -> bool:
        self._read_plugins()
        return name in self._loaders

    def _read_plugins(self) -> None:
        if self._plugins_read:
            return
        self._plugins_read = True
        from importlib.metadata import entry_points  # here: most commands ask no registry, and the import takes 8 ms

        for point in entry_points(group=self._group):
            if point.name not in self._loaders:
                self._loaders[point.name], self._plugins[point.name] = point.load, point

    def _usable(self, name: str) -> bool:
        """False for plug-ins that could not be loaded, or whose module is not there; nothing is imported."""
        module = getattr(self._plugins.get(name), "module", None)
        if name in self._broken or module is None:
            return name not in self._broken
        try:
            return find_spec(module.partition(".")[0]) is not None
        except ValueError:  # a module without a spec is there
            return True
