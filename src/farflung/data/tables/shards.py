"""WebDataset shards (tar files) as a table: a row is a sample, a column the files of one suffix.

Format: https://github.com/webdataset/webdataset#the-webdataset-format. Files of a sample follow each other and have the same path
up to the first dot of the name; the rest of the name, in lower case, is the column. What differs: samples are read by their place
in the shard, in any order, and nothing is unpickled.
The places come from the headers, which are read when the run begins. Cost: 24 bytes of memory per file.
"""

from __future__ import annotations

import json
import math
import os
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from farflung.data.base import Array
from farflung.data.files import opened
from farflung.data.pixels import IMAGE_SUFFIXES, read_image
from farflung.errors import DataError

__all__ = ["ShardTable", "open_shards"]

#: A shard ends with two blocks of zeros, or more.
_END = 2 * tarfile.BLOCKSIZE
_PIECE = 1 << 20
#: Columns that hold a whole number as text.
_NUMBERS = frozenset(("cls", "cls2", "class", "count", "index", "inx", "id"))
_TEXTS = frozenset(("txt", "text", "transcript"))


def open_shards(root: Path, files: Sequence[Path], path: str, size: int) -> ShardTable:
    """The samples of the shards ``files`` of the data ``path``; ``size``: height and width of decoded images.

    Raises:
        DataError: a shard is damaged, two samples have different columns, or there is no sample.
    """
    columns: dict[str, list[tuple[int, int, int]]] = {}
    count = 0
    for number, file in enumerate(files):
        name = file.relative_to(root).as_posix()
        samples = [*_samples(file, name, path)]
        for sample in samples:
            if columns and sample.keys() != columns.keys():
                other = min(sample.keys() ^ columns.keys())
                raise DataError(f"data {path!r}: a sample of {name} lacks, or alone has, a file .{other}: make samples equal")
            for column, (offset, length) in sample.items():
                columns.setdefault(column, []).append((number, offset, length))
        count += len(samples)
    if not count:
        raise DataError(f"data {path!r}: its shards have no sample: write files such as 000.jpg and 000.cls into them")
    return ShardTable(files, {column: np.array(places, np.int64) for column, places in columns.items()}, path, size)


def _samples(file: Path, name: str, path: str) -> Iterator[Mapping[str, tuple[int, int]]]:
    """Suffix -> (offset, bytes), of each sample of a shard in order."""
    before, sample = "", dict[str, tuple[int, int]]()
    for member, offset, length in _members(file, name, path):
        folder, _, last = member.rpartition("/")
        stem, dot, suffix = last.partition(".")
        if not dot or not stem:
            continue  # hidden, or without a suffix: not a part of a sample
        key, suffix = f"{folder}/{stem}", suffix.lower()
        if key != before and sample:
            yield sample
            sample = {}
        if suffix in sample:
            raise DataError(f"data {path!r}: {name} has {member} twice: write the shard again")
        before, sample[suffix] = key, (offset, length)
    if sample:
        yield sample


def _members(file: Path, name: str, path: str) -> Iterator[tuple[str, int, int]]:
    """Name, offset and bytes of the files in a shard. Links, folders and devices are left out."""
    damaged = f"data {path!r}: {name} is damaged: write or copy the shard again"
    with opened(file) as stream:
        whole = os.fstat(stream.fileno()).st_size
        try:
            with tarfile.open(fileobj=stream, mode="r:") as tar:
                for member in tar:
                    tar.members.clear()  # type: ignore[attr-defined]  # the library would keep all headers
                    # A negative size would lead back to a header that was read.
                    if member.size < 0 or tar.offset <= member.offset or member.offset_data + member.size > whole:
                        raise DataError(damaged)
                    if member.isreg() and not member.issparse():
                        yield member.name, member.offset_data, member.size
                end = tar.offset
        except (tarfile.TarError, ValueError, EOFError) as error:
            raise DataError(f"{damaged} ({error})") from None
        # The library ends at a header that it can't read, and at the end of the file, as if the shard ended there.
        stream.seek(end)
        if whole - end < _END or any(piece.count(0) < len(piece) for piece in iter(partial(stream.read, _PIECE), b"")):
            raise DataError(damaged)


class ShardTable:
    """A table as the library ``datasets`` has it, as far as sources use one. Values are decoded when they are read."""

    def __init__(self, files: Sequence[Path], places: Mapping[str, NDArray[np.int64]], path: str, size: int) -> None:
        """``places``: column -> shard, offset and bytes of each sample."""
        self._files, self._places, self._path, self._size = files, places, path, size

    @property
    def column_names(self) -> list[str]:
        """The suffixes of files."""
        return [*self._places]

    def __len__(self) -> int:
        return len(next(iter(self._places.values())))

    def select_columns(self, names: Sequence[str]) -> ShardTable:
        """The table with the columns ``names``."""
        return ShardTable(self._files, {name: self._places[name] for name in names}, self._path, self._size)

    def with_format(self, _: None) -> ShardTable:
        """This table."""
        return self

    def __getitem__(self, rows: slice | Sequence[int]) -> dict[str, list[Any]]:
        """Column -> the values of ``rows``."""
        return {name: [self._value(name, place) for place in places[rows].tolist()] for name, places in self._places.items()}

    def _value(self, column: str, place: Sequence[int]) -> Any:
        number, offset, length = place
        file = self._files[number]
        with opened(file) as stream:
            stream.seek(offset)
            content = stream.read(length)
        if len(content) != length:
            raise DataError(f"data {self._path!r}: {file.name} became shorter: do not change shards during a run")
        decode = _decoder(column, self._size)
        if decode is None:
            raise DataError(
                f"data {self._path!r}: no decoder for files .{column}: known are npy, json, {', '.join(sorted(_TEXTS))}, "
                f"{', '.join(sorted(_NUMBERS))} and images; pickled files are never read"
            )
        try:
            return decode(content)
        except (ValueError, OSError, EOFError, RecursionError) as error:
            raise DataError(
                f"data {self._path!r}: a file .{column} in {file.name} can't be read: {error}; write it again"
            ) from None


def _decoder(column: str, size: int) -> Callable[[bytes], Any] | None:
    kind = column.rpartition(".")[2]
    if f".{kind}" in IMAGE_SUFFIXES:
        return lambda content: read_image(BytesIO(content), size)
    if kind in _TEXTS:
        return partial(str, encoding="utf-8", errors="replace")
    if kind in _NUMBERS:
        return int
    others: dict[str, Callable[[bytes], Any]] = {"npy": _array, "json": json.loads}
    return others.get(kind)


def _array(content: bytes) -> Array:
    """The array of a .npy file. What its header promises is compared with its bytes before memory is taken for it."""
    stream = BytesIO(content)
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    version = np.lib.format.read_magic(stream)
    if version not in readers:
        raise ValueError(f"it has version {version[0]}.{version[1]} of the format, and 1.0 and 2.0 are read")
    shape, _, dtype = readers[version](stream)
    left = len(content) - stream.tell()
    if not dtype.hasobject and math.prod(shape) * max(dtype.itemsize, 1) > left:
        raise ValueError(f"its header promises {list(shape)} values of {dtype}, and {left} bytes follow")
    found: Array = np.load(BytesIO(content), allow_pickle=False)
    return found
