"""Files of a folder behind a URL (HTTP or an object store), read by ranges through ``obstore``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from farflung.checkpoint.blob import Blob, FetchedBlob
from farflung.errors import CheckpointError, InputError
from farflung.foreign_code import translated

if TYPE_CHECKING:
    from obstore.store import ObjectStore

__all__ = ["RemoteFolder", "is_remote", "open_store", "short"]

_WHOLE = "model.safetensors"


def is_remote(path: str | Path) -> bool:
    """Whether ``path`` is a URL."""
    return "://" in str(path)


def open_store(url: str) -> ObjectStore:
    """The object store, or the HTTP server, at ``url``.

    Raises:
        InputError: the URL can't be opened, or ``obstore`` is not installed.
    """
    try:
        from obstore.store import from_url
    except ImportError:
        raise InputError(f'{url}: object stores need the obstore package: pip install "farflung[s3]"') from None
    if "://" not in url:
        raise InputError(f"{url!r} is no URL of an object store; write e.g. s3://bucket/folder")
    options: dict[str, Any] = {"mkdir": True} if url.startswith("file:") else {}
    if url.startswith("http://"):
        options["client_options"] = {"allow_http": True}
    with translated(lambda error: InputError(f"{url} is no object store that can be opened: {short(error)}")):
        return from_url(url, **options)


def short(error: BaseException) -> str:
    """The text of ``error`` in one line."""
    return " ".join(str(error).split())[:200]


class RemoteFolder:
    """A folder, or a single safetensors file, behind ``url``."""

    def __init__(self, url: str) -> None:
        """Open the store; nothing is fetched.

        Raises:
            InputError: the URL can't be opened.
        """
        self._url = url.rstrip("/")
        folder, _, self._file = self._url.rpartition("/") if self._url.endswith(".safetensors") else (self._url, "", "")
        self._store = open_store(folder)

    def single(self) -> Blob | None:
        """The file with all tensors (``None``: there are parts)."""
        if self._file:
            return self.blob(self._file)
        return self.blob(_WHOLE) if self._size(_WHOLE) is not None else None

    def read(self, name: str, limit: int) -> bytes | None:
        """The file ``name`` of at most ``limit`` bytes (``None``: it is not there).

        Raises:
            CheckpointError: it is larger, or the store does not answer.
        """
        size = self._size(name)
        if size is None:
            return None
        if size > limit:
            raise CheckpointError(f"{self._url}/{name} has {size} bytes, at most {limit} are read")
        return bytes(self._range(name, 0, size))

    def blob(self, name: str) -> Blob:
        """The file ``name`` by ranges.

        Raises:
            CheckpointError: it is not there.
        """
        size = self._size(name)
        if size is None:
            raise CheckpointError(f"{self._url}/{name} does not exist: check weights.path")
        return FetchedBlob(f"{self._url}/{name}", size, lambda offset, length: self._range(name, offset, length))

    def _size(self, name: str) -> int | None:
        import obstore

        try:
            return int(obstore.head(self._store, name)["size"])
        except FileNotFoundError:
            return None
        except (obstore.exceptions.BaseError, OSError) as error:
            raise self._failed(error) from None

    def _range(self, name: str, offset: int, length: int) -> bytes:
        import obstore

        if not length:
            return b""
        try:
            return bytes(obstore.get_range(self._store, name, start=offset, length=length))
        except (obstore.exceptions.BaseError, OSError) as error:
            raise self._failed(error) from None

    def _failed(self, error: BaseException) -> CheckpointError:
        return CheckpointError(f"{self._url} can't be read: {short(error)}; check its name, keys and endpoint")
