"""Columns of a table as fields: numbers, or lists of numbers that have one length."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from farflung.data.base import Array, Place
from farflung.data.files import content_digest
from farflung.data.lazy_property import lazy_property
from farflung.data.pixels import IMAGE_SUFFIXES, normalized
from farflung.data.tables.files import TableFiles, column_of
from farflung.data.tables.shards import ShardTable
from farflung.errors import DataError
from farflung.graph.ir import DTYPES, TensorSpec
from farflung.job.spec import DataSpec

__all__ = ["ColumnSource"]


class ColumnSource:
    """Each row is a sample, each column a field. A machine converts only the columns that it reads."""

    def __init__(self, spec: DataSpec, place: Place, path: str) -> None:
        self._spec, self._place, self._path = spec, place, path
        self._specs: dict[str, TensorSpec] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """The columns that the job names; a table may have more."""
        return tuple(dict.fromkeys(self._spec.fields.values())) or ("inputs", "labels")

    @property
    def size(self) -> int:
        """Number of rows."""
        return len(self._table)

    def spec(self, field: str) -> TensorSpec:
        """Element type and shape of the first row; floating-point numbers are float32."""
        if field not in self._specs:
            if not self.size:
                raise DataError(f"data {self._path!r} has no row")
            value = self.batch(np.zeros(1, np.int64), (field,))[field]
            self._specs[field] = TensorSpec(dtype=value.dtype.name, shape=value.shape[1:])
        return self._specs[field]

    def batch(self, indices: NDArray[Any], fields: Collection[str]) -> dict[str, Array]:
        """The rows ``indices`` of the columns ``fields``."""
        found: dict[str, Array] = {}
        for field in fields:
            column = column_of(self._table, field, self._path).with_format(None)
            found[field] = self._numbers(field, column[np.asarray(indices, np.int64).tolist()][field])
            if self.image_fields((field,)):
                found[field] = normalized(found[field], self._spec.image)
        return found

    def image_fields(self, fields: Collection[str]) -> frozenset[str]:
        """Columns of shards that are named after a format: those of other tables hold numbers."""
        found = frozenset(field for field in fields if f".{field.rpartition('.')[2]}" in IMAGE_SUFFIXES)
        return found if found and isinstance(self._table, ShardTable) else frozenset()

    def check(self, fields: Collection[str] | None = None) -> None:
        """See that the files are there and that the first row has the columns."""
        for field in () if fields is None else fields:
            self.spec(field)
        self._files.open()

    def fingerprint(self, fields: Collection[str] | None = None) -> dict[str, str]:
        """``rows``: hash of the files, which hold all columns."""
        return {"rows": content_digest(self._files.root, self._files.files, self._place.cache)}

    @lazy_property
    def _files(self) -> TableFiles:
        return TableFiles(self._path, self._spec.glob, self._place, self._spec.size)

    @lazy_property
    def _table(self) -> Any:
        return self._files.open()

    def _numbers(self, field: str, rows: list[Any]) -> Array:
        try:
            found = np.asarray(rows)
        except ValueError:
            raise DataError(
                f"data {self._path!r}: rows of the column {field!r} have different lengths: make them equal"
            ) from None
        if found.dtype == np.float64:
            found = found.astype(np.float32)
        if found.dtype.name not in DTYPES:
            kind = type(rows[0]).__name__
            raise DataError(
                f"data {self._path!r}: the column {field!r} holds {kind}, not numbers: name it in data.text or data.messages, or "
                "convert it"
            )
        return found
