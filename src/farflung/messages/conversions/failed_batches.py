"""The batch on which a computation failed, as a field of messages."""

from __future__ import annotations

from farflung.errors import FailedBatch
from farflung.messages.schema import UNSET, UnsetType
from farflung.messages.watching import BatchItem

__all__ = ["batch_item", "failed_batch"]


def batch_item(batch: FailedBatch | None) -> BatchItem | UnsetType:
    """Return ``batch`` as a message holds it."""
    return UNSET if batch is None else BatchItem(step=batch.step, index=batch.index, evaluates=batch.evaluates)


def failed_batch(item: BatchItem | UnsetType) -> FailedBatch | None:
    """Return what ``batch_item`` was given."""
    return FailedBatch(item.step, item.index, item.evaluates) if isinstance(item, BatchItem) else None
