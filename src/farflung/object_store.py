"""Object stores and HTTP servers by URL, through the library ``obstore`` (extra ``s3``).

Keys and endpoint come from where the store's own tools take them (``AWS_ACCESS_KEY_ID``, ``AWS_ENDPOINT_URL``, ...).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from farflung.errors import InputError
from farflung.foreign_code import translated

if TYPE_CHECKING:
    from obstore.store import ObjectStore

__all__ = ["is_remote", "open_store", "short"]


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
