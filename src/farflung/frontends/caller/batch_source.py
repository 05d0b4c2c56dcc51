"""From what a caller passes as data to batches by position."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset

from farflung.errors import InputError
from farflung.frontends.caller.index_order import Preserved
from farflung.frontends.caller.loaded_batches import LoadedBatches
from farflung.frontends.caller.streams import StreamedBatches

__all__ = ["BatchSource", "SourceSettings", "batch_source"]


@dataclass(frozen=True, kw_only=True)
class BatchSource:
    """Batches by position, counted over all epochs.

    ``length``: batches of an epoch (None: not known before its end). ``last``: samples of an epoch's last batch, where it is
    smaller than the others. ``close`` ends processes that load batches. ``once``: nothing can be read twice.
    """

    batch: Callable[[int], Any]
    close: Callable[[], None]
    length: int | None = None
    last: int | None = None
    once: bool = False


@dataclass(frozen=True, kw_only=True)
class SourceSettings:
    """How single samples become batches: ``argument`` is what the caller calls the data.

    ``batch_size``: samples of a batch (None: the data are batches). ``shuffle``: a new order in each epoch, keyed by ``seed``.
    ``other``: ``batch_size`` may be meant for other data.
    """

    argument: str
    batch_size: int | None
    seed: int
    shuffle: bool
    other: bool
    preserved: Preserved


def batch_source(data: Any, settings: SourceSettings) -> BatchSource:
    """The batches of a ``DataLoader``, a dataset with or without an index, or an iterable of batches.

    Raises:
        InputError: ``data`` are none of these, or ``batch_size`` is missing or superfluous.
    """
    single = _is_indexed(data) or isinstance(data, IterableDataset)
    argument, size = settings.argument, settings.batch_size
    if single and size is None:
        raise InputError(f"{argument} is a {type(data).__name__}, which gives single samples: pass batch_size, or a DataLoader")
    if not single and size is not None and not settings.other:
        raise InputError(
            f"batch_size={size} is for a dataset, and {argument} is a {type(data).__name__}, which gives batches: "
            "remove batch_size"
        )
    if single:
        data = _loader(data, settings)
    if isinstance(data, DataLoader) and not isinstance(data.dataset, IterableDataset) and _is_plain(data):
        loaded = LoadedBatches(data, settings.seed, settings.preserved)
        return BatchSource(batch=loaded, close=loaded.close, length=_length(data), last=_smaller_last(data))
    if isinstance(data, Iterable) and not isinstance(data, (str, bytes, Mapping, torch.Tensor)):
        streamed = StreamedBatches(data)
        return BatchSource(batch=streamed, close=streamed.close, length=_length(data), once=isinstance(data, Iterator))
    raise InputError(
        f"{argument} is a {type(data).__name__}: pass a DataLoader, a Dataset with batch_size, an iterable of batches, or a "
        "function"
    )


def _is_indexed(data: Any) -> bool:
    """Whether ``data`` are single samples by index; lists and tuples are taken for batches."""
    named = isinstance(data, (list, tuple, str, bytes, Mapping, torch.Tensor, DataLoader, IterableDataset))
    return not named and hasattr(data, "__getitem__") and hasattr(data, "__len__")


def _loader(dataset: Any, settings: SourceSettings) -> DataLoader[Any]:
    if hasattr(dataset, "with_format") and dict(getattr(dataset, "format", None) or {}).get("type") is None:
        dataset = dataset.with_format("torch")  # of the library ``datasets``, which returns lists by default
    order: dict[str, Any] = {}
    if not isinstance(dataset, IterableDataset):
        order = {"shuffle": settings.shuffle, "generator": torch.Generator().manual_seed(settings.seed)}
    return DataLoader(dataset, batch_size=settings.batch_size, drop_last=True, **order)


def _is_plain(loader: DataLoader[Any]) -> bool:
    """Whether its batches are those of its sampler: a class of its own may do anything."""
    return type(loader).__iter__ is DataLoader.__iter__


def _length(data: Any) -> int | None:
    try:
        return len(data)
    except TypeError:
        return None


def _smaller_last(loader: DataLoader[Any]) -> int | None:
    sampler = loader.batch_sampler
    if type(sampler) is not BatchSampler or sampler.drop_last:
        return None
    samples = _length(sampler.sampler)
    return samples % sampler.batch_size or None if samples is not None else None
