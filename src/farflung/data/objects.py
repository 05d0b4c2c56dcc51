"""Data behind a URL: the objects of a store as files in the cache folder.

A machine fetches an object once, in one process at a time. The files lie in a folder that is named after the URL and the versions
of its objects, so a changed object is never read under an old name. Cost: disk for what the machine reads, and memory for a piece
of ``_PIECE`` bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit

from farflung.data.base import Place
from farflung.data.fetching import Fetch
from farflung.errors import DataError
from farflung.ids import content_hash
from farflung.object_store import open_store, short

__all__ = ["mirrored"]

_PIECE = 8 << 20


class _Missing(DataError):
    """There is no object of this name."""


@dataclass(frozen=True, slots=True)
class _Object:
    name: str
    size: int
    version: str
    #: The store's name of the content (empty: the store has none).
    tag: str


def mirrored(url: str, place: Place, write: Callable[[Path, Iterator[bytes]], None], wanted: Callable[[str], bool]) -> Path:
    """The folder with the files of ``url`` that are ``wanted``, by relative name; ``write`` stores a file whole or not at all.

    A URL of a single object gives the path of its file.

    Raises:
        InputError: the URL can't be opened, or ``obstore`` is not installed.
        DataError: jobs may not make this machine fetch files, there is no object, or the store does not answer.
    """
    if place.confined:
        raise DataError(
            f"data path {url!r} is a URL, and jobs may not make this machine fetch files: copy the files into its data folder, "
            "or start this worker with --any-path"
        )
    store = _Store(url)
    single = store.single()
    objects = [single] if single is not None else [item for item in store.objects() if wanted(item.name)]
    versions = "\n".join(f"{item.name}\t{item.size}\t{item.version}" for item in objects)
    root = place.cache / "objects" / content_hash(f"{url}\n{versions}".encode())[:32]
    root.mkdir(parents=True, exist_ok=True)
    if not all((root / item.name).is_file() for item in objects):
        with Fetch.current().alone(root):
            for item in objects:
                if not (root / item.name).is_file():
                    write(root / item.name, store.pieces(item))
    return root / single.name if single is not None else root


class _Store:
    """The store that holds ``url``: a folder, or a single object if the last part of the URL has a suffix."""

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")
        folder, _, last = self._url.rpartition("/")
        self._name = last if PurePosixPath(last).suffix and not folder.endswith("/") and not _is_local_folder(url) else ""
        self._store = open_store(folder if self._name else self._url)

    def single(self) -> _Object | None:
        """The object that the URL names (None: a folder, whose name may have a dot)."""
        if not self._name:
            return None
        try:
            return _object(self._do(lambda obs: obs.head(self._store, self._name)))
        except _Missing:
            if self._url.startswith(("http", "file:")):  # HTTP has no folders, and opening a local one would make it
                raise
            self._store = open_store(self._url)
            return None

    def objects(self) -> list[_Object]:
        """All objects below the URL, by name.

        Raises:
            DataError: there is none, or one leads out of the folder.
        """
        batches = self._do(lambda obs: list(obs.list(self._store)))
        listed = sorted((_object(entry) for batch in batches for entry in batch), key=lambda item: item.name)
        # Consoles of stores mark a folder with an empty object, which is named like the folder.
        folders = {"", *(str(folder) for item in listed for folder in PurePosixPath(item.name).parents)}
        found = [item for item in listed if item.size or item.name not in folders]
        for item in found:
            if ".." in PurePosixPath(item.name).parts:
                raise DataError(f"data {self._url!r} has the object {item.name!r}, which leads out of its folder: rename it")
        if not found:
            raise DataError(f"data {self._url!r} is not in its store, or an empty folder: check bucket and name")
        return found

    def pieces(self, item: _Object) -> Iterator[bytes]:
        """The content of ``item``.

        Raises:
            DataError: it is not all there, or not the version that was listed.
        """
        answer = self._do(lambda obs: obs.get(self._store, item.name))
        changed = DataError(f"data {self._url!r}: {item.name} changed while it was read: start the run again")
        if len({item.tag, _object(answer.meta).tag} - {""}) > 1:
            raise changed
        stream = iter(self._do(lambda _: answer.stream(min_chunk_size=_PIECE)))
        left, fetch = item.size, Fetch.current()
        while (piece := self._do(lambda _: next(stream, None))) is not None:
            fetch.add(len(piece))
            left -= len(piece)
            yield bytes(piece)
        if left:
            raise changed

    def _do(self, request: Callable[[Any], Any]) -> Any:
        import obstore

        try:
            return request(obstore)
        except FileNotFoundError:
            raise _Missing(f"data {self._url!r} is not in its store, or an empty folder: check bucket and name") from None
        except (obstore.exceptions.BaseError, OSError) as error:
            raise DataError(f"data {self._url!r} can't be read: {short(error)}; check its name, keys and endpoint") from None


def _is_local_folder(url: str) -> bool:
    return url.startswith("file:") and Path(unquote(urlsplit(url).path)).is_dir()


def _object(entry: Any) -> _Object:
    tag = entry.get("e_tag") or ""
    return _Object(str(entry["path"]), int(entry["size"]), tag or str(entry.get("last_modified")), tag.removeprefix("W/"))
