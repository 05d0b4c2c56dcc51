"""The weights of a run at a broker, fetched when they are first used."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

from farflung.checkpoint import FetchedReader
from farflung.engines.base import Array

if TYPE_CHECKING:
    import torch

__all__ = ["FetchedWeights"]

Value = TypeVar("Value")


class FetchedWeights:
    """The states of the newest checkpoint. ``fetch`` returns its reader, and raises ``FarflungError``."""

    def __init__(self, fetch: Callable[[], FetchedReader]) -> None:
        self._fetch = fetch
        #: Arrays, and further names, by the first name of each state.
        self.states: Mapping[str, Array] = _Later(lambda: self._reader.read(self._reader.manifest.states))
        self.aliases: Mapping[str, Sequence[str]] = _Later(self._aliases)

    @cached_property
    def _reader(self) -> FetchedReader:
        return self._fetch()

    def _aliases(self) -> Mapping[str, Sequence[str]]:
        manifest = self._reader.manifest
        return {name: manifest.aliases.get(name, ()) for name in manifest.states}

    def state_dict(self) -> dict[str, Array]:
        """Return the arrays by all their names."""
        return {name: self.states[state] for state, others in self.aliases.items() for name in (state, *others)}

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return CPU tensors by all their names."""
        from farflung.engines.torch.trained_module import state_tensors

        return state_tensors(self.aliases, self.states)


class _Later(Mapping[str, Value]):
    """A mapping that is made when it is first read."""

    def __init__(self, make: Callable[[], Mapping[str, Value]]) -> None:
        self._make = make

    @cached_property
    def _made(self) -> Mapping[str, Value]:
        return self._make()

    def __getitem__(self, name: str) -> Value:
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._made)

    def __len__(self) -> int:
        return len(self._made)
