"""Text or chats of a table as samples of tokens."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from farflung.data.base import Array, Place
from farflung.data.files import content_digest, inside, resolve
from farflung.data.lazy_property import lazy_property
from farflung.data.tables.chats import ChatTokenizer
from farflung.data.tables.documents import ChatEncoder, Documents, Encoder, TextEncoder, open_documents
from farflung.data.tables.files import TableFiles, column_of
from farflung.data.tables.packing import Packing, pack
from farflung.data.tokenizers import BytesTokenizer, FileTokenizer, Tokenizer
from farflung.errors import DataError
from farflung.graph.ir import TensorSpec
from farflung.ids import content_hash
from farflung.job.spec import DataSpec

__all__ = ["TokenSource"]

_FIELDS = ("inputs", "targets", "labels", "attention_mask", "position_ids", "segment_ids")
#: What PyTorch leaves out of a loss.
_IGNORED = -100


class TokenSource:
    """Samples of ``sequence`` tokens.

    Fields, each int64 of shape ``(sequence,)``: ``inputs``; ``targets`` (the next tokens); ``labels`` (the tokens of the inputs,
    for models that shift them); ``attention_mask`` (0 for padding); ``position_ids``, which begin at 0 in each document; and
    ``segment_ids`` (1 for the first document of a sample, 0 for padding). Targets and labels are -100 where a token does not
    count, and no document predicts the next one.
    """

    def __init__(self, spec: DataSpec, place: Place, path: str) -> None:
        self._spec, self._place, self._path = spec, place, path

    @property
    def names(self) -> tuple[str, ...]:
        """The fields."""
        return _FIELDS

    @property
    def size(self) -> int:
        """Number of samples.

        Raises:
            DataError: there is none.
        """
        if not len(self._samples):
            wanted = "an answer of the assistant" if self._spec.messages else f"{self._spec.sequence + 1} tokens"
            raise DataError(f"data {self._path!r} has no sample: no row has {wanted}; check the files, or shorten data.sequence")
        return len(self._samples)

    @lazy_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of ``data.tokenizer``."""
        name = self._spec.tokenizer
        return BytesTokenizer() if name == "bytes" else FileTokenizer(self._folder, name)

    def spec(self, field: str) -> TensorSpec:
        """int64, ``(sequence,)``."""
        if field not in _FIELDS:
            raise DataError(f"tokens have no field {field!r}: they have {', '.join(_FIELDS)}")
        return TensorSpec(dtype="int64", shape=(self._spec.sequence,))

    def batch(self, indices: NDArray[Any], fields: Collection[str]) -> dict[str, Array]:
        """The samples ``indices``; only the fields asked for."""
        found = {field: np.full((len(indices), self._spec.sequence), _empty(field), np.int64) for field in fields}
        for row, index in enumerate(np.asarray(indices, np.int64).tolist()):
            first = 0
            for number, (start, length) in enumerate(self._packing.pieces(int(self._samples[index]))):
                for field, values in found.items():
                    values[row, first : first + length] = self._piece(field, start, length, number)
                first += length
            if "position_ids" in found:  # padding is a document of its own
                found["position_ids"][row, first:] = np.arange(self._spec.sequence - first)
        return found

    def check(self, fields: Collection[str] | None = None) -> None:
        """See that the files are there, have the column, and that the tokenizer can be read."""
        self._encoder  # noqa: B018 (reads the tokenizer)
        self._column()

    def fingerprint(self, fields: Collection[str] | None = None) -> dict[str, str]:
        """``tokens``: hash of the files, the tokenizer and the packing."""
        return {"tokens": content_hash(f"{self._key}\n{self._spec.sequence}\n{self._spec.packing}".encode())}

    def _piece(self, field: str, start: int, length: int, number: int) -> Array | int:
        documents, stop = self._documents, start + length
        if field == "attention_mask":
            return 1
        if field == "segment_ids":
            return number + 1
        if field == "position_ids":
            return np.arange(length)
        tokens = documents.tokens[start:stop].astype(np.int64)
        if field == "inputs":
            return tokens
        tokens[~documents.count[start:stop]] = _IGNORED
        last = _IGNORED
        if self._spec.packing == "split":
            last = int(documents.tokens[stop]) if documents.count[stop] else _IGNORED
        elif field == "labels":
            tokens[0] = _IGNORED  # the model shifts labels, and the document before must not predict this one
        return np.append(tokens[1:], last) if field == "targets" else tokens

    @lazy_property
    def _folder(self) -> Path:
        path = resolve(self._spec.tokenizer, self._place)
        if path.is_dir():
            inside(list(path.iterdir()), self._spec.tokenizer, self._place)
        return path

    @lazy_property
    def _encoder(self) -> Encoder:
        if self._spec.messages:
            return ChatEncoder(ChatTokenizer(self._folder, self._spec.tokenizer), all_count=self._spec.loss_on == "all")
        return TextEncoder(self.tokenizer)

    @lazy_property
    def _files(self) -> TableFiles:
        return TableFiles(self._path, self._spec.glob, self._place)

    @lazy_property
    def _key(self) -> str:
        digest = content_digest(self._files.root, self._files.files, self._place.cache)
        return f"documents-1\n{digest}\n{self._encoder.fingerprint}\n{self._spec.text or self._spec.messages}"

    def _column(self) -> Any:
        return column_of(self._files.open(), self._spec.text or self._spec.messages, self._path)

    @lazy_property
    def _documents(self) -> Documents:
        stem = self._place.cache / f"documents-{content_hash(self._key.encode())}"
        column = self._spec.text or self._spec.messages
        try:
            return open_documents(self._column(), column, self._encoder, stem)
        except DataError as error:
            raise DataError(f"data {self._path!r}: {error}") from None

    @lazy_property
    def _packing(self) -> Packing:
        spec = self._spec
        return pack(self._documents.offsets, spec.sequence, spec.packing, cut=bool(spec.messages))

    @lazy_property
    def _samples(self) -> NDArray[np.int64]:
        """The samples of the packing in which a token counts: the mean loss over none is not a number."""
        packing = self._packing
        before = np.concatenate([[0], np.cumsum(self._documents.count, dtype=np.int64)])
        shift = 0 if self._spec.packing == "split" else 1  # nothing predicts the first token of a document
        first = np.minimum(packing.starts + shift, packing.starts + packing.lengths)
        counted = np.concatenate([[0], np.cumsum(before[packing.starts + packing.lengths] - before[first])])
        found: NDArray[np.int64] = np.flatnonzero(counted[packing.bounds[1:]] > counted[packing.bounds[:-1]])
        return found


def _empty(field: str) -> int:
    return _IGNORED if field in ("targets", "labels") else 0
