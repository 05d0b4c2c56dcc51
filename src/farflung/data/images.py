"""Image files in one folder per class, through pillow (extra ``images``)."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from farflung.data.base import Array, Place
from farflung.data.files import content_digest, find, opened
from farflung.data.lazy_property import lazy_property
from farflung.data.pixels import IMAGE_SUFFIXES, normalized, read_image
from farflung.errors import DataError
from farflung.graph.ir import TensorSpec
from farflung.ids import content_hash
from farflung.job.spec import DataSpec

__all__ = ["ImageSource"]


class ImageSource:
    """``<path>/<class>/*``; classes are numbered in the order of their names in the training folder.

    Fields: ``inputs`` float32 ``(3, size, size)``, RGB, resized (bilinear) and normalized by ``data.image``;
    ``labels`` int64 scalar. A machine that reads labels only needs the files' names, not their contents (empty files will do).
    """

    def __init__(self, spec: DataSpec, place: Place, path: str) -> None:
        self._spec = spec
        self._place = place
        self._path = path

    @property
    def names(self) -> tuple[str, ...]:
        """The fields."""
        return ("inputs", "labels")

    @property
    def size(self) -> int:
        """Number of images."""
        return len(self._files)

    @lazy_property
    def classes(self) -> tuple[str, ...]:
        """Class names, in the order of their numbers."""
        root, files = _images(self._spec, self._place, self._spec.path)
        return tuple(sorted({_class(root, file) for file in files}))

    def spec(self, field: str) -> TensorSpec:
        """float32 ``(3, size, size)`` or int64 scalar."""
        if field == "inputs":
            return TensorSpec(dtype="float32", shape=(3, self._spec.size, self._spec.size))
        if field == "labels":
            return TensorSpec(dtype="int64", shape=())
        raise DataError(f"images have no field {field!r}: they have inputs, labels")

    def batch(self, indices: NDArray[Any], fields: Collection[str]) -> dict[str, Array]:
        """The images ``indices``; files are opened only when the inputs are asked for."""
        found: dict[str, Array] = {}
        for field in fields:
            self.spec(field)
            if field == "labels":
                found[field] = self._labels[np.asarray(indices, dtype=np.int64)]
            else:
                found[field] = np.stack([self._read(self._files[int(index)]) for index in indices])
        return found

    def image_fields(self, fields: Collection[str]) -> frozenset[str]:
        """The inputs."""
        return frozenset(fields) & {"inputs"}

    def check(self, fields: Collection[str] | None = None) -> None:
        """See that there are images in class folders and, for the inputs, that the first one can be read."""
        self._labels  # noqa: B018 (reads the folders)
        if fields is None or "inputs" in fields:
            self._read(self._files[0])

    def fingerprint(self, fields: Collection[str] | None = None) -> dict[str, str]:
        """``names``: hash of the file names, classes and size; ``images``: hash of the contents, if the inputs are read."""
        names = "\n".join(
            [str(self._spec.size), *self.classes, *(file.relative_to(self._root).as_posix() for file in self._files)]
        )
        found = {"names": content_hash(names.encode())}
        if fields is None or "inputs" in fields:
            found["images"] = content_digest(self._root, self._files, self._place.cache)
        return found

    @lazy_property
    def _found(self) -> tuple[Path, list[Path]]:
        return _images(self._spec, self._place, self._path)

    @property
    def _root(self) -> Path:
        return self._found[0]

    @property
    def _files(self) -> list[Path]:
        return self._found[1]

    @lazy_property
    def _labels(self) -> NDArray[np.int64]:
        number = {name: index for index, name in enumerate(self.classes)}
        names = [_class(self._root, file) for file in self._files]
        unknown = sorted(set(names) - set(number))
        if unknown:
            raise DataError(
                f"data {self._path!r} has the class {unknown[0]!r}, which the training data {self._spec.path!r} lacks"
            )
        return np.array([number[name] for name in names], np.int64)

    def _read(self, file: Path) -> NDArray[np.float32]:
        try:
            with opened(file) as stream:
                return normalized(read_image(stream, self._spec.size), self._spec.image)
        except (OSError, ValueError) as error:
            name = file.relative_to(self._root).as_posix()
            raise DataError(f"data {self._path!r}: image {name} can't be read: {error}; replace or remove it") from None


def _images(spec: DataSpec, place: Place, path: str) -> tuple[Path, list[Path]]:
    root, files = find(path, spec.glob, place)
    images = [file for file in files if file.suffix.lower() in IMAGE_SUFFIXES and len(file.relative_to(root).parts) > 1]
    if not images:
        raise DataError(
            f"data {path!r} has no images in class folders on this machine (looked in {root}): lay out <class>/<image>.jpg"
        )
    return root, images


def _class(root: Path, file: Path) -> str:
    return file.relative_to(root).parts[0]
