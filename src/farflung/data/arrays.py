"""Samples in .npy files, mapped into memory: one file or a folder of parts for each field."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from farflung.data.base import Array, Place
from farflung.data.files import content_digest, inside, resolve
from farflung.errors import DataError
from farflung.graph.ir import DTYPES, TensorSpec
from farflung.job.spec import DataSpec

__all__ = ["ArraySource"]


class ArraySource:
    """Fields from .npy files whose first dimension numbers the samples.

    ``path`` is a folder with ``<field>.npy`` or ``<field>/*.npy`` (parts, in order of their names) for each field (usually
    ``inputs`` and ``labels``), or the file of the inputs, with ``data.labels`` the file of the labels. A machine needs only
    the files of the fields that it reads.
    """

    def __init__(self, spec: DataSpec, place: Place, path: str) -> None:
        self._spec = spec
        self._place = place
        self._path = path
        self._opened: dict[str, list[NDArray[Any]]] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """``inputs`` and ``labels``; a folder may hold more."""
        return ("inputs", "labels")

    @property
    def size(self) -> int:
        """Number of samples, from whichever usual field is here.

        Raises:
            DataError: no field is here, or the fields here disagree.
        """
        here = [field for field in (*self.names, *self._opened) if self._exists(field)]
        if not here:
            self._files("inputs")
        sizes = {field: sum(len(part) for part in self._parts(field)) for field in here}
        if len(set(sizes.values())) > 1:
            counts = ", ".join(f"{field} {count}" for field, count in sizes.items())
            raise DataError(f"data {self._path!r}: the fields have different numbers of samples ({counts}): make them equal")
        return next(iter(sizes.values()))

    def spec(self, field: str) -> TensorSpec:
        """From the file's header."""
        first = self._parts(field)[0]
        return TensorSpec(dtype=first.dtype.name, shape=first.shape[1:])

    def batch(self, indices: NDArray[Any], fields: Collection[str]) -> dict[str, Array]:
        """Rows ``indices`` of the fields asked for (copies)."""
        rows = np.asarray(indices, dtype=np.int64)
        return {field: self._rows(field, rows) for field in fields}

    def check(self, fields: Collection[str] | None = None) -> None:
        """See that the files are there and that their headers are sound."""
        for field in self.names if fields is None else fields:
            self._parts(field)

    def fingerprint(self, fields: Collection[str] | None = None) -> dict[str, str]:
        """One content hash per field, and the number of samples."""
        chosen = self.names if fields is None else tuple(fields)
        found = {"samples": str(self.size)}
        for field in chosen:
            files = self._files(field)
            # Each part is hashed by its own name: folders may be called differently on two machines.
            found[field] = content_digest(files[0].parent, files, self._place.cache)
        return found

    def _exists(self, field: str) -> bool:
        try:
            self._files(field)
        except DataError:
            return False
        return True

    def _files(self, field: str) -> list[Path]:
        if self._path.endswith(".npy"):
            name = self._path if field == "inputs" else self._spec.labels
            candidates = [resolve(name, self._place)]
        else:
            name = f"{self._path}/{field}.npy"
            folder = resolve(self._path, self._place)
            candidates = [folder / f"{field}.npy"]
            if not candidates[0].is_file() and (folder / field).is_dir():
                candidates = sorted((folder / field).glob("*.npy"))
        inside(candidates, name, self._place)
        if not candidates or not candidates[0].is_file():
            looked = candidates[0] if candidates else folder / field
            raise DataError(
                f"data {name!r} is not on this machine (looked at {looked}): copy it there, "
                "or start the worker with farflung join --data FOLDER"
            )
        return candidates

    def _parts(self, field: str) -> list[NDArray[Any]]:
        if field not in self._opened:
            parts = [self._open(file) for file in self._files(field)]
            if len({(part.dtype, part.shape[1:]) for part in parts}) > 1:
                raise DataError(f"data {self._path!r}: the parts of {field!r} differ in element type or shape: make them equal")
            self._opened[field] = parts
        return self._opened[field]

    def _open(self, file: Path) -> NDArray[Any]:
        try:
            part: NDArray[Any] = np.load(file, mmap_mode="r", allow_pickle=False)
        except (ValueError, OSError, EOFError) as error:
            raise DataError(f"data file {file.name} is no readable .npy array: {error}; write it with numpy.save") from None
        if part.ndim < 1 or part.dtype.name not in DTYPES:
            raise DataError(
                f"data file {file.name} holds {part.dtype.name} of shape {list(part.shape)}: it must have samples along "
                f"its first dimension and one of the types {', '.join(DTYPES)}"
            )
        return part

    def _rows(self, field: str, rows: NDArray[np.int64]) -> Array:
        parts = self._parts(field)
        if len(parts) == 1:
            return np.array(parts[0][rows])
        stops = np.cumsum([len(part) for part in parts])
        found = np.empty((len(rows), *parts[0].shape[1:]), parts[0].dtype)
        owner = np.searchsorted(stops, rows, side="right")
        for number in np.unique(owner):
            chosen = owner == number
            found[chosen] = parts[number][rows[chosen] - (stops[number] - len(parts[number]))]
        return found
