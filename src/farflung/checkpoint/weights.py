"""First weights from safetensors files: which tensors of the files become which state of the graph."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

from farflung.checkpoint.blob import Blob, FileBlob
from farflung.checkpoint.remote_files import RemoteFolder
from farflung.checkpoint.safetensors import Array, SafetensorsIndex, TensorEntry, dtype_of
from farflung.errors import CheckpointError
from farflung.graph.ir import State, StateKind
from farflung.graph.weight_expressions import INITIAL, Expression, evaluate, shape_of
from farflung.object_store import is_remote

__all__ = ["Match", "Weights", "check_shape", "match_states"]

_MAX_INDEX = 1 << 27
_WHOLE, _INDEX = "model.safetensors", "model.safetensors.index.json"
#: What peft puts between a layer's name and the layer that an adapter wraps.
_WRAPPED = ".base_layer."
#: Beside adapters, states that come from the files: a wrapped weight, and DoRA's magnitudes, which are norms of its rows.
_FROM_FILES = (_WRAPPED, ".lora_magnitude_vector.")


class Weights:
    """Tensors of one or more safetensors files, read one at a time. A file is opened when one of its tensors is needed."""

    def __init__(self, files: Mapping[str, Callable[[], SafetensorsIndex]]) -> None:
        """``files``: what opens the file of each tensor, by the tensor's name."""
        self._files = files

    @classmethod
    def of(cls, blobs: Iterable[Blob]) -> Weights:
        """All tensors of ``blobs``.

        Raises:
            CheckpointError: a file is torn, or two hold the same name.
        """
        indexes = [SafetensorsIndex(blob) for blob in blobs]
        counts = Counter(name for index in indexes for name in index.tensors)
        twice = [name for name, count in counts.items() if count > 1]
        if twice:
            raise CheckpointError(f"tensor {twice[0]!r} is in two of the weight files: keep one of them")
        return cls({name: partial(_itself, index) for index in indexes for name in index.tensors})

    @classmethod
    def open(cls, path: str | Path) -> Weights:
        """A safetensors file, or a folder with ``model.safetensors`` or ``model.safetensors.index.json`` and its parts.

        ``path`` may be a URL (``https://...``, ``s3://...``): the bytes of single tensors are fetched then.

        Raises:
            CheckpointError: there is none at ``path``.
        """
        folder = RemoteFolder(str(path)) if is_remote(path) else _Folder(Path(path))
        if (single := folder.single()) is not None:
            return cls.of([single])
        if (document := folder.read(_INDEX, _MAX_INDEX)) is None:
            raise CheckpointError(f"{path} holds no {_WHOLE} (or its index): name a safetensors file in weights.path")
        opened = cache(lambda name: SafetensorsIndex(folder.blob(name)))
        return cls({tensor: partial(opened, file) for tensor, file in _parts(document, f"{path}/{_INDEX}").items()})

    @property
    def names(self) -> Collection[str]:
        """The names of all tensors."""
        return self._files.keys()

    def entry(self, name: str) -> TensorEntry:
        """Spec and byte range of the tensor ``name`` in its file.

        Raises:
            CheckpointError: there is no such tensor.
        """
        return self._opened(name).entry(name)

    def read(self, source: Expression, dtype: str | None = None) -> Array:
        """A tensor by its name, or what an expression makes of several, converted to ``dtype`` (of ``graph.DTYPES``) if given.

        Raises:
            CheckpointError: there is no such tensor.
        """
        array = evaluate(source, lambda name: self._opened(name).read(name))
        return array if dtype is None else array.astype(dtype_of(dtype), copy=False)

    def _opened(self, name: str) -> SafetensorsIndex:
        if name not in self._files:
            raise CheckpointError(f"the weight files have no tensor {name!r}")
        return self._files[name]()


class _Folder:
    """A local file or folder."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def single(self) -> Blob | None:
        """The file with all tensors (``None``: there are parts)."""
        if not self._path.is_dir():
            return FileBlob(self._path)
        return FileBlob(whole) if (whole := self._path / _WHOLE).is_file() else None

    def read(self, name: str, limit: int) -> bytes | None:
        """The file ``name`` of at most ``limit`` bytes (``None``: it is not there)."""
        path = self._path / name
        if not path.is_file():
            return None
        if path.stat().st_size > limit:
            raise CheckpointError(f"{path} has {path.stat().st_size} bytes, at most {limit} are read")
        return path.read_bytes()

    def blob(self, name: str) -> Blob:
        """The file ``name`` by ranges."""
        return FileBlob(self._path / name)


def _itself(index: SafetensorsIndex) -> SafetensorsIndex:
    return index


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """``names``: state -> tensor of the file, or what an expression makes of several; ``missing``: states without one;
    ``unused``: tensors that no state takes.
    """

    names: Mapping[str, Expression]
    missing: tuple[str, ...]
    unused: tuple[str, ...]


def match_states(
    weights: Weights,
    states: Sequence[State],
    *,
    strict: bool = True,
    sources: Mapping[str, Expression] | None = None,
    only: Collection[str] | None = None,
) -> Match:
    """Find the tensor for each parameter and persistent buffer, by name, by the further names of tied parameters, under one
    wrapper prefix more or less, or without the ``base_layer`` that adapters insert.

    ``sources`` says for some states what they are made of, or that they begin with initial values. ``only``: compare the shapes
    of these states, so that no file of another state is opened.

    Raises:
        CheckpointError: a shape differs; or (``strict``) a state has no tensor and is no adapter beside a ``base_layer``.
    """
    wanted = [state for state in states if state.kind is not StateKind.CONSTANT and state.persistent]
    known, tensors = sources or {}, weights.names
    found: dict[str, Expression] = {}
    plain = [state for state in wanted if state.name not in known]
    best = max(_prefixes(plain, tensors), key=lambda pair: len({_find(state, pair, tensors) for state in plain} - {None}))
    used: set[str] = set()
    for state in wanted:
        source = known[state.name] if state.name in known else _find(state, best, tensors)
        if source is None or source == INITIAL or (isinstance(source, str) and source in used):  # a tensor serves one state
            continue
        if isinstance(source, str):
            used.add(source)
        if only is None or state.name in only:
            check_shape(weights, state, source)
        found[state.name] = source
    missing = tuple(state.name for state in wanted if state.name not in found)
    adapted = tuple(state.name.partition(_WRAPPED)[0] + "." for state in wanted if _WRAPPED in state.name)
    needed = [name for name in missing if not name.startswith(adapted) or any(part in name for part in _FROM_FILES)]
    needed = [name for name in needed if known.get(name) != INITIAL]
    if strict and needed:
        raise CheckpointError(
            f"the weight files lack {len(needed)} of {len(wanted)} states, e.g. {needed[0]!r} (they have e.g. "
            f"{next(iter(tensors), 'nothing')!r}): use the right file, or weights.strict = false to initialize what is missing"
        )
    if not found:
        raise CheckpointError(
            f"no tensor of the weight files fits any of the model's {len(wanted)} states (they have e.g. "
            f"{next(iter(tensors), 'nothing')!r}, the model {wanted[0].name if wanted else 'nothing'!r}): use the right file"
        )
    return Match(names=found, missing=missing, unused=tuple(name for name in tensors if name not in used))


def check_shape(weights: Weights, state: State, source: Expression) -> None:
    """See that ``source`` has the shape of ``state``.

    Raises:
        CheckpointError: it has another one.
    """
    shape = shape_of(source, lambda name: weights.entry(name).spec.shape)
    if shape != state.spec.shape:
        named = repr(source) if isinstance(source, str) else f"tensors for {state.name!r}"
        raise CheckpointError(
            f"the weight files hold {named} with shape {list(shape)}, the model's {state.name!r} has "
            f"{list(state.spec.shape)}: use the model's arguments that the weights were made with"
        )


def _prefixes(states: Sequence[State], tensors: Collection[str]) -> Iterator[tuple[str, str]]:
    """Pairs (prefix to take from a state's name, prefix to put before it); no change comes first, so that it wins ties."""
    for drop in ("", *_common([state.name for state in states])):
        for add in ("", *_common(list(tensors))):
            yield drop, add


def _common(names: Sequence[str]) -> list[str]:
    """Dotted prefixes of up to six parts that at least half of the names share."""
    counts: Counter[str] = Counter()
    for name in names:
        parts = name.split(".")[:-1]
        counts.update(".".join(parts[:depth]) + "." for depth in range(1, min(6, len(parts)) + 1))
    return [prefix for prefix, count in counts.items() if 2 * count >= len(names)]


def _find(state: State, pair: tuple[str, str], tensors: Collection[str]) -> str | None:
    drop, add = pair
    for name in (state.name, *state.aliases):
        plain = add + name.removeprefix(drop)
        for candidate in (name, plain, plain.replace(_WRAPPED, ".")):
            if candidate in tensors:
                return candidate
    return None


def _parts(document: bytes, name: str) -> dict[str, str]:
    """Tensor -> file, as an index of parts says."""
    try:
        found = dict(json.loads(document)["weight_map"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise CheckpointError(f"{name} is no index of safetensors files: fetch it again") from None
    if any(not isinstance(file, str) or Path(file).name != file for file in found.values()):
        raise CheckpointError(f"{name} names files outside its folder: fetch it again")
    return found
