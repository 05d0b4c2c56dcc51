"""A column of text or chats as tokens on disk: the tokens of all documents, which of them count, and where documents begin.

The arrays are made once for each content, tokenizer and column, and mapped into memory afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from farflung.data.files import atomic_file
from farflung.data.tables.chats import ChatTokenizer
from farflung.data.tokenizers import FileTokenizer, Tokenizer
from farflung.errors import DataError

__all__ = ["ChatEncoder", "Documents", "Encoder", "TextEncoder", "open_documents"]

#: Rows that are read together.
_ROWS = 1000


class Encoder(Protocol):
    """Turns a row's value into tokens, and says which of them count in the loss."""

    #: Changes whenever the same value would give other tokens.
    fingerprint: str

    def __call__(self, value: Any) -> tuple[Sequence[int], Sequence[bool]]:
        """Tokens, and which count.

        Raises:
            DataError: the value is of another kind.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Documents:
    """``tokens`` of all documents, which ``count``, and ``offsets``: the first token of each, and the number of tokens."""

    tokens: NDArray[np.uint32]
    count: NDArray[np.bool_]
    offsets: NDArray[np.int64]


class TextEncoder:
    """Text, with the tokenizer's end of a document. All tokens count."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.fingerprint = f"text-{tokenizer.fingerprint}"

    def __call__(self, value: Any) -> tuple[Sequence[int], Sequence[bool]]:
        """Tokens, and which count."""
        if not isinstance(value, str):
            raise DataError(f"it holds {type(value).__name__}, not text: name a column of text in data.text")
        own = self._tokenizer
        ids = own.encode_document(value) if isinstance(own, FileTokenizer) else own.encode(value)
        return ids, [True] * len(ids)


class ChatEncoder:
    """Chats by the tokenizer's template."""

    def __init__(self, tokenizer: ChatTokenizer, *, all_count: bool) -> None:
        self._tokenizer, self._all = tokenizer, all_count
        self.fingerprint = f"{tokenizer.fingerprint}-{all_count}"

    def __call__(self, value: Any) -> tuple[Sequence[int], Sequence[bool]]:
        """Tokens, and which count."""
        if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
            raise DataError(f"it holds {type(value).__name__}, not lists of messages: name a column of chats in data.messages")
        ids, written = self._tokenizer.encode(value)
        return ids, [True] * len(ids) if self._all else written


def open_documents(table: Any, column: str, encoder: Encoder, stem: Path) -> Documents:
    """The tokens of ``column`` of ``table``, in files whose names begin with ``stem``.

    Raises:
        DataError: a row is of another kind.
    """
    paths = {kind: stem.with_name(f"{stem.name}.{kind}") for kind in ("tokens", "count", "offsets")}
    if not paths["offsets"].is_file():  # it is written last
        _write(table, column, encoder, paths)
    offsets = np.fromfile(paths["offsets"], np.int64)
    return Documents(tokens=_mapped(paths["tokens"], np.uint32), count=_mapped(paths["count"], np.bool_), offsets=offsets)


def _write(table: Any, column: str, encoder: Encoder, paths: dict[str, Path]) -> None:
    ends = [0]
    with ExitStack() as stack:
        offsets, count, tokens = (stack.enter_context(atomic_file(paths[kind])) for kind in ("offsets", "count", "tokens"))
        for row, value in enumerate(_values(table, column)):
            try:
                ids, counted = encoder(value)
            except DataError as error:
                raise DataError(f"column {column!r}, row {row}: {error}") from None
            tokens.write(np.asarray(ids, np.uint32).tobytes())
            count.write(np.asarray(counted, np.bool_).tobytes())
            ends.append(ends[-1] + len(ids))
        offsets.write(np.asarray(ends, np.int64).tobytes())


def _values(table: Any, column: str) -> Iterator[Any]:
    for first in range(0, len(table), _ROWS):
        yield from table[first : first + _ROWS][column]


def _mapped(path: Path, dtype: Any) -> NDArray[Any]:
    return np.memmap(path, dtype, "r") if path.stat().st_size else np.empty(0, dtype)
