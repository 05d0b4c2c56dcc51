"""The files of a dataset as one table, through the library ``datasets`` (extra ``datasets``), or from shards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from farflung.data.base import Place
from farflung.data.files import find
from farflung.data.tables.shards import open_shards
from farflung.errors import DataError, InputError
from farflung.foreign_code import first_line, translated

__all__ = ["TableFiles", "column_of"]

#: Suffix of a file -> how the library reads files of this kind.
_KINDS = {
    ".parquet": "parquet",
    ".jsonl": "json",
    ".ndjson": "json",
    ".json": "json",
    ".csv": "csv",
    ".tsv": "tsv",
    ".arrow": "arrow",
    ".tar": "tar",
}
#: Files of ``Dataset.save_to_disk`` that hold no rows.
_STATE = frozenset(("state.json", "dataset_info.json", "dataset_dict.json"))


class TableFiles:
    """The files behind ``path`` on this machine; other files of a folder, such as its README, are left out.

    Raises:
        DataError: there are none, or they are of several kinds.
    """

    def __init__(self, path: str, glob: str, place: Place, size: int = 0) -> None:
        """``size``: height and width of images in shards."""
        self._path, self._place, self._size = path, place, size
        self.root, found = find(path, glob, place)
        self.files = [file for file in found if file.suffix.lower() in _KINDS and file.name not in _STATE]
        kinds = sorted({_KINDS[file.suffix.lower()] for file in self.files})
        if not kinds:
            raise DataError(f"data {path!r} has no table on this machine (looked in {self.root}): known are {', '.join(_KINDS)}")
        if len(kinds) > 1:
            raise DataError(
                f"data {path!r} has files of the kinds {', '.join(kinds)}: choose one with data.glob, e.g. '**/*.parquet'"
            )
        self._kind = kinds[0]

    def open(self) -> Any:
        """The table: a ``datasets.Dataset``, mapped into memory, or shards. The first call writes Arrow files into the cache.

        Raises:
            InputError: the library is missing.
            DataError: a file can't be read.
        """
        if self._kind == "tar":
            return open_shards(self.root, self.files, self._path, self._size)
        try:
            import datasets
        except ImportError:
            raise InputError("data.kind = 'dataset' needs the library datasets: pip install 'farflung[datasets]'") from None
        datasets.disable_progress_bars()
        cache = str(self._place.cache / "datasets")
        names = [str(file) for file in self.files]
        readers: dict[str, Callable[[], Any]] = {
            "parquet": partial(datasets.Dataset.from_parquet, names, cache_dir=cache),
            "json": partial(datasets.Dataset.from_json, names, cache_dir=cache),
            "csv": partial(datasets.Dataset.from_csv, names, cache_dir=cache),
            "tsv": partial(datasets.Dataset.from_csv, names, cache_dir=cache, sep="\t"),
            "arrow": partial(_arrow, names),
        }
        with translated(self._unreadable):  # the library and its readers raise exceptions of many kinds
            return readers[self._kind]()

    def _unreadable(self, error: Exception) -> DataError:
        cause: BaseException = error
        while cause.__cause__ is not None:  # the library hides the reason behind a sentence of its own
            cause = cause.__cause__
        return DataError(f"data {self._path!r} can't be read as {self._kind}: {first_line(cause)}; write the files again")


def _arrow(names: Sequence[str]) -> Any:
    import datasets

    return datasets.concatenate_datasets([datasets.Dataset.from_file(name) for name in names])


def column_of(table: Any, column: str, path: str) -> Any:
    """The column of a table, by index and slice.

    Raises:
        DataError: the table has none of this name.
    """
    if column not in table.column_names:
        raise DataError(f"data {path!r} has no column {column!r}: it has {', '.join(table.column_names)}")
    return table.select_columns([column])
