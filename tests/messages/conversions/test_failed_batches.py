"""The batch of a failed computation as a field of messages."""

from __future__ import annotations

import pytest

from farflung.errors import FailedBatch
from farflung.messages.conversions.failed_batches import batch_item, failed_batch
from farflung.messages.reports import Failed
from farflung.messages.schema import Channel
from farflung.messages.wire_form import decode_as, encode

BATCHES = [FailedBatch(12, 3), FailedBatch(4, 0, evaluates=True), None]


@pytest.mark.parametrize("batch", BATCHES)
def test_a_batch_crosses_in_a_message(batch: FailedBatch | None) -> None:
    failed = Failed(run="r", attempt=1, cause="operator failed", kind="GraphError", batch=batch_item(batch))
    assert failed_batch(decode_as(encode(failed), Channel.REPORTS, Failed).batch) == batch
