"""Opens the source of a job on this machine and splits training from evaluation."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from farflung.data.base import Array, Place, Source, Split
from farflung.data.files import default_cache
from farflung.data.mixture import Mixture
from farflung.data.pixels import image_fields
from farflung.data.sampler import Permutation
from farflung.data.tokenizers import Tokenizer
from farflung.errors import DataError, InputError
from farflung.graph.ir import TensorSpec
from farflung.job.spec import DataSpec
from farflung.registry import Registry

__all__ = ["SOURCES", "Opener", "Subset", "open_source", "open_tokenizer", "tokenizer_of"]

#: Opens a source over the training or evaluation path of a spec.
Opener = Callable[[DataSpec, Place, str], Source]

#: Kinds of data by ``data.kind``.
SOURCES: Registry[Opener] = Registry("kind of data", "sources")


def _text() -> Opener:
    from farflung.data.text import TextSource

    return TextSource


def _arrays() -> Opener:
    from farflung.data.arrays import ArraySource

    return ArraySource


def _images() -> Opener:
    from farflung.data.images import ImageSource

    return ImageSource


def _tables() -> Opener:
    from farflung.data.tables import ColumnSource, TokenSource

    def opener(spec: DataSpec, place: Place, path: str) -> Source:
        return TokenSource(spec, place, path) if spec.tokenized else ColumnSource(spec, place, path)

    return opener


SOURCES.add("dataset", _tables)
SOURCES.add("text", _text)
SOURCES.add("array", _arrays)
SOURCES.add("images", _images)


def open_source(
    spec: DataSpec, base: str | Path, *, split: Split = "train", cache: str | Path | None = None, confined: bool = False
) -> Source:
    """The samples of ``split`` on this machine; relative paths start from ``base``. Nothing large is read yet.

    ``confined``: paths that lead out of ``base`` are refused when they are read (all but ``{stdlib}``).

    With ``eval_path`` the splits are different files; otherwise a fixed ``eval_fraction`` of the samples (at least one) is
    kept out of the training, the same ones for every seed and machine.

    Raises:
        InputError: ``data.kind`` is unknown, fed by the caller, or there is nothing to evaluate on.
    """
    if spec.kind == "caller":
        raise InputError("data.kind = 'caller' is fed by the process that submits the job: no machine can open it")
    place = _place(base, cache, confined)
    parts = [_split(part, place, split) for part in spec.parts]
    return Mixture(parts, [one.weight for one in spec.mixture]) if spec.mixture else parts[0]


def _split(spec: DataSpec, place: Place, split: Split) -> Source:
    opener = SOURCES.get(spec.kind)
    if spec.eval_path:
        return opener(spec, place, spec.eval_path if split == "eval" else spec.path)
    source = opener(spec, place, spec.path)
    if spec.eval_fraction == 0.0:
        if split == "eval":
            raise InputError("nothing to evaluate on: set data.eval_path, or data.eval_fraction above 0")
        return source
    return Subset(source, spec.eval_fraction, split)


def open_tokenizer(spec: DataSpec, base: str | Path, *, cache: str | Path | None = None, confined: bool = False) -> Tokenizer:
    """The tokenizer of text data, e.g. for generation; its ``size`` is what the model's vocabulary must hold at least.

    Raises:
        InputError: the data is no text.
        DataError: its file (or, for ``chars``, the training text) is not on this machine.
    """
    if not spec.tokenized:
        raise InputError(f"data.kind = {spec.kind!r} has no tokenizer: only text and chats have one")
    first = spec.parts[0]
    found = tokenizer_of(SOURCES.get(spec.kind)(first, _place(base, cache, confined), first.path))
    assert found is not None  # what is tokenized has one
    return found


def tokenizer_of(source: Source) -> Tokenizer | None:
    """The tokenizer behind a source, or behind the first part of a mixture (None: its samples are no tokens)."""
    from farflung.data.tables import TokenSource
    from farflung.data.text import TextSource

    if isinstance(source, Mixture):
        source = source.parts[0]
    if isinstance(source, Subset):
        source = source.source
    return source.tokenizer if isinstance(source, (TextSource, TokenSource)) else None


def _place(base: str | Path, cache: str | Path | None, confined: bool) -> Place:
    return Place(base=Path(base), cache=Path(cache) if cache is not None else default_cache(), confined=confined)


class Subset:
    """The training or the evaluation part of ``source``: disjoint, together whole, chosen by a fixed permutation."""

    def __init__(self, source: Source, fraction: float, split: Split) -> None:
        self.source = source
        self._fraction = fraction
        self._split = split
        self._order: Permutation | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The source's fields."""
        return self.source.names

    @property
    def size(self) -> int:
        """Number of samples of this part.

        Raises:
            DataError: one sample can't be split.
        """
        total = self.source.size
        held_out = self._held_out(total)
        if self._split == "eval" and held_out == 0:
            raise DataError(f"the data has {total} sample, too few to keep one for evaluation: set data.eval_path")
        return held_out if self._split == "eval" else total - held_out

    def spec(self, field: str) -> TensorSpec:
        """The source's."""
        return self.source.spec(field)

    def batch(self, indices: NDArray[Any], fields: Collection[str]) -> dict[str, Array]:
        """Samples of this part, numbered from 0."""
        total = self.source.size
        rows = np.asarray(indices, dtype=np.int64)
        first = 0 if self._split == "eval" else self._held_out(total)
        order = self._order  # read once: another thread may set it
        if order is None:
            order = self._order = Permutation(total, "held out")
        return self.source.batch(order(rows + first), fields)

    def image_fields(self, fields: Collection[str]) -> frozenset[str]:
        """The source's."""
        return image_fields(self.source, fields)

    def check(self, fields: Collection[str] | None = None) -> None:
        """The source's."""
        self.source.check(fields)

    def fingerprint(self, fields: Collection[str] | None = None) -> dict[str, str]:
        """The source's."""
        return self.source.fingerprint(fields)

    def _held_out(self, total: int) -> int:
        return 0 if total < 2 else min(total - 1, max(1, round(total * self._fraction)))
