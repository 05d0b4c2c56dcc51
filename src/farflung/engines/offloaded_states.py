"""The optimizer states of a stage on a disk.

An update takes one parameter after the other. While one is updated, a thread writes the states of the one before, and reads those
of the next one (as ZeRO-Infinity does: Rajbhandari et al. 2021, section 5). Each parameter has an optimizer of its own, whose
arithmetic is that of an optimizer of all parameters, so results have the same bits.
Cost: each update reads and writes all states once. Memory: at most three times the states of the largest parameter.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Protocol

import numpy as np

from farflung.engines.base import Array
from farflung.engines.state_file import StateFile
from farflung.errors import CheckpointError

__all__ = ["OffloadedStates", "SingleOptimizer"]

#: Arrays with fewer bytes stay in memory.
_LEAST = 64 << 10


class SingleOptimizer(Protocol):
    """The optimizer of one parameter."""

    def export(self, *, copy: bool = True) -> dict[str, Array]:
        """``<slot>/<parameter>`` -> value."""

    def load(self, states: Mapping[str, Array]) -> None:
        """Set what ``export`` gave; nothing: the parameter starts afresh."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Where an array lies; ``axes``: of its shape, in the order of memory."""

    offset: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    axes: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.shape)) * self.dtype.itemsize


class OffloadedStates:
    """The states of several parameters, which are in ``file`` between updates. One thread at a time may call."""

    def __init__(self, file: StateFile, optimizers: Mapping[str, SingleOptimizer]) -> None:
        """``optimizers``: by parameter, without states."""
        self._file, self._optimizers = file, dict(optimizers)
        #: Parameter -> key of an array -> where it is: in the file, or (a small one) in memory.
        self._places: dict[str, dict[str, _Place | Array]] = {}
        #: Key of an array -> offset and bytes of its space in the file, which stays its own when the parameter starts afresh.
        self._space: dict[str, tuple[int, int]] = {}

    def update(self, names: Sequence[str], step: Callable[[str], None]) -> None:
        """Call ``step`` for each of the parameters ``names``, while its optimizer has its states.

        Raises:
            TrainingError: the disk fails.
        """
        written: Future[None] | None = None
        with ThreadPoolExecutor(max_workers=1, thread_name_prefix="offload") as disk:
            ahead = [self._read_ahead(disk, name) for name in names[:1]]
            for name, following in zip_longest(names, names[1:]):
                optimizer = self._optimizers[name]
                optimizer.load(ahead.pop().result())
                if following is not None:
                    ahead.append(self._read_ahead(disk, following))
                step(name)
                found = optimizer.export(copy=False)
                optimizer.load({})  # the arrays stay until they are written
                if written is not None:
                    written.result()
                written = disk.submit(self._write, name, found)
                del found
            if written is not None:
                written.result()

    def export(self, names: Collection[str] | None = None, *, copy: bool = True) -> dict[str, Array]:
        """``<slot>/<parameter>`` -> value of the parameters ``names`` (None: all).

        Raises:
            TrainingError: the disk fails.
        """
        del copy
        chosen = [name for name in self._optimizers if names is None or name in names]
        return {key: array for name in chosen for key, array in self._read(name, self._room(name)).items()}

    def load(self, states: Mapping[str, Array], *, more: bool = False) -> None:
        """Set what ``export`` gave. Parameters without an entry start afresh, or (``more``) stay as they are.

        Raises:
            CheckpointError: an entry's parameter or shape does not fit this stage.
            TrainingError: the disk fails.
        """
        given: dict[str, dict[str, Array]] = {}
        for key, array in states.items():
            name = key.partition("/")[2]
            if name not in self._optimizers:
                raise CheckpointError(f"optimizer state {key!r} belongs to no trained parameter of this stage")
            given.setdefault(name, {})[key] = array
        for name, slots in given.items():
            optimizer = self._optimizers[name]
            optimizer.load(slots)  # it checks them
            self._write(name, optimizer.export(copy=False))
            optimizer.load({})
        if not more:
            for name in self._optimizers.keys() - given.keys():
                self._write(name, {})

    def _read_ahead(self, disk: ThreadPoolExecutor, name: str) -> Future[dict[str, Array]]:
        # Memory that another thread allocates would stay in a heap of that thread.
        return disk.submit(self._read, name, self._room(name))

    def _room(self, name: str) -> dict[str, Array]:
        """New memory for the states of a parameter that are in the file."""
        places = self._places.get(name, {})
        return {
            key: np.empty([place.shape[axis] for axis in place.axes], place.dtype)
            for key, place in places.items()
            if isinstance(place, _Place)
        }

    def _read(self, name: str, room: dict[str, Array]) -> dict[str, Array]:
        """The states of a parameter, in ``room``."""
        found: dict[str, Array] = {}
        for key, place in self._places.get(name, {}).items():
            if isinstance(place, _Place):
                self._file.read(place.offset, room[key])
                found[key] = room[key].transpose(np.argsort(place.axes))
            else:
                found[key] = place.copy()
        return found

    def _write(self, name: str, states: Mapping[str, Array]) -> None:
        """Replace the states of a parameter."""
        places: dict[str, _Place | Array] = {}
        for key, array in states.items():
            if array.nbytes < _LEAST:
                places[key] = np.array(array)
                continue
            axes = tuple(np.argsort([-step for step in array.strides], kind="stable").tolist())
            if self._space.get(key, (0, 0))[1] < array.nbytes:
                self._space[key] = self._file.reserve(array.nbytes), array.nbytes
            offset = self._space[key][0]
            places[key] = _Place(offset, array.dtype, array.shape, axes)
            self._file.write(offset, np.ascontiguousarray(array.transpose(axes)))
        self._places[name] = places
