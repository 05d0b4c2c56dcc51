"""Files of text as windows of tokens.

All files, in order of their relative paths, make one stream of ids, kept in the cache as a raw array that is mapped into
memory. Sample ``i`` is the window of ``sequence + 1`` ids that begins at ``i * sequence``, so that each id (but the first) is
the target of exactly one sample.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from io import TextIOWrapper
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from farflung.data.base import Array, Place
from farflung.data.files import atomic_file, content_digest, find, opened, resolve
from farflung.data.lazy_property import lazy_property
from farflung.data.tokenizers import BytesTokenizer, CharsTokenizer, FileTokenizer, Tokenizer
from farflung.errors import DataError
from farflung.graph.ir import TensorSpec
from farflung.ids import content_hash
from farflung.job.spec import DataSpec

__all__ = ["TextSource"]

_FIELDS = ("inputs", "targets", "labels", "attention_mask")
_BLOCK = 1 << 24


class TextSource:
    """Windows of tokens.

    Fields, each int64 of shape ``(sequence,)``: ``inputs``; ``targets`` (the next tokens); ``labels`` (the same tokens as the
    inputs, for models that shift them themselves); ``attention_mask`` (ones).
    """

    def __init__(self, spec: DataSpec, place: Place, path: str) -> None:
        self._spec = spec
        self._place = place
        self._path = path

    @property
    def names(self) -> tuple[str, ...]:
        """The fields."""
        return _FIELDS

    @property
    def size(self) -> int:
        """Number of whole windows.

        Raises:
            DataError: the text is shorter than one window.
        """
        count = (len(self._tokens) - 1) // self._spec.sequence
        if count < 1:
            raise DataError(
                f"data {self._path!r} has {len(self._tokens)} tokens, one sample needs {self._spec.sequence + 1}: "
                "add text or shorten data.sequence"
            )
        return count

    @lazy_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of ``data.tokenizer``; ``chars`` reads the training text first."""
        name = self._spec.tokenizer
        if name == "bytes":
            return BytesTokenizer()
        if name == "chars":
            return CharsTokenizer(_characters(find(self._spec.path, self._spec.glob, self._place)[1]))
        return FileTokenizer(resolve(name, self._place), name)

    @property
    def vocabulary(self) -> int:
        """Number of ids that the tokenizer can give."""
        return self.tokenizer.size

    def spec(self, field: str) -> TensorSpec:
        """int64, ``(sequence,)``."""
        if field not in _FIELDS:
            raise DataError(f"text has no field {field!r}: it has {', '.join(_FIELDS)}")
        return TensorSpec(dtype="int64", shape=(self._spec.sequence,))

    def batch(self, indices: NDArray[Any], fields: Collection[str]) -> dict[str, Array]:
        """The windows ``indices``; only the fields asked for."""
        starts = np.asarray(indices, dtype=np.int64) * self._spec.sequence
        window = np.arange(self._spec.sequence, dtype=np.int64)
        found: dict[str, Array] = {}
        for field in fields:
            self.spec(field)
            if field == "attention_mask":
                found[field] = np.ones((len(starts), self._spec.sequence), np.int64)
            else:
                places = (starts + (field == "targets"))[:, None] + window
                found[field] = self._tokens[places].astype(np.int64)
        return found

    def check(self, fields: Collection[str] | None = None) -> None:
        """See that there are files, that they can be opened, and that the tokenizer can be read."""
        for file in self._files[1]:
            try:
                with opened(file):
                    pass
            except OSError as error:
                raise DataError(f"data {self._path!r}: {file.name} can't be read on this machine: {error.strerror}") from None
        if self._spec.tokenizer not in ("bytes", "chars"):
            FileTokenizer(resolve(self._spec.tokenizer, self._place), self._spec.tokenizer)

    def fingerprint(self, fields: Collection[str] | None = None) -> dict[str, str]:
        """``text``: hash of the files, the tokenizer and the window."""
        key = f"{self._digest}\n{self.tokenizer.fingerprint}\n{self._spec.sequence}"
        return {"text": content_hash(key.encode())}

    @lazy_property
    def _digest(self) -> str:
        return content_digest(*self._files, self._place.cache)

    @lazy_property
    def _files(self) -> tuple[Path, list[Path]]:
        return find(self._path, self._spec.glob, self._place)

    @lazy_property
    def _tokens(self) -> NDArray[Any]:
        tokenizer = self.tokenizer
        dtype = np.dtype("<u1" if tokenizer.size <= 1 << 8 else "<u2" if tokenizer.size <= 1 << 16 else "<u4")
        key = content_hash(f"tokens-1\n{self._digest}\n{tokenizer.fingerprint}".encode())
        path = self._place.cache / f"tokens-{key}.u{dtype.itemsize}"
        if not path.is_file():
            with atomic_file(path) as stream:
                _write(stream, self._files[1], tokenizer, dtype)
        if not path.stat().st_size:  # an empty file can't be mapped
            return np.empty(0, dtype)
        return np.memmap(path, dtype=dtype, mode="r")


def _write(stream: BinaryIO, files: list[Path], tokenizer: Tokenizer, dtype: np.dtype[Any]) -> None:
    for file in files:
        if isinstance(tokenizer, BytesTokenizer):
            with opened(file) as source:
                while block := source.read(_BLOCK):
                    stream.write(block)
            continue
        text = _text(file)
        ids = tokenizer.encode_document(text) if isinstance(tokenizer, FileTokenizer) else tokenizer.encode(text)
        stream.write(np.asarray(ids, dtype=dtype).tobytes())


def _characters(files: list[Path]) -> Iterator[str]:
    for file in files:
        yield from set(_text(file))


def _text(file: Path) -> str:
    with opened(file) as stream, TextIOWrapper(stream, encoding="utf-8", errors="replace") as text:
        return text.read()
