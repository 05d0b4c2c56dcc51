"""Files of a folder behind a URL (HTTP or an object store), read by ranges through ``obstore``."""

from __future__ import annotations

from farflung.checkpoint.blob import Blob, FetchedBlob
from farflung.errors import CheckpointError
from farflung.object_store import open_store, short

__all__ = ["RemoteFolder"]

_WHOLE = "model.safetensors"


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
